"""The agent over Streamable HTTP: who may ask, from where, and whose session is whose.

Knows HTTP. A page of another site must not reach a server on this machine (DNS rebinding), so `Host` and `Origin` are
checked; keys are asked for as the API asks for them.
"""

from __future__ import annotations

from collections.abc import Sequence

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.transport_security import TransportSecuritySettings
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from serving.agent.agent import LightRoutingAgent
from serving.agent.server import mcp_server
from serving.api.auth import AuthMiddleware, RequestIdMiddleware
from serving.api.errors import OutcomeMiddleware, error_response
from serving.config import Config
from serving.telemetry import Telemetry
from serving.types import LightRouterError

PATH = "/mcp"
_LOCAL = ("127.0.0.1", "localhost", "[::1]")


def http_app(agent: LightRoutingAgent, config: Config, telemetry: Telemetry) -> ASGIApp:
    """The application. The agent is started by whoever serves it."""

    async def forget(request: Request) -> Response:
        principal = str(getattr(request.state, "cache_salt", ""))
        try:
            await agent.threads.delete(request.path_params["handle"], principal)
        except LightRouterError as error:  # the SDK's application would answer 500 before anyone else can
            return error_response(error, request.url.path, request.state.request_id)
        return Response(status_code=204)

    async def live(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(_: Request) -> Response:
        return JSONResponse({"status": "ok"} if agent.ready else {"status": "starting"}, 200 if agent.ready else 503)

    server = mcp_server(agent).streamable_http_app(
        streamable_http_path=PATH,
        max_request_body_size=config.server.max_body_bytes,
        transport_security=TransportSecuritySettings(
            allowed_hosts=[*_with_ports(_LOCAL), *config.agent.allowed_hosts],
            allowed_origins=[*_with_ports([f"http://{host}" for host in _LOCAL]), *config.agent.allowed_origins],
        ),
        custom_starlette_routes=[
            Route("/threads/{handle}", forget, methods=["DELETE"]),
            Route("/health/live", live),
            Route("/health/ready", ready),
        ],
    )
    guarded = AuthMiddleware(_SessionOwner(server), config.server.api_keys)
    return RequestIdMiddleware(OutcomeMiddleware(guarded, telemetry, {PATH: "mcp"}))


def _with_ports(hosts: Sequence[str]) -> list[str]:
    return [pattern for host in hosts for pattern in (host, f"{host}:*")]


class _SessionOwner:
    """Tells the SDK whose key came with a request: a session of before 2026-07-28 answers to that key only."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "http" and (principal := getattr(Request(scope).state, "cache_salt", "")):
            scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=principal, scopes=[]))
        await self._app(scope, receive, send)
