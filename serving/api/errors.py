"""What errors look like: one table from error classes to HTTP, and the middleware that applies it to everything.

Knows every error class and OpenAI's error shape, which all routes share. Does not know what a handler does.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.telemetry import Telemetry
from serving.types import (
    AuditError,
    BusyError,
    ConflictError,
    EngineError,
    EngineTimeoutError,
    EngineUnavailableError,
    ForbiddenError,
    InvalidRequestError,
    LightRouterError,
    ModelNotFoundError,
    NotFoundError,
    StoreError,
    TooLargeError,
    UnauthorizedError,
)

logger = logging.getLogger(__name__)

# Nobody reads it; nginx and others log 499 for a client that left.
_CLIENT_CLOSED_REQUEST = 499


@dataclass(frozen=True, slots=True)
class Kind:
    """How one class of errors is shown: HTTP status, and OpenAI's `type` and `code`."""

    status: int
    type: str
    code: str


# The first class that fits counts.
KINDS: tuple[tuple[type[LightRouterError], Kind], ...] = (
    (InvalidRequestError, Kind(422, "invalid_request_error", "invalid_request")),
    (ModelNotFoundError, Kind(404, "invalid_request_error", "model_not_found")),
    (NotFoundError, Kind(404, "invalid_request_error", "not_found")),
    (ConflictError, Kind(412, "invalid_request_error", "version_conflict")),
    (UnauthorizedError, Kind(401, "authentication_error", "invalid_api_key")),
    (ForbiddenError, Kind(403, "permission_error", "forbidden")),
    (TooLargeError, Kind(413, "invalid_request_error", "request_too_large")),
    (BusyError, Kind(429, "rate_limit_error", "busy")),
    (EngineTimeoutError, Kind(504, "server_error", "engine_timeout")),
    (EngineError, Kind(503, "server_error", "engine_unavailable")),
    (StoreError, Kind(503, "server_error", "database_unavailable")),
    (AuditError, Kind(503, "server_error", "audit_unavailable")),
)
_UNEXPECTED = Kind(500, "server_error", "internal_error")
_OPENAI_PATHS = ("/v1/chat/", "/v1/models")
_OPENAI_INVALID = 400


class ErrorDetail(BaseModel):
    """What was wrong, where (`param`, a path such as `candidates[3].id`), and what would be right."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorAnswer(BaseModel):
    """The body of every error, in OpenAI's shape."""

    error: ErrorDetail


def documented(*errors: type[LightRouterError], path: str) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI `responses` of a route that may raise `errors`. Every request may also lack a key, or its scope."""
    raised = {*errors, UnauthorizedError, ForbiddenError}
    statuses = [_status(kind, path) for known, kind in KINDS if known in raised]
    return {status: {"model": ErrorAnswer, "description": HTTPStatus(status).phrase} for status in statuses}


def _status(kind: Kind, path: str) -> int:
    """OpenAI answers 400 where we answer 422."""
    return _OPENAI_INVALID if kind.status == 422 and path.startswith(_OPENAI_PATHS) else kind.status


def _kind(error: Exception) -> Kind:
    if isinstance(error, HTTPException):  # the framework's own: no such path, no such method
        code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
        return Kind(error.status_code, "invalid_request_error", code)
    return next((kind for known, kind in KINDS if isinstance(error, known)), _UNEXPECTED)


def error_response(error: Exception, path: str, request_id: str) -> Response:
    """The answer to a request that ended in `error`. Nothing of an unexpected error is shown, only logged."""
    kind = _kind(error)
    message, headers = str(error), {}
    if isinstance(error, HTTPException):
        message = f"{error.detail}: see /openapi.json for the paths and methods there are"
        headers = dict(error.headers or {})
    elif kind is _UNEXPECTED:
        message = f"internal error; the server's log has the details under request id {request_id}"
    if isinstance(error, (BusyError, EngineUnavailableError)) and error.retry_after is not None:
        headers["retry-after"] = str(max(math.ceil(error.retry_after), 1))
    if isinstance(error, UnauthorizedError):
        headers["www-authenticate"] = "Bearer"
    where = error.where if isinstance(error, InvalidRequestError) else None
    answer = ErrorAnswer(error=ErrorDetail(message=message, type=kind.type, param=where, code=kind.code))
    return JSONResponse(answer.model_dump(), _status(kind, path), headers)


class OutcomeMiddleware:
    """Ends every request in an answer and in the metrics, whatever was raised below."""

    def __init__(self, app: ASGIApp, telemetry: Telemetry, surfaces: dict[str, str]) -> None:
        """`surfaces` names the paths that are counted by name; all others are "other"."""
        self._app = app
        self._telemetry = telemetry
        self._surfaces = surfaces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answered = False

        async def noting(message: Message) -> None:
            nonlocal answered
            answered = True
            await send(message)

        start = time.perf_counter()
        outcome = "ok"
        try:
            await self._app(scope, receive, noting)
        except ClientDisconnect:
            outcome = "disconnected"
            self._telemetry.disconnect()
            await Response(status_code=_CLIENT_CLOSED_REQUEST)(scope, receive, send)
        except Exception as error:
            outcome = _kind(error).code
            self._telemetry.error(error)
            request_id = Request(scope).state.request_id
            if _kind(error) is _UNEXPECTED:
                logger.exception("request %s failed", request_id)
            elif isinstance(error, (EngineError, StoreError)):
                logger.warning("request %s: %s: %s", request_id, type(error).__name__, error)
            if answered:  # too late for another answer; the server closes the connection
                raise
            await error_response(error, scope["path"], request_id)(scope, receive, send)
        finally:
            surface = self._surfaces.get(scope["path"], "other")
            self._telemetry.request(surface, outcome, time.perf_counter() - start)
