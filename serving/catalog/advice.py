"""What could be better about a catalogue: its cost in tokens, duplicates, tools to merge, descriptions, names.

Knows entries, vectors and a tokenizer. Changes nothing. Every criterion is a number in `Criteria` and stands in the
report; those of similarity were set with all-MiniLM-L6-v2 on 1,577 public MCP tools.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import regex
from numpy.typing import NDArray

from prompts import PromptTokenizer
from serving.catalog.embeddings import TextVectors
from serving.catalog.names import collisions
from serving.catalog.scan import Finding, scan
from serving.catalog.shapes import function_tool
from serving.types import Candidate

# camelCase, snake_case and kebab-case; other scripts are words as they stand.
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W\d_A-Za-z]+")
# Words between spaces, and each character of a script that is written without any.
_SAID = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]|[^\W\p{Han}\p{Thai}]+")
# Whoever grants or refuses tools does so by what they do to data: what reads, writes and deletes stays apart.
_ACTIONS = frozenset(
    [*("get", "list", "read", "fetch", "find", "search", "query", "describe", "show", "view", "check", "retrieve"),
     *("add", "create", "insert", "new", "make", "post", "put", "set", "update", "edit", "modify", "change", "patch"),
     *("replace", "write", "upsert", "save", "delete", "remove", "drop", "clear", "destroy", "cancel")]
)  # fmt: skip
# Rows of similarities held at once: 1,024 of 100,000 candidates are 400 MB.
_ROWS = 1024
# Texts tokenised at once.
_TEXTS = 1000


@dataclass(frozen=True, slots=True)
class Criteria:
    """When something is reported.

    Attributes:
        near_duplicate: two candidates, whatever their servers, whose similarity is at least this: the mean of that of
            their names and that of their descriptions. From .9 most pairs were one tool twice.
        alike: two tools of one server that may be one with a parameter: names that differ in one word, at the same
            place and no verb that reads, writes or deletes, descriptions at least this similar ...
        shared_parameters: ... and at least this share of all their parameters in both.
        short: a description of fewer words than this is short.
        repeated: a description that this many names have says nothing about any of them.
        far: a description less similar than this to its own name is misleading if besides ...
        unlike: ... it is on average less similar than this to the other descriptions of its server, ...
        nearer: ... or so much more similar to another name of its server. Of descriptions put on tools of other
            servers this finds three quarters, of those that stood there 1 in 60, of which nearly all were wrong.
        far_alone: as `far`, where a server has too few others (fewer than two) to compare with.
    """

    near_duplicate: float = 0.9
    alike: float = 0.8
    shared_parameters: float = 0.5
    short: int = 3
    repeated: int = 3
    far: float = 0.2
    unlike: float = 0.15
    nearer: float = 0.4
    far_alone: float = 0.05


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of the schemas in a prompt, each as an OpenAI tool.

    Attributes:
        catalogue: all of them.
        k: how many are exposed instead.
        exposed: k average ones; `most` the k longest.
    """

    catalogue: int
    k: int
    exposed: int
    most: int


@dataclass(frozen=True, slots=True)
class NearDuplicates:
    """Candidates each of which is nearly the same as another one here. `similarity` is the least that joined two."""

    ids: tuple[str, ...]
    similarity: float


@dataclass(frozen=True, slots=True)
class Consolidation:
    """Tools that may be one: `name`, with a parameter of these values."""

    server: str
    name: str
    values: tuple[str, ...]
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DescriptionFault:
    """A description that does not tell its candidate from others, and why not."""

    id: str
    fault: Literal["empty", "short", "repeated", "misleading"]
    why: str


