"""What a prefilter and its rankers are, and what text is searched for.

Knows conversations. Rankers only score rows for a search text; none of them knows k, pins or requests.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from prompts.question import Candidate, Message, query_position
from serving.prefilter.pool import Searchable
from serving.types import PrefilterReport, RouteRequest

if TYPE_CHECKING:
    from serving.catalog.catalogs import Catalogs

# Characters of each message that are searched for; measured, twice as many found nothing further.
QUERY_CHARACTERS = 500
OBSERVATION_CHARACTERS = 300
EARLIER_CHARACTERS = 200
# What an earlier message counts beside query and observation, which count 1: of .1, .15, .2 and .25 the one that puts
# most right candidates first, and loses none among the first ten (four public sets, trajectories, agent teams).
EARLIER_WEIGHT = 0.1
# Sub-tasks that a query is taken apart into, and where: behind the end of a sentence.
SENTENCES = 8
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？；])|\n+")  # noqa: RUF001
# Names of called tools in one message, and characters of each: bounds on what a caller can make us read.
NAMES = 8
NAME_CHARACTERS = 64


@dataclass(frozen=True, slots=True)
class SearchText:
    """What is searched for.

    Attributes:
        parts: texts and their weights, the most important first, none of them empty.
        subtasks: what the task consists of, for a ranker that looks for each; empty where it is one.
    """

    parts: tuple[tuple[str, float], ...]
    subtasks: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """All parts as one text, for a ranker that reads only the beginning."""
        return "\n".join(text for text, _ in self.parts)

    @property
    def voices(self) -> tuple[tuple[str, float], ...]:
        """At most three texts and their weights: query, observation, and the history as one.

        For a ranker that reads whole texts: read as one, a short query is lost among what was said before it.
        """
        whole = [part for part in self.parts if part[1] == 1.0]
        earlier = [part for part in self.parts if part[1] != 1.0]
        if earlier:
            whole.append(("\n".join(text for text, _ in earlier), sum(weight for _, weight in earlier)))
        return tuple(whole) or (("", 1.0),)


def search_text(messages: Sequence[Message], history_messages: int, subtasks: Sequence[str] = ()) -> SearchText:
    """Query, observation, then at most `history_messages` of the history, newest first.

    A system message says how to act, not what is needed: it is searched for only where it is the observation. Without
    `subtasks`, they are the sentences of the query.
    """
    query, last = query_position(messages), len(messages) - 1
    parts = [] if query is None else [(_readable(messages[query], QUERY_CHARACTERS), 1.0)]
    if query != last:
        parts.append((_readable(messages[last], OBSERVATION_CHARACTERS), 1.0))
    history = [m for i, m in enumerate(messages) if i not in (query, last) and m.role != "system"]
    for message in history[::-1][:history_messages]:
        parts.append((_readable(message, EARLIER_CHARACTERS), EARLIER_WEIGHT))
    if not subtasks and query is not None:
        sentences = _SENTENCE_END.split(_ends(messages[query].content, QUERY_CHARACTERS))
        subtasks = sentences[:SENTENCES] if len(sentences := [s for s in sentences if s.strip()]) > 1 else ()
    tasks = (" ".join(_ends(task, QUERY_CHARACTERS).split()) for task in subtasks)
    return SearchText(tuple((text, weight) for text, weight in parts if text), tuple(task for task in tasks if task))


def _readable(message: Message, limit: int) -> str:
    """Names of the tools that were called or that answered, and both ends of the content."""
    names = [message.name or "", *(call.name for call in message.tool_calls[:NAMES])]
    return " ".join(" ".join([*(name[:NAME_CHARACTERS] for name in names), _ends(message.content, limit)]).split())


def _ends(text: str, limit: int) -> str:
    """The text, or both ends of a longer one."""
    return text if len(text) <= limit else f"{text[: limit // 2]} ... {text[-limit // 2 :]}"


Allowed = NDArray[np.bool_] | None
"""Which rows may be found; None for all of them."""


def within(scores: NDArray[np.float32], allowed: Allowed) -> NDArray[np.float32]:
    """Scores of allowed rows; those of the others are 0, as if nothing spoke for them.

    Rows that came after `allowed` was made are left out: a catalogue grows while it is searched.
    """
    return scores if allowed is None else np.where(allowed, scores[: len(allowed)], np.float32(0))


def best(scores: NDArray[np.floating], k: int, pinned: Sequence[int] = ()) -> NDArray[np.intp]:
    """The `k` best rows, best first, `pinned` among them whatever they score. Of equal scores the first row wins."""
    wanted = scores.astype(np.float64)
    wanted[list(pinned)] = np.inf
    if len(wanted) > k:
        last = np.partition(wanted, len(wanted) - k)[len(wanted) - k]
        above, equal = np.flatnonzero(wanted > last), np.flatnonzero(wanted == last)
        rows = np.concatenate([above, equal[: k - len(above)]])
    else:
        rows = np.arange(len(wanted))
    return rows[np.lexsort((rows, -scores[rows]))]


@dataclass(frozen=True, slots=True)
class Ranking:
    """Scores of rows.

    Attributes:
        scores: float array (rows,), higher is better; 0 or less where nothing speaks for a candidate.
        embedding_ms: how long the query, and candidates not seen before, took to embed.
    """

    scores: NDArray[np.floating]
    embedding_ms: float = 0.0


class Ranker(Protocol):
    """Scores a pool for a search text. Implementations: BM25, dense, and the fusion of others."""

    @property
    def name(self) -> str:
        """The method's name, as profiles and answers show it."""
        ...

    async def start(self) -> None:
        """Load and warm up. Raises EngineUnavailableError where that fails."""
        ...

    async def rank(self, text: SearchText, pool: Searchable, allowed: Allowed = None) -> Ranking:
        """Score every row of what is searched, which holds at least one; of those not allowed nothing shows."""
        ...

    async def close(self) -> None:
        """Give back what is held."""
        ...


