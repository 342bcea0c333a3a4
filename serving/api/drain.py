"""How the server ends: it is not ready at once, takes requests a while longer, and finishes what it has begun.

Knows signals and uvicorn. Does not know what a request is.
"""

from __future__ import annotations

import math
import signal
import threading
from types import FrameType

import uvicorn
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.api.health import Readiness
from serving.config import Config

# What is in flight has ended by its deadline; beyond it only the answer has to be written.
_ANSWER_S = 1.0


class DrainMiddleware:
    """Asks callers to close their connections once the server is about to end: none is cut while it is asked."""

    def __init__(self, app: ASGIApp, readiness: Readiness) -> None:
        self._app = app
        self._readiness = readiness

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""

        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start" and self._readiness.draining:
                MutableHeaders(scope=message)["connection"] = "close"
            await send(message)

        await self._app(scope, receive, closing)


class DrainingServer(uvicorn.Server):
    """uvicorn's server, which after SIGTERM goes on for `server.drain_s` before it stops listening.

    Then it finishes what is in flight, for at most an engine's time. A second signal, or Ctrl-C, skips the wait.
    """

    def __init__(self, app: ASGIApp, config: Config, readiness: Readiness, port: int) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                host=config.server.host,
                port=port,
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=math.ceil(config.engine.timeout_s + _ANSWER_S),
            )
        )
        self._readiness = readiness
        self._drain_s = config.server.drain_s

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called by the first SIGTERM or SIGINT, and by every later one."""
        first = not self._readiness.draining
        self._readiness.draining = True
        if first and sig == signal.SIGTERM and self._drain_s:
            # uvicorn's own only sets flags, which its loop looks at.
            timer = threading.Timer(self._drain_s, super().handle_exit, (sig, frame))
            timer.daemon = True
            timer.start()
        else:
            super().handle_exit(sig, frame)
