"""Who may ask, and an id for every request.

Knows headers and the configured keys. Open without a key are only what probes and scrapers read, because they
tell nothing of what is asked: /health/live, /health/ready and /metrics. Every other path, known or not, needs one.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import uuid
from collections.abc import Sequence

from pydantic import SecretStr
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.types import UnauthorizedError

OPEN_PATHS = frozenset({"/health/live", "/health/ready", "/metrics"})
# What a log line and a header can hold; a caller's id of another form is replaced.
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


class RequestIdMiddleware:
    """Takes the caller's `x-request-id` or makes one, and returns it with the answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        Request(scope).state.request_id = request_id

        async def with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        await self._app(scope, receive, with_id)


class AuthMiddleware:
    """Asks for `Authorization: Bearer KEY` where keys are configured."""

    def __init__(self, app: ASGIApp, keys: Sequence[SecretStr]) -> None:
        self._app = app
        self._keys = [_digest(key.get_secret_value().encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "http" and self._keys and scope["path"] not in OPEN_PATHS:
            Request(scope).state.cache_salt = self._identify(Headers(scope=scope).get("authorization", ""))
        await self._app(scope, receive, send)

    def _identify(self, authorization: str) -> str:
        """A name for the key's owner which tells nothing of the key and is the same in every replica."""
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer" or not key:
            raise UnauthorizedError("this server asks for a key: send the header `Authorization: Bearer KEY`")
        given = _digest(key.strip().encode("latin-1"))  # as headers are decoded
        # Every key is compared, in constant time, so that time does not tell which one came close.
        if not any([hmac.compare_digest(given, known) for known in self._keys]):  # noqa: C419
            raise UnauthorizedError("the key in `Authorization: Bearer KEY` is not one of this server's")
        return given.hex()[:16]


def _digest(key: bytes) -> bytes:
    """Keyed for this purpose, so that it is no plain hash of the key that could be looked up elsewhere."""
    return hashlib.blake2b(key, digest_size=32, person=b"light-router").digest()
