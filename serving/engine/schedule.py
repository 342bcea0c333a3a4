"""Which tokens run next: requests in order of arrival, in chunks, several in one forward pass.

Knows jobs and their progress. Does not run anything. A job's prefix (the part not found in the prefix cache)
runs first, then its continuations as branches; both may share a pass with other jobs. A job whose caller has
gone is dropped before its next chunk.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from serving.engine.base import ScoreRequest
from serving.engine.packed import KeyValues, Segment


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


class PrefixCache:
    """Keys and values of sequences that ran, found again by their longest common beginning. Bounded in bytes.

    An entry is never written to again, so any number of jobs may read it at once.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[tuple[str, bytes], tuple[NDArray[np.int64], KeyValues]] = OrderedDict()
        self._bytes = 0

    def longest(self, salt: str, sequence: Sequence[int]) -> tuple[KeyValues | None, int]:
        """The entry of this salt that shares most of its beginning with `sequence`, and how many tokens."""
        wanted = np.asarray(sequence, dtype=np.int64)
        best: tuple[str, bytes] | None = None
        most = 0
        for key, (known, _) in self._entries.items():
            if key[0] != salt:
                continue
            length = min(len(known), len(wanted))
            differs = known[:length] != wanted[:length]
            shared = int(differs.argmax()) if differs.any() else length
            if shared > most:
                best, most = key, shared
        if best is None:
            return None, 0
        self._entries.move_to_end(best)
        return self._entries[best][1], most

    def add(self, salt: str, sequence: Sequence[int], keys: KeyValues) -> None:
        """Keep a finished sequence; the least recently used go where memory runs out."""
        tokens = np.asarray(sequence, dtype=np.int64)
        key = (salt, tokens.tobytes())
        if keys.nbytes > self._max_bytes or key in self._entries:
            return
        self._entries[key] = (tokens, keys)
        self._bytes += keys.nbytes
        while self._bytes > self._max_bytes:
            _, (_, dropped) = self._entries.popitem(last=False)
            self._bytes -= dropped.nbytes

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
