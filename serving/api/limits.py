"""Bounds on what one request and all requests together may take, and the end of work whose client has left.

Knows bytes, places and connections. Does not know what a decision is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TypeVar

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.types import BusyError, TooLargeError

T = TypeVar("T")

# Weight of the newest duration in the running mean: about the last ten decisions count.
_NEWEST = 0.1
# Digits of a Content-Length that are read: the length of nothing real has more.
_LENGTH_DIGITS = 19


class BodyLimitMiddleware:
    """Refuses a body of more than `limit` bytes: by its declared length at once, a chunked one when it passes."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "")[:_LENGTH_DIGITS]
        if declared.isdecimal() and int(declared) > self._limit:
            raise self._too_large()
        read = 0

        async def counting() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._limit:
                raise self._too_large()
            return message

        await self._app(scope, counting, send)

    def _too_large(self) -> TooLargeError:
        return TooLargeError(f"the body has more than the {self._limit} bytes that this server takes; send less")


class Admission:
    """A bounded number of places for decisions in progress or waiting. Nothing waits for a place."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._taken = 0
        self._mean_s = 0.0

    @contextmanager
    def place(self) -> Iterator[None]:
        """Hold a place.

        Raises:
            BusyError: all are taken. Its `retry_after` is the running mean of the time that a place was held: by
                then about as many places will have become free as there are.
        """
        if self._taken >= self._places:
            raise BusyError(
                f"all {self._places} places for decisions are taken; try again when Retry-After has passed",
                retry_after=self._mean_s,
            )
        self._taken += 1
        start = perf_counter()
        try:
            yield
            held = perf_counter() - start
            self._mean_s = held if not self._mean_s else self._mean_s + _NEWEST * (held - self._mean_s)
        finally:
            self._taken -= 1


async def while_connected(http: Request, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled when the client leaves. The request's body must have been read.

    Raises:
        ClientDisconnect: the client left, and `work` has stopped.
    """
    working = asyncio.current_task()
    left = False

    async def watch() -> None:
        nonlocal left
        while (await http.receive())["type"] != "http.disconnect":
            pass
        left = True
        if working is not None:
            working.cancel()

    watching = asyncio.create_task(watch())
    try:
        return await work
    except asyncio.CancelledError:
        if left and working is not None and not working.uncancel():
            raise ClientDisconnect from None
        raise
    finally:
        watching.cancel()
