"""Names for surfaces that restrict them: `[a-zA-Z0-9_-]{1,64}`, as OpenAI, Anthropic and MCP hosts ask.

Knows candidates. A name is for showing only: it is mapped back by its position, never parsed.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence

from prompts import NONE_NAME
from serving.types import Candidate

NAME_CHARACTERS = 64
# The tool's own name says more than its server's, so a long server name gives way.
_SERVER_CHARACTERS = 24
_OTHER = re.compile(r"[^a-zA-Z0-9_-]+")


def surface_names(candidates: Sequence[Candidate]) -> tuple[str, ...]:
    """One name for each candidate, in their order: `server__tool`, or the name alone where there is no server.

    All are different from each other and from what a generating adapter writes for none. Where two candidates would
    have the same name, each of them carries a short hash of its id, so neither name depends on their order.
    """
    plain = [_readable(candidate) for candidate in candidates]
    count = Counter([*plain, NONE_NAME])
    taken = set(count)
    names: list[str] = []
    for candidate, name in zip(candidates, plain, strict=True):
        if count[name] == 1 and len(name) <= NAME_CHARACTERS and name:
            names.append(name)
            continue
        names.append(_hashed(name or candidate.type, candidate.id, taken))
        taken.add(names[-1])
    return tuple(names)


def _readable(candidate: Candidate) -> str:
    """The name without characters that surfaces refuse; empty where none is left."""
    name = _OTHER.sub("_", candidate.name).strip("_")
    server = _OTHER.sub("_", candidate.server).strip("_")[:_SERVER_CHARACTERS]
    return f"{server}__{name}" if server and name and not name.startswith(server) else name


def _hashed(name: str, candidate_id: str, taken: set[str]) -> str:
    """`name` cut to make room for a hash of the id, as short as is unique."""
    for size in range(3, 32):
        digest = hashlib.blake2b(candidate_id.encode("utf-8", "surrogatepass"), digest_size=size).hexdigest()
        hashed = f"{name[: NAME_CHARACTERS - 1 - len(digest)]}_{digest}"
        if hashed not in taken:
            return hashed
    raise ValueError(f"the id {candidate_id[:100]!r} is shared by too many candidates to name them; ids must be unique")
