"""Who may ask, and an id for every request.

Knows headers, keys and the scope that each path needs. Open without a key are only the probes, because they tell
nothing of what is asked, and the metrics where all keys are of one owner. Every other path, known or not, needs one.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.keys import ANYONE, Caller, Keys
from serving.keys import Scope as KeyScope
from serving.types import UnauthorizedError

_PROBES = frozenset({"/health/live", "/health/ready"})
_CATALOGS = "/v1/catalogs"
_SCOPES: dict[str, KeyScope] = {
    "/v1/route": "route",
    "/v1/chat/completions": "route",
    "/v1/tools/search": "search",
    "/metrics": "metrics",
}
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
    """Asks for `Authorization: Bearer KEY` where keys are configured, and for the scope that the request needs.

    Args:
        keys: who is known.
        scope_of: the scope that a method and a path need; None where any key will do.
    """

    def __init__(self, app: ASGIApp, keys: Keys, scope_of: Callable[[str, str], KeyScope | None]) -> None:
        self._app = app
        self._keys = keys
        self._scope_of = scope_of
        self._open = open_paths(keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "http" and self._keys and scope["path"] not in self._open:
            caller = self._identify(Headers(scope=scope).get("authorization", ""))
            method, path = scope["method"], scope["path"]
            caller.require(self._scope_of(method, path), f"{method} {path[:100]}")
            Request(scope).state.caller = caller
        await self._app(scope, receive, send)

    def _identify(self, authorization: str) -> Caller:
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer" or not key:
            raise UnauthorizedError("this server asks for a key: send the header `Authorization: Bearer KEY`")
        # Headers are decoded as Latin-1, but keys are UTF-8.
        caller = self._keys.caller(key.strip().encode("latin-1").decode("utf-8", "replace"))
        if caller is None:
            raise UnauthorizedError("the key in `Authorization: Bearer KEY` is not one of this server's")
        return caller


def open_paths(keys: Keys) -> frozenset[str]:
    """What no key is asked for: probes; and the metrics, unless scopes are told apart."""
    return _PROBES if keys.from_file else _PROBES | {"/metrics"}


def scope_of(method: str, path: str) -> KeyScope | None:
    """The scope that a request to the API needs; None where any key will do."""
    if path == _CATALOGS or path.startswith(f"{_CATALOGS}/"):
        return "catalog:read" if method in {"GET", "HEAD"} else "catalog:write"
    return _SCOPES.get(path)


def caller_of(http: Request) -> Caller:
    """Who asks."""
    caller: Caller = getattr(http.state, "caller", ANYONE)
    return caller
