"""Bounds on one request: its bytes and its time, and the end of work whose client has left.

Knows headers and connections. Does not know what a decision is; how many there may be is `admission.py`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable
from typing import TypeVar

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.types import InvalidRequestError, TooLargeError

T = TypeVar("T")

TIMEOUT_HEADER = "x-request-timeout"
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


def timeout_of(headers: Headers, most: float) -> float:
    """Seconds that the caller will wait for its answer, at most `most`: what it says in `x-request-timeout`, or `most`.

    Raises:
        InvalidRequestError: it says something else than a number of seconds.
    """
    said = headers.get(TIMEOUT_HEADER)
    if said is None:
        return most
    try:
        seconds = float(said)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise InvalidRequestError(
            f"the header {TIMEOUT_HEADER} is {said[:40]!r}; it must be a number of seconds above 0, such as 2.5",
            TIMEOUT_HEADER,
        )
    return min(seconds, most)


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