@dataclass(frozen=True, slots=True)
class Advice:
    """All that was found. `collisions`: ids by the name that they would have on a surface without a hash; `findings`:
    what looks like poison."""

    candidates: int
    servers: int
    criteria: Criteria
    tokens: Tokens
    near_duplicates: tuple[NearDuplicates, ...]
    consolidations: tuple[Consolidation, ...]
    descriptions: tuple[DescriptionFault, ...]
    collisions: dict[str, tuple[str, ...]]
    findings: tuple[Finding, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


async def advise(
    candidates: Sequence[Candidate],
    vectors: TextVectors,
    tokenizer: PromptTokenizer,
    k: int = 10,
    criteria: Criteria | None = None,
) -> Advice:
    """Look at all of a catalogue's candidates: some seconds for 15,000 whose vectors are there, and with the square of
    their number.

    Args:
        vectors: makes those of names and descriptions.
        tokenizer: whose tokens are counted.
        k: as many candidates as a prompt holds after the prefilter.
    """
    criteria = criteria or Criteria()
    names = await vectors.of_texts([" ".join(words(candidate.name)) or candidate.name for candidate in candidates])
    descriptions = await vectors.of_texts([_text(candidate) for candidate in candidates])
    return await asyncio.to_thread(_Survey(candidates, names, descriptions, criteria).advice, tokenizer, k)


def words(name: str) -> list[str]:
    """The words of a name, without case."""
    return [word.lower() for word in _WORD.findall(name)]


def _text(candidate: Candidate) -> str:
    return " ".join(candidate.description.split())


class _Survey:
    """The candidates with unit vectors of their names and descriptions, each (candidates, dimensions)."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        names: NDArray[np.float32],
        descriptions: NDArray[np.float32],
        criteria: Criteria,
    ) -> None:
        self.candidates = candidates
        self.names = names
        self.descriptions = descriptions
        self.criteria = criteria
        named: dict[str, set[str]] = defaultdict(set)
        self.servers: dict[str, list[int]] = defaultdict(list)
        for position, candidate in enumerate(candidates):
            named[_text(candidate)].add(candidate.name)
            self.servers[candidate.server].append(position)
        self.shares = {text: len(of) for text, of in named.items()}
        # What is empty or repeated makes candidates similar that are not.
        self.telling = np.array(
            [bool(text := _text(candidate)) and self.shares[text] < criteria.repeated for candidate in candidates], bool
        )

    def advice(self, tokenizer: PromptTokenizer, k: int) -> Advice:
        return Advice(
            candidates=len(self.candidates),
            servers=len(self.servers.keys() - {""}),
            criteria=self.criteria,
            tokens=_tokens(self.candidates, tokenizer, k),
            near_duplicates=tuple(self._near_duplicates()),
            consolidations=tuple(self._consolidations()),
            descriptions=tuple(self._descriptions()),
            collisions=collisions(self.candidates),
            findings=tuple(scan(self.candidates)),
        )

    def _near_duplicates(self) -> list[NearDuplicates]:
        """Groups, the most similar first."""
        rows = np.flatnonzero(self.telling)
        names, descriptions = self.names[rows], self.descriptions[rows]
        # As the names' share is at most a half, only descriptions this similar can do.
        least = 2 * self.criteria.near_duplicate - 1
        found: dict[tuple[int, int], float] = {}
        for start in range(0, len(rows), _ROWS):
            similar = descriptions[start : start + _ROWS] @ descriptions[start:].T
            first, second = np.nonzero(np.triu(similar >= least, 1))
            both = (similar[first, second] + np.einsum("pd,pd->p", names[start + first], names[start + second])) / 2
            for i, j, value in zip(first, second, both, strict=True):
                if value >= self.criteria.near_duplicate:
                    found[int(rows[start + i]), int(rows[start + j])] = float(value)
        groups = _groups(found)
        number_of = {position: number for number, group in enumerate(groups) for position in group}
        similarity = [1.0] * len(groups)
        for (position, _), value in found.items():
            similarity[number_of[position]] = min(value, similarity[number_of[position]])
        duplicates = [NearDuplicates(self._ids(group), value) for group, value in zip(groups, similarity, strict=True)]
        return sorted(duplicates, key=lambda group: (-group.similarity, group.ids))

    def _consolidations(self) -> list[Consolidation]:
        """Largest first."""
        alike: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[tuple[str, int]]] = defaultdict(list)
        for position in map(int, np.flatnonzero(self.telling)):
            candidate = self.candidates[position]
            name = words(candidate.name) if candidate.type == "tool" else []
            for place, word in enumerate(name):
                if len(name) > 1 and word not in _ACTIONS:
                    alike[candidate.server, (*name[:place],), (*name[place + 1 :],)].append((word, position))
        found = []
        for (server, before, after), members in alike.items():
            word_of = {position: word for word, position in members}
            pairs = [(i, j) for i, j in self._similar_pairs(list(word_of)) if word_of[i] != word_of[j]]
            for group in _groups(pairs):
                values = tuple(sorted({word_of[position] for position in group}))
                found.append(Consolidation(server, "_".join([*before, *after]), values, self._ids(group)))
        return sorted(found, key=lambda one: (-len(one.ids), one.server, one.ids))

    def _similar_pairs(self, positions: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Those whose descriptions and parameters are alike."""
        parameters = [{name for name, _ in self.candidates[position].parameters} for position in positions]
        rows = self.descriptions[positions]
        for i, j in np.argwhere(np.triu(rows @ rows.T >= self.criteria.alike, 1)):
            either = len(parameters[i] | parameters[j])
            if not either or len(parameters[i] & parameters[j]) / either >= self.criteria.shared_parameters:
                yield positions[i], positions[j]

    def _descriptions(self) -> Iterator[DescriptionFault]:
        """By id."""
        misleading = dict(self._misleading())
        for position in sorted(range(len(self.candidates)), key=lambda i: self.candidates[i].id):
            candidate = self.candidates[position]
            text = _text(candidate)
            shares = self.shares[text]
            if not text:
                yield DescriptionFault(candidate.id, "empty", "there is none")
            elif shares >= self.criteria.repeated:
                yield DescriptionFault(candidate.id, "repeated", f"{shares} names have the same: {text[:80]!r}")
            elif len(_SAID.findall(text)) < self.criteria.short:
                yield DescriptionFault(candidate.id, "short", f"it is only {text!r}")
            elif position in misleading:
                yield DescriptionFault(candidate.id, "misleading", misleading[position])

    def _misleading(self) -> Iterator[tuple[int, str]]:
        """Positions, and what the description is like instead."""
        criteria = self.criteria
        own = np.einsum("cd,cd->c", self.names, self.descriptions)
        for server, positions in self.servers.items():
            telling = [position for position in positions if self.telling[position]]
            alone = not server or len(telling) < 3
            for place, position in enumerate(telling):
                said = f"its similarity to its name is {own[position]:.2f}"
                if own[position] >= (criteria.far_alone if alone else criteria.far):
                    continue
                if alone:
                    yield position, said
                    continue
                description = self.descriptions[position]
                mean = (float((self.descriptions[telling] @ description).sum()) - 1) / (len(telling) - 1)
                to_names = self.names[telling] @ description
                to_names[place] = -1
                nearest = int(np.argmax(to_names))
                if to_names[nearest] - own[position] >= criteria.nearer:
                    other = self.candidates[telling[nearest]].name
                    yield position, f"{said}, to the name {other!r} {to_names[nearest]:.2f}"
                elif mean < criteria.unlike:
                    yield position, f"{said}, to its server's other descriptions {mean:.2f}"

    def _ids(self, positions: Iterable[int]) -> tuple[str, ...]:
        return tuple(sorted(self.candidates[position].id for position in positions))


def _tokens(candidates: Sequence[Candidate], tokenizer: PromptTokenizer, k: int) -> Tokens:
    texts = [schema(candidate) for candidate in candidates]
    lengths = [
        len(ids) for start in range(0, len(texts), _TEXTS) for ids in tokenizer.texts(texts[start : start + _TEXTS])
    ]
    total, kept = sum(lengths), min(k, len(lengths))
    return Tokens(
        catalogue=total,
        k=k,
        exposed=round(total * kept / max(len(lengths), 1)),
        most=sum(sorted(lengths)[len(lengths) - kept :]),
    )


def schema(candidate: Candidate) -> str:
    """The candidate as the tool that a prompt would hold."""
    return json.dumps(function_tool(candidate, candidate.name), ensure_ascii=False)


def _groups(pairs: Iterable[tuple[int, int]]) -> list[set[int]]:
    """What is connected by pairs."""
    group_of: dict[int, set[int]] = {}
    for pair in pairs:
        less, more = sorted((group_of.setdefault(member, {member}) for member in pair), key=len)
        if less is not more:
            more |= less
            group_of |= dict.fromkeys(less, more)
    return list({id(group): group for group in group_of.values()}.values())
