"""What tests of the data factory share: an LLM with canned answers, and a process that runs the factory.

`play_roles` stands in for an LLM behind chat_server's real HTTP. It answers every role from the schema and the document
of the question; what it says depends on nothing else. `python -m tests.adapters.factory DIR URL [FILE]` runs the
factory, and kills itself while it writes FILE.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import sys
from pathlib import Path

from adapters import synthesise as factory
from adapters.asking import Asker
from adapters.supervision import Sides
from adapters.trajectories import Play
from prompts.synthesis import NEW_PARAMETERS
from serving.llm import LLM, Journal
from tests.adapters.conftest import SERVERS, tool, toy_embed, words, write_lines
from tests.serving.chat_server import Reply, document

SYLLABLES = [consonant + vowel for consonant in "bdfk" for vowel in "aeiou"]
CALLS = 3

AGENT = {
    "id": "harbour/pilot",
    "type": "agent",
    "server": "harbour",
    "name": "chief_pilot",
    "description": "Guides ships through the harbour and reports when they lie safely.",
    "tools": ["look_out", "steer"],
    "input_schema": {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]},
}
CATALOGUE = [
    tool(server, name, f"Does {' '.join(words(name))} for the {server}, {i}{server[0]}.", "target", "day")
    for server, names in SERVERS.items()
    for i, name in enumerate(names)
] + [AGENT]
SETTINGS = factory.Settings(
    12, 6, threshold=0.3, play=Play(least=3, most=5, failures=0.5, empties=0.5, changes=0.5), sides=Sides(dev=0.3)
)


def invented(*parts, count=4):
    """Words that only the parts decide, and that no other parts share."""
    digest = hashlib.blake2b(json.dumps(parts).encode(), digest_size=3 * count).digest()
    return ["".join(SYLLABLES[byte % 20] for byte in digest[start : start + 3]) for start in range(0, len(digest), 3)]


def play_roles(body):
    """The canned answer."""
    return Reply(json.dumps(_answer(body)))


def _answer(body):
    asked = body["response_format"]["json_schema"]["schema"]["properties"]
    said = " ".join(invented(body["messages"], body.get("seed"), count=6))
    data = document(body)
    match list(asked):
        case ["task", "plan", *steps]:
            plan = [1, 2, 1] + [0] * len(steps)
            return {"task": f"Someone wants {said}.", "plan": "First, then.", **dict(zip(steps, plan, strict=False))}
        case ["answerable"]:
            return {"answerable": "no" if said.startswith("ba") else "yes"}
        case ["message", "choice"]:
            calls = sum("calls" in message for message in data["conversation"])
            asked_again = sum(message["role"] == "user" for message in data["conversation"]) - 1
            return {"message": f"Then {said}.", "choice": calls % 2 + 1 if calls < CALLS + asked_again else 0}
        case ["message", "finished"]:
            changes = "changes their mind" in body["messages"][0]["content"]
            return {"message": f"No, rather {said}." if changes else "", "finished": "no" if changes else "yes"}
        case ["message"] if "task" in data:
            return {"message": f"Hello, {said}, {data['task']}"}
        case ["result"]:
            return {"result": f"[{said}]"}
        case ["score"]:
            return {"score": 3 if said.startswith("de") else 5}
        case ["name", "description", *_]:
            name = "_".join(said.split()[:2])
            slots = {slot: "" for slot in asked if slot.startswith(("returns", "tool"))}
            slots |= {f"parameter_{i + 1}": _parameter("day" if i == 1 else "", i) for i in range(NEW_PARAMETERS)}
            slots |= {"tool_1": "look", "returns_1": "target"}
            made = {**slots, "name": name, "description": f"Brings {said} to those who need it."}
            return {slot: made[slot] for slot in asked}
        case _:
            return {name: _filled(schema, said) for name, schema in asked.items()}


def _parameter(name, place):
    return {"name": "place" if not place else name, "type": "string", "required": "yes", "description": "Where."}


def _filled(schema, said):
    """A value of a simple schema."""
    if "enum" in schema:
        return schema["enum"][0]
    match schema["type"]:
        case "object":
            return {name: _filled(inner, said) for name, inner in schema["properties"].items()}
        case "array":
            return [_filled(schema["items"], said)]
        case kind:
            return {"string": said, "integer": 2, "number": 2.5, "boolean": True}[kind]


@contextlib.asynccontextmanager
async def asking(url, folder, **options):
    llm = LLM("canned", url, journal=Journal(folder / "journal.jsonl"), **{"concurrency": 4, "retries": 0, **options})
    try:
        yield Asker(llm)
    finally:
        await llm.close()


async def run(folder, url, settings=SETTINGS, **options):
    """One run over the toy catalogue; what it made, and what it asked."""
    if not (folder / "given.jsonl").exists():
        write_lines(folder / "given.jsonl", CATALOGUE)
    async with asking(url, folder, **options) as asker:
        made = await factory.synthesise(folder / "given.jsonl", folder / "out", asker, toy_embed, settings)
    return made, asker


def written(folder):
    """Every file of a run, by name."""
    return {file.name: file.read_bytes() for file in sorted((folder / "out").iterdir())}


def _die_writing(fatal):
    """The process is killed when half of this file's lines are written."""
    whole = factory.write_json_lines

    def half(path, lines):
        if path.name != fatal:
            return whole(path, lines)
        rows = list(lines)
        with (path.parent / f"{path.name}.partial").open("wb") as file:
            file.write(json.dumps(rows[: len(rows) // 2]).encode())
        os.kill(os.getpid(), signal.SIGKILL)
        return None

    for module in ("adapters.synthesise", "adapters.supervision"):
        sys.modules[module].write_json_lines = half


if __name__ == "__main__":
    if len(sys.argv) > 3:
        _die_writing(sys.argv[3])
    asyncio.run(run(Path(sys.argv[1]), sys.argv[2]))
