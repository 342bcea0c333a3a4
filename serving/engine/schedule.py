"""Which tokens run next: requests in order of arrival, in chunks, several in one forward pass.

Knows jobs and their progress. Does not run anything. A job's prefix (the part not found in the prefix cache)
runs first, then its continuations as branches; both may share a pass with other jobs. A job whose caller has
gone is dropped before its next chunk.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from serving.engine.base import ScoreRequest
from serving.engine.packed import KeyValues, Segment

# Tokens that are looked up at once; as many as in vLLM. A shorter common beginning is not worth copying.
BLOCK = 16
_Key = tuple[str, bytes]


@dataclass(eq=False)
class Job:
    """One ScoreRequest on its way.

    `sequence` is what runs causally and is cached: the prefix, with the continuation too where there is only one
    (then it needs no branch, and any length of it runs in chunks). `branches` are the continuations otherwise.
    """

    request: ScoreRequest
    sequence: Sequence[int]
    branches: Sequence[Sequence[int]]
    logits: NDArray[np.float64]
    mass: NDArray[np.float64]
    keys: KeyValues | None = None
    done: int = 0
    cached: int = 0
    branches_done: int = 0
    cancelled: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def of(cls, request: ScoreRequest) -> Job:
        """A job that has not begun."""
        single = len(request.continuations) == 1
        rows = len(request.continuations)
        return cls(
            request=request,
            sequence=[*request.prefix, *request.continuations[0]] if single else request.prefix,
            branches=[] if single else request.continuations,
            logits=np.zeros((rows, len(request.labels))),
            mass=np.zeros(rows),
        )

    @property
    def finished(self) -> bool:
        """Everything ran."""
        return self.done == len(self.sequence) and self.branches_done == len(self.branches)


@dataclass(frozen=True, slots=True)
class Read:
    """Where a pass's hidden states are to be read: row position -> the job's continuation."""

    position: int
    job: Job
    continuation: int


@dataclass(frozen=True, slots=True)
class Pass:
    """The segments of one forward pass and what to read from it."""

    segments: Sequence[Segment]
    reads: Sequence[Read]


def next_pass(jobs: Sequence[Job], chunk_tokens: int) -> Pass:
    """Fill one pass of about `chunk_tokens` from jobs in order, and note their progress.

    A branch is never split, so a pass can be longer than `chunk_tokens` by one branch that is itself longer.
    Every job must have its keys.
    """
    segments: list[Segment] = []
    reads: list[Read] = []
    used = 0
    for job in jobs:
        room = chunk_tokens - used
        if room <= 0:
            break
        if job.keys is None:
            raise ValueError("a job without keys cannot run")
        if job.done < len(job.sequence):
            tokens = job.sequence[job.done : job.done + room]
            segments.append(Segment(tokens, job.keys, job.done))
            job.done += len(tokens)
            used += len(tokens)
            if job.done == len(job.sequence) and not job.branches:
                reads.append(Read(used - 1, job, 0))
        if job.done == len(job.sequence) and job.branches_done < len(job.branches):
            first = job.branches_done
            lengths: list[int] = []
            for branch in job.branches[first:]:
                if used + sum(lengths) + len(branch) > chunk_tokens and (lengths or segments):
                    break
                lengths.append(len(branch))
                reads.append(Read(used + sum(lengths) - 1, job, job.branches_done))
                job.branches_done += 1
            if lengths:
                tokens = [token for branch in job.branches[first : job.branches_done] for token in branch]
                segments.append(Segment(tokens, job.keys, len(job.sequence), lengths))
                used += len(tokens)
    return Pass(segments, reads)


def _beginnings(salt: str, tokens: NDArray[np.int64]) -> Iterator[bytes]:
    """A hash of the first block, of the first two, and so on, under this salt."""
    digest = hashlib.blake2b(hashlib.blake2b(salt.encode()).digest(), digest_size=16)
    for end in range(BLOCK, len(tokens) + 1, BLOCK):
        digest.update(tokens[end - BLOCK : end].tobytes())
        yield digest.digest()


class PrefixCache:
    """Keys and values of sequences that ran, found again by their longest common beginning. Bounded in bytes.

    Whole blocks of BLOCK tokens are looked up by the hash of everything before their end, and compared no further than
    in the last sequence that has as many; so finding takes no longer for many sequences than for few. An entry is never
    written to again, so any number of jobs may read it at once.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[_Key, tuple[NDArray[np.int64], KeyValues]] = OrderedDict()
        self._last: dict[bytes, _Key] = {}
        """The entry that was last used, by the hash of each of its beginnings."""
        self._bytes = 0

    def longest(self, salt: str, sequence: Sequence[int]) -> tuple[KeyValues | None, int]:
        """The entry of this salt that shares most of its beginning with `sequence`, and how many tokens.

        Of entries that share as many whole blocks it is the last that was used. Less than one block is not looked for.
        """
        wanted = np.asarray(sequence, dtype=np.int64)
        found: _Key | None = None
        for beginning in _beginnings(salt, wanted):
            if beginning not in self._last:
                break
            found = self._last[beginning]
        if found is None:
            return None, 0
        known, keys = self._entries[found]
        self._use(found)
        length = min(len(known), len(wanted))
        differs = known[:length] != wanted[:length]
        return keys, int(differs.argmax()) if differs.any() else length

    def add(self, salt: str, sequence: Sequence[int], keys: KeyValues) -> None:
        """Keep a finished sequence; the least recently used go where memory runs out."""
        tokens = np.asarray(sequence, dtype=np.int64)
        key = (salt, tokens.tobytes())
        if keys.nbytes > self._max_bytes or key in self._entries:
            return
        self._entries[key] = (tokens, keys)
        self._bytes += keys.nbytes
        self._use(key)
        while self._bytes > self._max_bytes:
            gone, (tokens, dropped) = self._entries.popitem(last=False)
            self._bytes -= dropped.nbytes
            for beginning in _beginnings(gone[0], tokens):
                if self._last.get(beginning) == gone:
                    del self._last[beginning]

    def _use(self, key: _Key) -> None:
        self._entries.move_to_end(key)
        self._last.update(dict.fromkeys(_beginnings(key[0], self._entries[key][0]), key))

    def begin(self, job: Job, allocate: Callable[[int], KeyValues]) -> None:
        """Give a job its keys, with as much of its sequence already in place as the cache knows."""
        found, shared = self.longest(job.request.cache_salt, job.sequence)
        if not job.branches:
            shared = min(shared, len(job.sequence) - 1)  # its last token is read, so it must run
        if found is not None and shared == len(job.sequence):
            job.keys = found
        else:
            job.keys = allocate(len(job.sequence))
            if found is not None and shared:
                job.keys.copy_from(found, shared)
        job.done = job.cached = shared
