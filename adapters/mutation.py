"""New candidates made of known ones (ToolACE-MCP, section 3.3.2): what is asked, taken and refused, and why.

Knows candidates, an LLM and an embedder. The operators are worded in `prompts.synthesis`. Which candidate is changed
how depends only on the seed and on the answers so far, never on which of them came first.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from adapters.asking import Asker
from adapters.augment import words
from adapters.graph import specification
from adapters.mining import Embed, cosines, folded
from adapters.mixture import generator
from prompts import Candidate
from prompts.enrichment import numbered
from prompts.synthesis import NEW_PARAMETERS, NEW_RETURNS, NEW_TOOLS, Operator, mutate, operators
from serving.catalog.sources.base import candidate_id
from serving.validation import schema_validator

# Of two candidates more alike than this none could say which one a request needs.
NEAR_COPY = 0.95
# Candidates asked for at once; those made are only changed further after that.
GENERATION = 64
# Calls for each candidate that is wanted, after which the rest is given up.
MOST_ATTEMPTS = 3
# A description shorter than this says nothing.
DESCRIPTION_CHARACTERS = 20
_NAME = re.compile(r"^\w[\w .\-/]{1,63}$")
_LIST = "list of strings"


@dataclass(frozen=True, slots=True)
class Mutant:
    """A new candidate, the id that it was made of, and how."""

    candidate: Candidate
    parent: str
    operator: str


@dataclass(slots=True)
class Mutations:
    """What was made, and what was refused: counted by operator and reason."""

    made: list[Mutant] = field(default_factory=list)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def parents(self) -> dict[str, str]:
        """The parent of each, by id."""
        return {mutant.candidate.id: mutant.parent for mutant in self.made}


@dataclass(frozen=True, slots=True)
class _Draw:
    parent: Candidate
    partner: Candidate | None
    operator: Operator
    attempt: int


class _Pool:
    """Everything there is so far, with what a new candidate is compared with."""

    def __init__(self, candidates: Sequence[Candidate], vectors: NDArray[np.float32]) -> None:
        self.candidates = list(candidates)
        # With room to grow, because adding a row to an array copies it.
        self._vectors = np.zeros((2 * len(candidates) + GENERATION, vectors.shape[1]), np.float32)
        self._vectors[: len(vectors)] = vectors
        self._names = {(candidate.server, folded(candidate.name)) for candidate in candidates}
        self._ids = {candidate.id for candidate in candidates}
        self._servers: dict[str, list[int]] = {}
        for place, candidate in enumerate(candidates):
            self._servers.setdefault(candidate.server, []).append(place)

    def draw(self, rng: Generator, attempt: int) -> _Draw:
        place = int(rng.integers(len(self.candidates)))
        parent = self.candidates[place]
        choices = operators(parent.type)
        operator = choices[int(rng.integers(len(choices)))]
        return _Draw(parent, self._partner(place) if operator.partner else None, operator, attempt)

    def _partner(self, place: int) -> Candidate | None:
        """The nearest of the same kind that is no near copy."""
        own = self._vectors[: len(self.candidates)]
        likeness = cosines(own, own[place])
        for other in np.argsort(-likeness, kind="stable")[1 : GENERATION + 1]:
            if likeness[other] < NEAR_COPY and self.candidates[other].type == self.candidates[place].type:
                return self.candidates[int(other)]
        return None

    def siblings(self, parent: Candidate) -> list[str]:
        """Names at its server, its own first, the newest next."""
        others = [self.candidates[place].name for place in reversed(self._servers[parent.server])]
        return list(dict.fromkeys([parent.name, *others]))

    def refusal(self, mutant: Candidate, vector: NDArray[np.float32]) -> str:
        """Why this one cannot be added; empty where it can."""
        if (mutant.server, folded(mutant.name)) in self._names or mutant.id in self._ids:
            return "its name is taken"
        if cosines(self._vectors[: len(self.candidates)], vector).max(initial=0) >= NEAR_COPY:
            return "a near copy"
        return ""

    def add(self, mutant: Candidate, vector: NDArray[np.float32]) -> None:
        place = len(self.candidates)
        if place == len(self._vectors):
            self._vectors = np.concatenate([self._vectors, np.zeros_like(self._vectors)])
        self._vectors[place] = vector
        self.candidates.append(mutant)
        self._names.add((mutant.server, folded(mutant.name)))
        self._ids.add(mutant.id)
        self._servers.setdefault(mutant.server, []).append(place)


async def mutations(
    candidates: Sequence[Candidate],
    count: int,
    asker: Asker,
    embed: Embed,
    seed: int,
    advance: Callable[[int], object] = lambda made: None,
) -> Mutations:
    """At most `count` new candidates; fewer where too many are refused.

    Raises:
        EngineUnavailableError, EngineTimeoutError: the LLM answers nobody. Called again, this goes on.
    """
    result = Mutations()
    if not candidates or not count:
        return result
    pool = _Pool(candidates, await asyncio.to_thread(embed, list(map(specification, candidates))))
    attempt = 0
    while len(result.made) < count and attempt < MOST_ATTEMPTS * count:
        wanted = min(GENERATION, count - len(result.made), MOST_ATTEMPTS * count - attempt)
        draws = [pool.draw(generator(seed, "mutation", attempt + i), attempt + i) for i in range(wanted)]
        attempt += wanted
        answers = await asker.all(
            [mutate(one.parent, one.operator, one.partner, pool.siblings(one.parent)) for one in draws],
            [seed + one.attempt for one in draws],
        )
        before = len(result.made)
        await _take(draws, answers, pool, embed, result)
        advance(len(result.made) - before)
    return result


async def _take(draws: Sequence[_Draw], answers: Sequence[Any], pool: _Pool, embed: Embed, result: Mutations) -> None:
    """Add what was made, in order, or count why not."""
    made: list[tuple[_Draw, Candidate]] = []
    for one, answer in zip(draws, answers, strict=True):
        wrong = "no answer of the schema" if answer is None else fault(one.parent, answer)
        if wrong:
            result.refused[one.operator.name, wrong] += 1
        else:
            made.append((one, read_mutant(one.parent, answer)))
    if not made:
        return
    vectors = await asyncio.to_thread(embed, [specification(mutant) for _, mutant in made])
    for (one, mutant), vector in zip(made, vectors, strict=True):
        if wrong := pool.refusal(mutant, vector):
            result.refused[one.operator.name, wrong] += 1
        else:
            pool.add(mutant, vector)
            result.made.append(Mutant(mutant, one.parent.id, one.operator.name))


def fault(parent: Candidate, answer: Mapping[str, Any]) -> str:
    """What is wrong with an answer by itself; empty where nothing is."""
    if not _NAME.match(_line(answer["name"])):
        return "no usable name"
    if len(_line(answer["description"])) < DESCRIPTION_CHARACTERS:
        return "no description"
    if parent.type != "tool":
        return "" if _filled(answer, "tool", NEW_TOOLS) else "no tools"
    names = [_line(parameter["name"]) for parameter in _parameters(answer)]
    if len(set(names)) < len(names) or not all(map(_NAME.match, names)):
        return "parameters without a name of their own"
    for schema in (read_mutant(parent, answer).input_schema, read_mutant(parent, answer).output_schema):
        if schema is not None and schema_validator(schema) is None:
            return "no valid JSON Schema"
    return ""


def read_mutant(parent: Candidate, answer: Mapping[str, Any]) -> Candidate:
    """The candidate that an answer to `prompts.synthesis.mutate` describes.

    A parameter that the parent has too keeps the parent's schema, where its type is still the same: that says more
    than the answer can.
    """
    name = _line(answer["name"])
    made: dict[str, Any] = {
        "id": _id(parent, name),
        "name": name,
        "description": _line(answer["description"]),
        "type": parent.type,
        "server": parent.server,
    }
    if parent.type != "tool":
        return Candidate(
            **made, input_schema=parent.input_schema, tools=tuple(dict.fromkeys(_filled(answer, "tool", NEW_TOOLS)))
        )
    known = parent.input_schema.get("properties")
    known = known if isinstance(known, Mapping) else {}
    properties: dict[str, Any] = {}
    for parameter in _parameters(answer):
        said = _property(parameter)
        old = known.get(_line(parameter["name"]))
        same = isinstance(old, Mapping) and old.get("type") == said["type"]
        properties[_line(parameter["name"])] = dict(old) if same and isinstance(old, Mapping) else said
    required = [_line(parameter["name"]) for parameter in _parameters(answer) if parameter["required"] == "yes"]
    returned: dict[str, Any] = {name: {} for name in _filled(answer, "returns", NEW_RETURNS)}
    return Candidate(
        **made,
        input_schema={"type": "object", "properties": properties, "required": required},
        output_schema={"type": "object", "properties": returned} if returned else None,
    )


def _id(parent: Candidate, name: str) -> str:
    """Written as the parent's: calls in histories show ids, and nothing in them may tell a mutant."""
    if parent.id.endswith(parent.name):
        return parent.id.removesuffix(parent.name) + name
    return candidate_id(parent.server, name) if parent.server else name


def _property(parameter: Mapping[str, str]) -> dict[str, Any]:
    kind = parameter["type"]
    said: dict[str, Any] = {"type": "array", "items": {"type": "string"}} if kind == _LIST else {"type": kind}
    return {**said, "description": _line(parameter["description"])}


def _parameters(answer: Mapping[str, Any]) -> list[Mapping[str, str]]:
    slots = (answer[name] for name in numbered("parameter", NEW_PARAMETERS))
    return [slot for slot in slots if _line(slot["name"])]


def _filled(answer: Mapping[str, Any], name: str, number: int) -> list[str]:
    """The slots that are not empty, and have a word."""
    return [text for slot in numbered(name, number) if words(text := _line(answer[slot]))]


def _line(text: str) -> str:
    return " ".join(text.replace("\0", " ").split())
