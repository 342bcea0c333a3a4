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
from serving.api.auth import AuthMiddleware, RequestIdMiddleware, caller_of
from serving.api.errors import OutcomeMiddleware, error_response
from serving.catalog.tenants import tenant_of
from serving.config import Config
from serving.keys import ANYONE, Keys
from serving.telemetry import Telemetry
from serving.types import ForbiddenError, LightRouterError

PATH = "/mcp"
_LOCAL = ("127.0.0.1", "localhost", "[::1]")


def http_app(agent: LightRoutingAgent, config: Config, telemetry: Telemetry) -> ASGIApp:
    """The application. The agent is started by whoever serves it."""

    async def forget(request: Request) -> Response:
        try:
            await agent.threads.delete(request.path_params["handle"], caller_of(request).owner)
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
    owned = _SessionOwner(server, tenant_of(config.agent.catalog))
    guarded = AuthMiddleware(owned, Keys(config.server.api_keys, config.server.keys_file), lambda *_: "agent")
    return RequestIdMiddleware(OutcomeMiddleware(guarded, telemetry, {PATH: "mcp"}))


def _with_ports(hosts: Sequence[str]) -> list[str]:
    return [pattern for host in hosts for pattern in (host, f"{host}:*")]


class _SessionOwner:
    """Tells the SDK whose key came with a request: a session of before 2026-07-28 answers to that key only.

    Keys of other tenants than the catalogue's are refused: what stands behind the agent is not theirs to call.
    """

    def __init__(self, app: ASGIApp, tenant: str) -> None:
        self._app = app
        self._tenant = tenant

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "http" and (caller := caller_of(Request(scope))) is not ANYONE:
            if caller.tenant != self._tenant:
                raise ForbiddenError(f"the key {caller.name!r} is of another tenant than this agent's catalogue")
            scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=caller.owner, scopes=[]))
        await self._app(scope, receive, send)
