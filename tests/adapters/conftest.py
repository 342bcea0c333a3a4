"""A small world of routing data, written for these tests: a catalogue, cases, trajectories and a toy embedder."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from adapters.augment import words


def toy_embed(texts):
    """Bags of words in 64 dimensions: equal texts have cosine 1, texts without a common word about 0."""
    vectors = np.zeros((len(texts), 64), dtype=np.float32)
    for row, text in zip(vectors, texts, strict=True):
        for word in words(text):
            digest = hashlib.blake2b(word.encode(), digest_size=4).digest()
            row[digest[0] % 64] += 1.0 if digest[1] % 2 else -1.0
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-6)


def tool(server, name, description, *parameters):
    """A catalogue line."""
    properties = {parameter: {"type": "string", "description": "unused"} for parameter in parameters}
    return {
        "id": f"{server}/{name}",
        "type": "tool",
        "server": server,
        "name": name,
        "description": description,
        "input_schema": {"type": "object", "properties": properties, "required": list(parameters[:1])},
    }


SERVERS = {
    "garden": ["water_bed", "plantSeeds", "harvest_row", "mow-lawn"],
    "library": ["lend_book", "returnBook", "reserve_seat", "findAuthor"],
    "harbour": ["berth_ship", "weighCargo", "hire_pilot", "readTide"],
}
CATALOGUE = [
    tool(server, name, f"Does {' '.join(words(name))} for the {server} number {number}. Nothing else.", "target", "day")
    for server, names in SERVERS.items()
    for number, name in enumerate(names)
]
FOREIGN = [tool("orchestra", f"instrument{i}", f"Tunes instrument number {i} before a concert.") for i in range(30)]


def request(case_id, query, gold, **fields):
    """A case line of one message."""
    mode = "one" if gold else "none"
    line = {"case_id": case_id, "query": query, "query_pos": 0, "history": [], "gold": gold, "gold_mode": mode}
    return {**line, "split": "all", **fields}


def call(id_, **arguments):
    """An assistant message that calls one candidate."""
    return {"role": "assistant", "content": "", "tool_calls": [{"name": id_, "arguments": json.dumps(arguments)}]}


CASES = [
    request(f"case{i}", f"Please {' '.join(words(line['name']))} {'abcdefghij'[i % 10]} {i}", [line["id"]])
    for i, line in enumerate(CATALOGUE * 5)
]
TRAJECTORIES = [
    {
        "task": "tend",
        "group": f"team_{i % 4}",
        "messages": [
            {"role": "user", "content": f"tend plot {'abcdefgh'[i]} and note it in the {'hgfedcba'[i]} book"},
            {**call("garden/water_bed", target=i), "content": "Water first."},
            {"role": "tool", "name": "garden/water_bed", "content": f"bed {'stuvwxyz'[i]} is wet"},
            call("library/lend_book", target=i),
            {"role": "tool", "name": "library/lend_book", "content": f"book {'stuvwxyz'[i]} lent"},
            call("library/lend_book", target=i + 1),
            {"role": "tool", "name": "library/lend_book", "content": "lent again"},
            {"role": "assistant", "content": "All done."},
        ],
    }
    for i in range(8)
]


def write_lines(path: Path, lines):
    """JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


@pytest.fixture
def world(tmp_path):
    """A data root: `sets/tasks` with cases, `sets/foreign` without, `runs/team.trajectories.jsonl`."""
    write_lines(tmp_path / "sets/tasks/catalog.jsonl", CATALOGUE)
    write_lines(tmp_path / "sets/tasks/cases.jsonl", CASES)
    write_lines(tmp_path / "sets/foreign/catalog.jsonl", FOREIGN)
    write_lines(tmp_path / "runs/team.trajectories.jsonl", TRAJECTORIES)
    return tmp_path
