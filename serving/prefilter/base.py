"""The prefilter's policy: what text is searched for, what always passes, when nothing is filtered.

Knows requests and rankers. The rankers (lexical, dense, and their fusion) only score a pool of candidates for a
search text; none of them knows k, pins or requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from prompts.question import Candidate, Message, query_position
from serving.cache import LRU
from serving.config import PrefilterConfig
from serving.types import EngineTimeoutError, InvalidRequestError, PrefilterReport, RouteRequest

# Characters of each message that are searched for; measured, twice as many found nothing further. An embedder reads
# only the beginning of all of them, and so loses the oldest messages first.
QUERY_CHARACTERS = 500
OBSERVATION_CHARACTERS = 300
EARLIER_CHARACTERS = 200
# What an earlier message counts beside query and observation, which count 1.
EARLIER_WEIGHT = 0.25
# Candidates in all remembered pools together.
POOLED_CANDIDATES = 50_000
# Names of called tools in one message, and characters of each: bounds on what a caller can make us read.
NAMES = 8
NAME_CHARACTERS = 64


@dataclass(frozen=True, slots=True)
class SearchText:
    """What is searched for: texts and their weights, the most important first, none of them empty."""

    parts: tuple[tuple[str, float], ...]

    @property
    def text(self) -> str:
        """All parts as one text, for a ranker that reads only the beginning."""
        return "\n".join(text for text, _ in self.parts)


def search_text(messages: Sequence[Message], history_messages: int) -> SearchText:
    """Query, observation, then at most `history_messages` of the history, newest first.

    A system message says how to act, not what is needed: it is searched for only where it is the observation.
    """
    query, last = query_position(messages), len(messages) - 1
    parts = [] if query is None else [(_readable(messages[query], QUERY_CHARACTERS), 1.0)]
    if query != last:
        parts.append((_readable(messages[last], OBSERVATION_CHARACTERS), 1.0))
    history = [m for i, m in enumerate(messages) if i not in (query, last) and m.role != "system"]
    for message in history[::-1][:history_messages]:
        parts.append((_readable(message, EARLIER_CHARACTERS), EARLIER_WEIGHT))
    return SearchText(tuple((text, weight) for text, weight in parts if text))


def _readable(message: Message, limit: int) -> str:
    """Names of the tools that were called or that answered, and both ends of the content."""
    content = message.content
    if len(content) > limit:
        content = f"{content[: limit // 2]} ... {content[-limit // 2 :]}"
    names = [message.name or "", *(call.name for call in message.tool_calls[:NAMES])]
    return " ".join(" ".join([*(name[:NAME_CHARACTERS] for name in names), content]).split())


@dataclass(frozen=True, slots=True)
class Pool:
    """Candidates in an order of their own, by content and then by id, so that no ranking depends on the caller's.

    Attributes:
        candidates: in that order.
        positions: of each, where the caller had it.
        digests: the content hash of each. Together they say which pool this is, in whatever order it came.
    """

    candidates: tuple[Candidate, ...]
    positions: tuple[int, ...]
    digests: tuple[str, ...]

    @classmethod
    def of(cls, candidates: Sequence[Candidate]) -> Pool:
        """The pool of these candidates."""
        order = sorted(range(len(candidates)), key=lambda i: (candidates[i].content_hash, candidates[i].id))
        ordered = tuple(candidates[i] for i in order)
        return cls(ordered, tuple(order), tuple(candidate.content_hash for candidate in ordered))


@dataclass(frozen=True, slots=True)
class Ranking:
    """Scores of a pool's candidates.

    Attributes:
        scores: float array (candidates,), higher is better; 0 or less where nothing speaks for a candidate.
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

    async def rank(self, text: SearchText, pool: Pool) -> Ranking:
        """Score every candidate of a pool, which holds at least one."""
        ...

    async def close(self) -> None:
        """Give back what is held."""
        ...


@dataclass(frozen=True, slots=True)
class Kept:
    """What passed.

    Attributes:
        positions: positions in `request.candidates`, best first.
        scores: the ranker's score of each; all 0 where nothing was filtered.
        report: what was done, for the answer.
        embedding_ms: the part of the time that went into embedding the query and candidates not seen before.
    """

    positions: Sequence[int]
    scores: Sequence[float]
    report: PrefilterReport
    embedding_ms: float = 0.0

    @property
    def filtered(self) -> bool:
        """Whether a ranker scored the candidates."""
        return self.report.method != "none"


class Prefilter(Protocol):
    """Bounds a request's candidates to at most `request.k` (or the profile's k), pinned ones included."""

    async def start(self) -> None:
        """Load and warm up. Raises EngineUnavailableError where that fails."""
        ...

    async def select(self, request: RouteRequest) -> Kept:
        """Which candidates pass.

        Raises:
            InvalidRequestError: more candidates are pinned than may pass.
            EngineTimeoutError: the request's deadline passed.
        """
        ...

    async def close(self) -> None:
        """Give back what is held."""
        ...


class RankingPrefilter:
    """Passes the pinned candidates and the best of the others by one ranker. A list of at most k passes whole."""

    def __init__(self, ranker: Ranker, config: PrefilterConfig) -> None:
        self.ranker = ranker
        self._config = config
        self._pools: LRU[tuple[Candidate, ...], Pool] = LRU(POOLED_CANDIDATES, lambda pool: len(pool.candidates))

    @property
    def history_messages(self) -> int:
        """How many messages before query and observation are searched for."""
        return self._config.history_messages

    async def start(self) -> None:
        """See `Prefilter.start`."""
        await self.ranker.start()

    async def close(self) -> None:
        """See `Prefilter.close`."""
        await self.ranker.close()

    async def select(self, request: RouteRequest) -> Kept:
        """See `Prefilter.select`."""
        k = self._config.k if request.k is None else request.k
        considered = len(request.candidates)
        if considered <= k:
            return Kept(range(considered), [0.0] * considered, PrefilterReport("none", considered, considered))
        pinned = {i for i, candidate in enumerate(request.candidates) if candidate.id in request.pinned}
        if len(pinned) > k:
            raise InvalidRequestError(
                f"{len(pinned)} candidates are pinned, but at most k = {k} may pass; pin fewer, or raise k", "k"
            )
        try:
            async with asyncio.timeout(request.remaining()):
                pool = await self._pool(tuple(request.candidates))
                text = search_text(request.messages, self.history_messages)
                ranking = await self.ranker.rank(text, pool)
        except TimeoutError as error:
            raise EngineTimeoutError(
                f"the deadline passed while {considered} candidates were searched; send fewer, or allow more time"
            ) from error
        # Equal scores stay in the pool's own order.
        ordered = np.argsort(-ranking.scores, kind="stable")
        positions = [pool.positions[i] for i in ordered]
        others = [position for position in positions if position not in pinned]
        passing = pinned.union(others[: k - len(pinned)])
        kept = [(position, float(ranking.scores[i])) for position, i in zip(positions, ordered, strict=True)
                if position in passing]  # fmt: skip
        return Kept(
            positions=[position for position, _ in kept],
            scores=[score for _, score in kept],
            report=PrefilterReport(self.ranker.name, considered, len(kept)),
            embedding_ms=ranking.embedding_ms,
        )

    async def _pool(self, candidates: tuple[Candidate, ...]) -> Pool:
        """Their pool, remembered: an agent sends the same tools again and again."""
        pool = self._pools.get(candidates)
        if pool is None:
            pool = await asyncio.to_thread(Pool.of, candidates)
            self._pools.put(candidates, pool)
        return pool
