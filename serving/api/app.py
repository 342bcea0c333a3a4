"""The HTTP application: middleware and surfaces around one router.

Knows which surfaces there are. Each of them is a file of its own: parse, route, shape.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from fastapi import FastAPI
from fastapi.middleware import Middleware
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from serving import tracing
from serving.api import catalogs, chat, health, models, route, search
from serving.api.auth import AuthMiddleware, RequestIdMiddleware, open_paths, scope_of
from serving.api.drain import DrainMiddleware
from serving.api.errors import OutcomeMiddleware
from serving.api.gateway import Gateway
from serving.api.limits import BodyLimitMiddleware
from serving.api.openapi import describe
from serving.api.origins import SameOriginMiddleware, allow_lists
from serving.api.service import Service
from serving.config import Config
from serving.logs import RequestLogMiddleware
from serving.telemetry import Telemetry

if TYPE_CHECKING:
    from serving.router import Router

# Surfaces that metrics count by name.
_SURFACES = {route.PATH: "route", chat.PATH: "chat", search.PATH: "search"}


def create_app(config: Config, router: Router, telemetry: Telemetry) -> FastAPI:
    """The application. Its lifespan starts `router` in the background, so that /health/live answers at once.

    `app.state.service` holds its parts, for whoever runs it in process.

    Raises:
        ValueError: the keys file cannot be read, or the audit log not be written.
    """
    service = Service(config, router, telemetry)
    gateway = Gateway(service, config.gateway) if config.gateway.url else None

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if service.audit is not None:
            service.audit.start()
        watching = asyncio.create_task(service.readiness.run())
        try:
            yield
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
            await router.close()
            if gateway is not None:
                await gateway.close()
            if service.audit is not None:
                await asyncio.to_thread(service.audit.close)

    app = FastAPI(
        title="Light Router",
        version=models.VERSION,
        description="Chooses which tool, agent or skill acts next: a probability for every candidate and for none.",
        lifespan=lifespan,
        middleware=[
            Middleware(RequestIdMiddleware),
            Middleware(RequestLogMiddleware),
            Middleware(DrainMiddleware, readiness=service.readiness),
            *allow_lists(config.server, with_keys=bool(service.keys)),
            Middleware(OutcomeMiddleware, telemetry=telemetry, surfaces=_SURFACES),
            *([] if service.keys else [Middleware(SameOriginMiddleware, allowed=config.server.allowed_origins)]),
            Middleware(AuthMiddleware, keys=service.keys, scope_of=scope_of),
            Middleware(BodyLimitMiddleware, limit=config.server.max_body_bytes),
        ],
        # The framework's own errors go the way of all others.
        exception_handlers={HTTPException: _reraise},
        telemetry=tracing.OF_REQUESTS,
        redirect_slashes=False,
        redoc_url=None,
    )
    app.state.service = service
    surfaces = [
        route.routes(service),
        chat.routes(service, gateway),
        search.routes(service),
        models.routes(service),
        health.routes(service.readiness, telemetry),
    ]
    bodies: list[type[BaseModel]] = [route.RouteBody, chat.ChatBody, search.SearchBody]
    if router.prefilter.catalogs is not None:
        quarantine = config.catalog.on_finding == "quarantine"
        surfaces.append(catalogs.routes(router.prefilter.catalogs.store, quarantine=quarantine))
        bodies += catalogs.BODIES
    for surface in surfaces:
        app.include_router(surface)
    describe(app, bodies, with_key=bool(service.keys), open_paths=open_paths(service.keys))
    return app


async def _reraise(_: Request, error: Exception) -> Response:
    raise error
