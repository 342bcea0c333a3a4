"""What log lines look like: text, or one JSON object a line with the ids of the request and trace it belongs to.

Knows logging and the ids. Does not know what is logged.
"""

from __future__ import annotations

import json
import logging
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Literal

from opentelemetry import trace
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

_REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")


class RequestLogMiddleware:
    """Puts the request's id on every line that is logged while it is served."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        token = _REQUEST_ID.set(Request(scope).state.request_id if scope["type"] == "http" else "")
        try:
            await self._app(scope, receive, send)
        finally:
            _REQUEST_ID.reset(token)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC, ISO 8601), level, logger, message, and where there are some, ids and error."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id := _REQUEST_ID.get():
            entry["request_id"] = request_id
        if (span := trace.get_current_span().get_span_context()).is_valid:
            entry |= {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"}
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def configure(style: Literal["text", "json"]) -> None:
    """Log to the standard error, this project's lines and all libraries' alike."""
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if style == "json" else text)
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    # One line for every request to the engine tells nothing that metrics and traces do not.
    for name in ("httpx", "httpx2"):
        logging.getLogger(name).setLevel(logging.WARNING)
