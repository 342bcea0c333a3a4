"""Connections to other servers for requests that may be left at any moment.

Knows httpx. Does not know who is asked, or what.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

CONNECT_S = 5.0
"""The longest that a connection may take to open."""


class LeavableTransport(httpx.AsyncBaseTransport):
    """httpx's own transport, over which a request may be cancelled without the loss of its connection.

    httpcore 1.0 forgets a connection whose request is cancelled between its opening and its first byte: it stays open,
    and in the pool, for good. So a request that is left before that goes on by itself until its first byte is sent, and
    is cancelled then, which closes the connection. Whoever left it does not wait.

    Args:
        limits: of the connections.
        retries: of a connection that cannot be made.
    """

    def __init__(self, *, limits: httpx.Limits | None = None, retries: int = 0) -> None:
        limits = limits or httpx.Limits(max_connections=100, max_keepalive_connections=20)  # httpx's own
        self._transport = httpx.AsyncHTTPTransport(retries=retries, trust_env=False, limits=limits)
        self._leaving: set[asyncio.Task[None]] = set()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """See `httpx.AsyncBaseTransport`."""
        sending = asyncio.Event()

        async def trace(event: str, _: Any) -> None:
            if event == "http11.send_request_headers.started":
                sending.set()

        request.extensions = {**request.extensions, "trace": trace}
        asked = asyncio.create_task(self._transport.handle_async_request(request))
        try:
            return await asyncio.shield(asked)
        except asyncio.CancelledError:
            leaving = asyncio.create_task(_leave(asked, sending))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
            raise

    async def aclose(self) -> None:
        """See `httpx.AsyncBaseTransport`."""
        await asyncio.gather(*self._leaving)
        await self._transport.aclose()


async def _leave(asked: asyncio.Task[httpx.Response], sending: asyncio.Event) -> None:
    begun = asyncio.create_task(sending.wait())
    await asyncio.wait({asked, begun}, timeout=CONNECT_S, return_when=asyncio.FIRST_COMPLETED)
    begun.cancel()
    asked.cancel()
    answer, _ = await asyncio.gather(asked, begun, return_exceptions=True)
    if isinstance(answer, httpx.Response):
        await answer.aclose()
