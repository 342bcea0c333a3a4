"""Applications on real sockets, served in the test's own event loop."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

import uvicorn
from starlette.types import ASGIApp


@asynccontextmanager
async def serving(app: ASGIApp, port: int = 0, lifespan: Literal["auto", "off"] = "auto") -> AsyncIterator[int]:
    """Serves the app in this event loop, on the port it yields. Connections wait until it is ready."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        config = uvicorn.Config(app, log_level="error", ws="none", lifespan=lifespan, timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        # Not a task group: the test's own errors come out as they are.
        served = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await served
