"""Reads routing data: catalogues, cases and trajectories, as JSON lines (plain or .gz).

Knows the file formats and nothing of what is done with a case. Every fault names its file and line.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from prompts import Candidate, Message
from serving.catalog.shapes import candidates_from
from serving.types import InvalidRequestError

GoldMode = Literal["one", "all", "none"]


@dataclass(frozen=True, slots=True)
class Case:
    """One routing question and its answer.

    Attributes:
        case_id: unique in its set.
        source: name of the set it comes from.
        messages: the conversation before the decision, oldest first, the query among them.
        gold: right ids. Mode `one`: each of them is right. `all`: every one is needed, or one of each of
            `gold_groups`. `none`: empty, nothing in `candidates` fits.
        candidates: ids of the source's own short list, or None.
        excluded: ids that must not be offered, because they are as right as gold.
        servers: the servers whose candidates were on offer; empty where that was the whole catalogue.
        group: cases of one group (a dialogue, scenario, trajectory or first request) belong on one side of a split.
        split: the source's own split.
        repeats_last_call: gold is the tool called last.
        preface: trajectories only, what the assistant says in the message that decides; not among `messages`.
    """

    case_id: str
    source: str
    messages: tuple[Message, ...]
    gold: tuple[str, ...]
    gold_mode: GoldMode
    group: str
    split: str
    gold_groups: tuple[tuple[str, ...], ...] = ()
    candidates: tuple[str, ...] | None = None
    excluded: frozenset[str] = frozenset()
    servers: tuple[str, ...] = ()
    repeats_last_call: bool = False
    preface: str = ""

    @property
    def right(self) -> frozenset[str]:
        """Every id that must not be taken for wrong."""
        return frozenset(self.gold).union(*self.gold_groups)


@dataclass(frozen=True)
class Dataset:
    """A catalogue with its cases (none where it only lends distractors)."""

    name: str
    candidates: tuple[Candidate, ...]
    cases: tuple[Case, ...] = field(default=(), repr=False)
    sha256: Mapping[str, str] = field(default_factory=dict)
    """Digest of each file that was read, by its name."""

    @cached_property
    def by_id(self) -> Mapping[str, Candidate]:
        """Candidates by their ids."""
        return {candidate.id: candidate for candidate in self.candidates}


class _CaseLine(BaseModel):
    case_id: str
    query: str
    query_pos: int
    history: tuple[Message, ...]
    gold: tuple[str, ...]
    gold_mode: GoldMode
    split: str
    candidates: tuple[str, ...] | None = None
    excluded: frozenset[str] = frozenset()
    gold_groups: tuple[tuple[str, ...], ...] = ()
    group: str | None = None
    repeats_last_call: bool = False
    servers: tuple[str, ...] = ()
    preface: str = ""


class _TrajectoryLine(BaseModel):
    task: str = ""
    group: str
    messages: tuple[Message, ...]


_Line = TypeVar("_Line", bound=BaseModel)


def open_lines(path: Path) -> Iterator[tuple[str, bytes]]:
    """Every line that is not empty, with its place (`file:number`)."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield f"{path}:{number}", line
    except (OSError, EOFError) as error:
        raise ValueError(f"cannot read {path}: {error}") from error


def _json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    for place, line in open_lines(path):
        try:
            yield place, json.loads(line)
        except ValueError as error:
            raise ValueError(f"{place}: not JSON: {error}") from error


def _parsed(path: Path, line_type: type[_Line]) -> Iterator[tuple[str, _Line]]:
    for place, line in _json_lines(path):
        try:
            yield place, line_type.model_validate(line)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ValueError(f"{place}: {where or 'the line'}: {first['msg']}") from error


def file_sha256(path: Path) -> str:
    """Hex digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _beside(folder: Path, name: str) -> Path:
    """`name` in `folder`, or its .gz."""
    plain = folder / name
    return plain if plain.exists() else folder / f"{name}.gz"


def read_catalogue(path: Path) -> tuple[Candidate, ...]:
    """The candidates of a catalogue file, in its order. Lines that describe a server are left out.

    Raises:
        ValueError: the file cannot be read, a line is wrong or an id stands twice.
    """
    candidates: dict[str, Candidate] = {}
    for place, line in _json_lines(path):
        try:
            read = candidates_from([_with_tool_names(line)], place)
        except InvalidRequestError as error:
            raise ValueError(str(error)) from error
        for candidate in read:
            if candidate.id in candidates:
                raise ValueError(f"{place}: the id {candidate.id!r} stands in this catalogue already; ids are unique")
            candidates[candidate.id] = candidate
    return tuple(candidates.values())


def _with_tool_names(line: Any) -> Any:
    """An agent's own tools may be listed as objects; a candidate knows their names."""
    if isinstance(line, dict) and isinstance(line.get("tools"), list):
        names = [tool.get("name") if isinstance(tool, dict) else tool for tool in line["tools"]]
        return {**line, "tools": names}
    return line


def read_candidates(path: Path) -> tuple[Candidate, ...]:
    """The catalogue at `path`: a file, or a folder with `catalog.jsonl`. Raises as `read_catalogue`."""
    return read_catalogue(_catalogue_file(path))


