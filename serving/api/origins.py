"""From where a browser may ask: allow-lists of Host and Origin.

Knows headers. A server without keys trusts whoever reaches it, and on loopback that is every page in a browser of this
machine: such a page must not speak to it, neither under another name (DNS rebinding) nor from another site.
"""

from __future__ import annotations

from ipaddress import ip_address

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from serving.config import ServerConfig
from serving.types import ForbiddenError

_LOCAL = ["127.0.0.1", "localhost", "[::1]"]
_METHODS = ["GET", "POST", "PUT", "DELETE"]
# What a page may send and read beside what every page may.
_SENT = ["authorization", "content-type", "if-match", "x-request-id", "x-request-timeout"]
_SHOWN = ["etag", "retry-after", "x-request-id", "x-light-router-tools"]


def allow_lists(server: ServerConfig, *, with_keys: bool) -> list[Middleware]:
    """The middleware that the profile asks for, outermost first."""
    hosts = server.allowed_hosts or (_LOCAL if is_local(server.host) and not with_keys else ["*"])
    lists = [Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)]
    if server.allowed_origins:
        lists.append(
            Middleware(
                CORSMiddleware,
                allow_origins=server.allowed_origins,
                allow_methods=_METHODS,
                allow_headers=_SENT,
                expose_headers=_SHOWN,
            )
        )
    return lists


def is_local(host: str) -> bool:
    """Whether only this machine reaches what listens there."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class SameOriginMiddleware:
    """Refuses pages of other sites, whose simplest requests a browser sends without asking first.

    Only for a server without keys: with them, a page would have to send one, and its browser would ask.
    """

    def __init__(self, app: ASGIApp, allowed: list[str]) -> None:
        self._app = app
        self._allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "http" and "*" not in self._allowed:
            headers = Headers(scope=scope)
            origin = headers.get("origin")
            own = {f"{kind}://{headers.get('host', '')}" for kind in ("http", "https")}
            if origin is not None and origin not in own and origin not in self._allowed:
                raise ForbiddenError(
                    f"pages of {origin[:100]!r} may not ask here; name it in server.allowed_origins if they may"
                )
        await self._app(scope, receive, send)
