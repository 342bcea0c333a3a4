"""Names for surfaces that restrict them: `[a-zA-Z0-9_-]{1,64}`, as OpenAI, Anthropic and MCP hosts ask.

Knows candidates. A name is never parsed: it is mapped back by its position, or looked up.
"""

from __future__ import annotations

import difflib
import hashlib
import heapq
import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Sequence
from typing import Protocol

from prompts import NONE_NAME
from serving.types import Candidate, InvalidRequestError, NotFoundError

NAME_CHARACTERS = 64
# The tool's own name says more than its server's, so a long server name gives way.
_SERVER_CHARACTERS = 24
_OTHER = re.compile(r"[^a-zA-Z0-9_-]+")
# Bytes of a hash. In a catalogue, whose servers are strangers to each other, none of them may find an id that hashes
# as another's; in a prompt each digit costs a token.
_PROMPT_DIGEST = 3
_CATALOG_DIGEST = 8
# An error names at most this many choices, and quotes this much of what was asked.
_CHOICES = 5
_QUOTED_CHARACTERS = 100
# Names that share the most pairs and triples of characters with what was asked are compared with care.
_COMPARED = 50


class Named(Protocol):
    """What a name is made of."""

    @property
    def id(self) -> str:
        """Opaque."""

    @property
    def name(self) -> str:
        """The name by itself."""

    @property
    def server(self) -> str:
        """The server; empty where there is none."""

    @property
    def type(self) -> str:
        """Tool, agent or skill."""


def surface_names(candidates: Sequence[Named], digest_bytes: int = _PROMPT_DIGEST) -> tuple[str, ...]:
    """One name for each candidate, in their order: `server__tool`, or the name alone where there is no server.

    All are different from each other and from what a generating adapter writes for none. Where two candidates would
    have the same name, each of them carries a short hash of its id, so neither name depends on their order.
    """
    plain = [_readable(candidate) for candidate in candidates]
    count = Counter([*plain, NONE_NAME])
    taken = set(count)
    names = [name if count[name] == 1 and 0 < len(name) <= NAME_CHARACTERS else "" for name in plain]
    # By id, so that where two hashes are the same their order in the list does not say which one grows.
    for position in sorted((i for i, name in enumerate(names) if not name), key=lambda i: candidates[i].id):
        candidate = candidates[position]
        names[position] = _hashed(plain[position] or candidate.type, candidate.id, taken, digest_bytes)
        taken.add(names[position])
    return tuple(names)


def collisions(candidates: Sequence[Candidate]) -> dict[str, tuple[str, ...]]:
    """The names that several candidates would have without a hash, each with their ids in order."""
    alike = _grouped((_readable(candidate), candidate.id) for candidate in candidates)
    return {name: tuple(sorted(ids)) for name, ids in sorted(alike.items()) if name and len(ids) > 1}


class CatalogNames:
    """The surface names of a catalogue, kept up while it changes: what a candidate is called depends on no request.

    They are those of `Names` over the whole catalogue.
    """

    def __init__(self) -> None:
        self._alike = Counter([NONE_NAME])

    def add(self, named: Named) -> None:
        """One more candidate."""
        self._alike[_readable(named)] += 1

    def remove(self, named: Named) -> None:
        """One candidate less, which was added."""
        name = _readable(named)
        self._alike[name] -= 1
        if not self._alike[name]:
            del self._alike[name]

    def of(self, named: Named) -> str:
        """The name of a candidate that was added."""
        name = _readable(named)
        if self._alike[name] <= 1 and 0 < len(name) <= NAME_CHARACTERS:
            return name
        return _hashed(name or named.type, named.id, self._alike, _CATALOG_DIGEST)


class Names:
    """The surface names of a catalogue's candidates, and whom a text may name.

    Attributes:
        surface: surface name by id.
    """

    def __init__(self, candidates: Sequence[Named]) -> None:
        names = surface_names(candidates, _CATALOG_DIGEST)
        self.surface = {candidate.id: name for candidate, name in zip(candidates, names, strict=True)}
        self._ids = {name: id for id, name in self.surface.items()}
        self._bare = _grouped((candidate.name, candidate.id) for candidate in candidates)
        self._folded = _grouped(
            (text.casefold(), candidate.id)
            for candidate, name in zip(candidates, names, strict=True)
            for text in {candidate.id, name, candidate.name}
        )

    def resolve(self, text: str) -> str:
        """The id of the candidate that `text` names.

        That is an id; else a surface name; else a bare name that only one candidate has; else any of these in another
        case, where only one candidate is meant.

        Raises:
            InvalidRequestError: it may be several; the message tells their surface names.
            NotFoundError: it is none; the message tells the nearest names.
        """
        if text in self.surface:
            return text
        if text in self._ids:
            return self._ids[text]
        asked = repr(text[:_QUOTED_CHARACTERS])
        ids = self._bare.get(text) or self._folded.get(text.casefold())
        if ids is None:
            nearest = self.nearest(text[:_QUOTED_CHARACTERS])
            hint = f"; the nearest names are {', '.join(nearest)}" if nearest else ""
            raise NotFoundError(f"no candidate is named {asked}{hint}")
        choices = sorted({self.surface[id] for id in ids})
        if len(choices) > 1:
            more = f" and {len(choices) - _CHOICES} more" if len(choices) > _CHOICES else ""
            raise InvalidRequestError(f"{asked} may be {', '.join(choices[:_CHOICES])}{more}; say which")
        return ids[0]

    def nearest(self, text: str) -> list[str]:
        """Surface names that are like `text`, the likest first."""
        folded = text.casefold()
        pieces = {folded[i : i + size] for size in (2, 3) for i in range(len(folded) - size + 1)}

        def likeness(name: str) -> tuple[int, int]:
            lower = name.lower()
            return sum(piece in lower for piece in pieces), -abs(len(name) - len(text))

        near = heapq.nlargest(_COMPARED, self._ids, key=likeness)
        by_folded = {name.lower(): name for name in near}
        matches = difflib.get_close_matches(folded, by_folded, n=_CHOICES, cutoff=0.5)
        return [by_folded[match] for match in matches]


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return dict(groups)


def _readable(candidate: Named) -> str:
    """The name without characters that surfaces refuse; empty where none is left."""
    name = _OTHER.sub("_", candidate.name).strip("_")
    server = _OTHER.sub("_", candidate.server).strip("_")[:_SERVER_CHARACTERS]
    return f"{server}__{name}" if server and name and not name.startswith(server) else name


def _hashed(name: str, candidate_id: str, taken: Container[str], digest_bytes: int) -> str:
    """`name` cut to make room for a hash of the id, of so many bytes or as many more as make it unique."""
    for size in range(digest_bytes, 32):
        digest = hashlib.blake2b(candidate_id.encode("utf-8", "surrogatepass"), digest_size=size).hexdigest()
        hashed = f"{name[: NAME_CHARACTERS - 1 - len(digest)]}_{digest}"
        if hashed not in taken:
            return hashed
    raise ValueError(f"the id {candidate_id[:100]!r} is shared by too many candidates to name them; ids must be unique")