def _catalogue_file(path: Path) -> Path:
    return _beside(path, "catalog.jsonl") if path.is_dir() else path


def read_dataset(folder: Path) -> Dataset:
    """A folder with `catalog.jsonl` and, unless it only lends distractors, `cases.jsonl` (each plain or .gz).

    Raises:
        ValueError: a file cannot be read, or a line is wrong; the message names file and line.
    """
    catalogue = _beside(folder, "catalog.jsonl")
    candidates = read_catalogue(catalogue)
    known = {candidate.id for candidate in candidates}
    digests = {catalogue.name: file_sha256(catalogue)}
    cases: list[Case] = []
    file = _beside(folder, "cases.jsonl")
    if file.exists():
        digests[file.name] = file_sha256(file)
        for place, line in _parsed(file, _CaseLine):
            cases.append(_case(line, folder.name, known, place))
    return Dataset(folder.name, candidates, tuple(cases), digests)


def _case(line: _CaseLine, source: str, known: set[str], place: str) -> Case:
    if not 0 <= line.query_pos <= len(line.history):
        raise ValueError(f"{place}: query_pos is {line.query_pos}, but the history has {len(line.history)} messages")
    if bool(line.gold) == (line.gold_mode == "none"):
        raise ValueError(f"{place}: gold_mode {line.gold_mode!r} with {len(line.gold)} gold ids")
    unknown = {*line.gold, *(line.candidates or ())} - known
    if unknown:
        raise ValueError(f"{place}: not in the catalogue beside it: {', '.join(sorted(unknown)[:5])}")
    acted = line.query_pos < len(line.history)
    messages = line.history if acted else (*line.history, Message("user", line.query))
    return Case(
        case_id=line.case_id,
        source=source,
        messages=messages,
        gold=line.gold,
        gold_mode=line.gold_mode,
        gold_groups=line.gold_groups,
        candidates=line.candidates,
        excluded=line.excluded,
        # A request that opens several cases (paraphrased answers, an abstention twin) must not stand on both sides.
        group=line.group or first_request(messages),
        split=line.split,
        servers=line.servers,
        repeats_last_call=line.repeats_last_call,
        preface=line.preface,
    )


def first_request(messages: Sequence[Message]) -> str:
    """The first user message, without case and white space: the group of a case that names none."""
    text = next((message.content for message in messages if message.role == "user"), "")
    return " ".join(text.casefold().split())


def read_trajectories(path: Path, catalogue: Path) -> Dataset:
    """Every decision of every trajectory of a file, over the catalogue (file or folder) whose ids the calls name.

    An assistant message that calls candidates is one case: any of its calls is right. One that answers or asks
    instead is a case with gold none: at that point no candidate should act.

    Raises:
        ValueError: the file cannot be read, a line is wrong, or a call names no id of the catalogue.
    """
    name = f"{path.name.partition('.')[0]}_trajectories"
    candidates = read_candidates(catalogue)
    by_id = {candidate.id: candidate for candidate in candidates}
    lines = enumerate(_parsed(path, _TrajectoryLine))
    read = [(place, line, f"{line.group}/{number}") for number, (place, line) in lines]
    offered: dict[str, dict[str, None]] = {}
    for place, line, _ in read:
        for message in line.messages:
            for call in message.tool_calls:
                candidate = by_id.get(call.name)
                if candidate is None:
                    raise ValueError(f"{place}: the call of {call.name!r} names no candidate of {catalogue}")
                offered.setdefault(line.group, {})[candidate.server] = None
    cases = tuple(
        case
        for _, line, trajectory in read
        for case in _steps(line, trajectory, name, tuple(offered.get(line.group, ())))
    )
    digests = {file.name: file_sha256(file) for file in (path, _catalogue_file(catalogue))}
    return Dataset(name, candidates, cases, digests)


def whole_trajectories(path: Path) -> dict[str, tuple[Message, ...]]:
    """All messages of every trajectory of a file, by the group of its cases. Raises as `read_trajectories`."""
    lines = enumerate(_parsed(path, _TrajectoryLine))
    return {f"{line.group}/{number}": line.messages for number, (_, line) in lines}


def _steps(line: _TrajectoryLine, trajectory: str, source: str, servers: tuple[str, ...]) -> Iterator[Case]:
    last = ""
    for position, message in enumerate(line.messages):
        if message.role != "assistant" or position == 0:
            continue
        gold = tuple(dict.fromkeys(call.name for call in message.tool_calls))
        yield Case(
            case_id=f"{trajectory}:{position}",
            source=source,
            messages=line.messages[:position],
            gold=gold,
            gold_mode="one" if gold else "none",
            group=trajectory,
            split=line.group,
            servers=servers,
            repeats_last_call=last in gold,
            preface=message.content if gold else "",
        )
        last = message.tool_calls[-1].name if message.tool_calls else last


def without_history(case: Case) -> Case:
    """The case with only its query and its observation (the last message, where that is not the query)."""
    query = max((i for i, message in enumerate(case.messages) if message.role == "user"), default=None)
    last = len(case.messages) - 1
    kept = sorted({last} if query is None else {query, last})
    return dataclasses.replace(case, messages=tuple(case.messages[i] for i in kept))
