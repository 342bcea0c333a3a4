"""Asks a running server for more than it can do: `light-router bench --load URL`.

Knows the HTTP surface only. First it measures the server's capacity, with as many callers as make it busy, each asking
again as soon as it is answered. Then it sends questions at a fixed multiple of that rate, whether they are answered or
not, and last it looks how soon the server answers again. Every question is new, so that no answer comes from a cache.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np

from serving.api.limits import TIMEOUT_HEADER
from serving.bench import SHORT, Numbers, percentile, query, tools

# Callers that measure the capacity, and for how long.
_CALLERS, _CAPACITY_S = 16, 10.0
# Requests on their way at once; beyond it the client itself would be what is measured.
_MOST_ON_THEIR_WAY = 2_000
_SAMPLE_S, _PROBE_S = 1.0, 0.1
_OK, _BUSY, _LATE, _GONE = 200, 429, 504, 0


@dataclass
class Answers:
    """What came back: seconds by status; status 0 where the connection failed."""

    seconds: dict[int, list[float]] = field(default_factory=dict)
    resident: list[tuple[float, float]] = field(default_factory=list)
    """Seconds and MiB."""
    offered_per_s: float = 0.0
    """Questions a second that were really sent: a client may be slower than the server it asks."""

    def add(self, status: int, seconds: float) -> None:
        """One answer."""
        self.seconds.setdefault(status, []).append(seconds)


class Load:
    """One run against one server.

    Args:
        url: of the server.
        deadline_s: what every question allows.
        key: the server's, where it asks for one.
    """

    def __init__(self, url: str, deadline_s: float, key: str | None = None) -> None:
        headers = {TIMEOUT_HEADER: str(deadline_s)} | ({"authorization": f"Bearer {key}"} if key else {})
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=_MOST_ON_THEIR_WAY)
        self._client = httpx.AsyncClient(base_url=url, headers=headers, timeout=2 * deadline_s, limits=limits)
        self._deadline_s = deadline_s
        self._candidates = tools(SHORT)
        # Other questions than those of an earlier run, which the server may remember.
        self._asked = secrets.randbits(48)
        self._left: set[asyncio.Task[None]] = set()

    async def run(self, seconds: float, factor: float) -> Numbers:
        """Capacity, overload and recovery; see `numbers`."""
        async with self._client:
            capacity = await self._capacity()
            answers = await self._overload(seconds, capacity * factor)
            recovery_s = await self._recovery()  # and with it all answers
        return numbers(answers, self._deadline_s) | {"capacity_per_s": capacity, "recovery_s": recovery_s}

    async def _ask(self) -> tuple[int, float]:
        self._asked += 1
        body: dict[str, Any] = {"query": query(self._asked), "candidates": self._candidates, "top": 0}
        started = time.perf_counter()
        try:
            status = (await self._client.post("/v1/route", json=body)).status_code
        except httpx.TransportError:
            status = _GONE
        return status, time.perf_counter() - started

    async def _capacity(self) -> float:
        """Answers a second."""
        await self._ask()
        until = time.perf_counter() + _CAPACITY_S
        answered = 0

        async def caller() -> None:
            nonlocal answered
            while time.perf_counter() < until:
                status, _ = await self._ask()
                answered += status == _OK

        started = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(_CALLERS)))
        if not answered:
            raise ValueError("the server answered nothing; is it ready, and does it ask for a key?")
        return answered / (time.perf_counter() - started)

    async def _overload(self, seconds: float, rate: float) -> Answers:
        """So many questions a second."""
        answers = Answers()
        on_their_way: set[asyncio.Task[None]] = set()

        async def ask() -> None:
            answers.add(*await self._ask())

        sampling = asyncio.create_task(self._sample(answers))
        started = time.perf_counter()
        number = 0
        while (now := time.perf_counter()) < started + seconds:
            await asyncio.sleep(max(started + number / rate - now, 0))
            number += 1
            if len(on_their_way) < _MOST_ON_THEIR_WAY:
                task = asyncio.create_task(ask())
                on_their_way.add(task)
                task.add_done_callback(on_their_way.discard)
        answers.offered_per_s = number / (time.perf_counter() - started)
        sampling.cancel()
        self._left = on_their_way.copy()
        return answers

    async def _sample(self, answers: Answers) -> None:
        while True:
            answers.resident.append((time.perf_counter(), await self._resident_mb()))
            await asyncio.sleep(_SAMPLE_S)

    async def _resident_mb(self) -> float:
        text = (await self._client.get("/metrics")).text
        line = next(line for line in text.splitlines() if line.startswith("process_resident_memory_bytes "))
        return float(line.split()[1]) / 2**20

    async def _recovery(self) -> float:
        """Seconds from the last question until one more finds a place; and everyone's answer is waited for."""
        started = time.perf_counter()
        while (await self._ask())[0] != _OK:  # noqa: ASYNC110  (the server tells nobody)
            await asyncio.sleep(_PROBE_S)
        recovered = time.perf_counter() - started
        await asyncio.gather(*self._left)
        return recovered


def numbers(answers: Answers, deadline_s: float) -> Numbers:
    """Counts by status, the 99th percentile of refusals, accepted questions within their deadline, memory's slope."""
    counts = Counter({status: len(times) for status, times in answers.seconds.items()})
    accepted = counts[_OK] + counts[_LATE]
    in_time = sum(seconds <= deadline_s for seconds in answers.seconds.get(_OK, ()))
    found = {"offered_per_s": answers.offered_per_s}
    found |= {f"status_{status or 'none'}": float(count) for status, count in sorted(counts.items())}
    if refusals := answers.seconds.get(_BUSY):
        found |= {f"refused_ms_p{p}": percentile(refusals, p / 100) * 1e3 for p in (50, 99)}
    if accepted:
        found["accepted_in_time_ratio"] = in_time / accepted
        found["late_ratio"] = counts[_LATE] / accepted
    times, resident = np.array(answers.resident).T
    found["rss_mb"] = float(resident[-1])
    found["rss_slope_mb_per_minute"] = float(np.polyfit(times - times[0], resident, 1)[0]) * 60
    return found