@dataclass(frozen=True, slots=True)
class Kept:
    """What passed.

    Attributes:
        candidates: best first; in the caller's order where nothing was filtered.
        scores: the ranker's score of each; all 0 where nothing was filtered.
        report: what was done, for the answer.
        embedding_ms: the part of the time that went into embedding the query and candidates not seen before.
    """

    candidates: tuple[Candidate, ...]
    scores: Sequence[float]
    report: PrefilterReport
    embedding_ms: float = 0.0

    @property
    def filtered(self) -> bool:
        """Whether a ranker scored the candidates."""
        return self.report.method != "none"


class Prefilter(Protocol):
    """Bounds what may be chosen to at most `request.k` candidates (or the profile's k), pinned ones included."""

    catalogs: Catalogs | None
    """The catalogues that a request may name; None where there are none."""

    @property
    def methods(self) -> Collection[str]:
        """The methods that a request may name."""
        ...

    async def start(self) -> None:
        """Load and warm up. Raises EngineUnavailableError where that fails."""
        ...

    async def select(self, request: RouteRequest) -> Kept:
        """Which candidates pass.

        Raises:
            InvalidRequestError: more candidates are pinned than may pass, or a method is unknown.
            NotFoundError: there is no such catalogue.
            EngineTimeoutError: the request's deadline passed.
        """
        ...

    async def search(self, request: RouteRequest) -> Kept:
        """The best of those that are not pinned, at most `k`, ranked however few they are.

        What nothing speaks for is left out. Raises as `select`, but never because of what is pinned.
        """
        ...

    async def pinned(self, request: RouteRequest) -> tuple[Candidate, ...]:
        """The candidates that always pass for this request. Raises NotFoundError as `select`."""
        ...

    async def close(self) -> None:
        """Give back what is held."""
        ...
