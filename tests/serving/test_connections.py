"""Requests that are left at every moment of their life: none leaves a connection behind."""

from __future__ import annotations

import asyncio
import contextlib

import httpx
import pytest

from serving.connections import LeavableTransport

pytestmark = pytest.mark.anyio
SECONDS = 60
NONE_KEPT = httpx.Limits(max_connections=None, max_keepalive_connections=0)


class Server:
    """Answers after some turns of the loop, and counts the connections that are open."""

    def __init__(self) -> None:
        self.open = self.answered = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                await asyncio.sleep(0.002)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                await writer.drain()
                self.answered += 1
        writer.close()
        self.open -= 1


async def test_a_request_may_be_left_at_any_moment() -> None:
    server = Server()
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        async with httpx.AsyncClient(transport=LeavableTransport(limits=NONE_KEPT), timeout=SECONDS) as client:
            for turns in [*range(40)] * 3:
                asked = asyncio.create_task(client.get(url))
                for _ in range(turns):
                    await asyncio.sleep(0)
                asked.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await asked
            async with asyncio.timeout(SECONDS):
                while server.open:
                    await asyncio.sleep(0.01)
            assert (await client.get(url)).text == "ok"
    assert server.answered >= 1
