"""The agent with a router that is no model, in front of real servers, and hosts that are the SDK's own client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from serving.agent.agent import LightRoutingAgent
from serving.agent.http import http_app
from serving.agent.threads import Threads
from serving.audit import AuditLog
from serving.catalog.sources.base import Source
from serving.catalog.sync import Synchroniser
from serving.config import AgentConfig, CatalogConfig, Config, ServerConfig
from serving.keys import ANYONE
from serving.telemetry import Telemetry
from tests.live import serving
from tests.serving.agent.deciding import WordRouter, catalogs_at


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class Running:
    agent: LightRoutingAgent
    router: WordRouter
    port: int

    @asynccontextmanager
    async def host(self, mode: str = "auto", key: str | None = None, **options: Any) -> AsyncIterator[Client]:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        url = f"http://127.0.0.1:{self.port}/mcp"
        async with (
            httpx2.AsyncClient(headers=headers, timeout=30) as http,
            Client(
                streamable_http_client(url, http_client=http, max_sse_event_size=None), mode=mode, cache=None, **options
            ) as client,
        ):
            yield client

    async def read_again(self, source: Source) -> None:
        await Synchroniser(self.router.catalogs.store, "agent", [source]).once()


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'agent.db'}"


@asynccontextmanager
async def running(
    database: str,
    sources: Sequence[Source],
    *,
    keys: Sequence[str] = (),
    keys_file: str | None = None,
    audit: str | None = None,
    **settings: Any,
) -> AsyncIterator[Running]:
    """The agent over HTTP in this event loop."""
    config = Config(
        agent=AgentConfig(**{"reconnect_s": 0.05, **settings}),
        catalog=CatalogConfig(database=database),
        server=ServerConfig(api_keys=list(keys), keys_file=keys_file),
    )
    catalogs = catalogs_at(database)
    router = WordRouter(catalogs)
    log = AuditLog(audit) if audit else None
    agent = LightRoutingAgent(router, catalogs, Threads(database), sources, config.agent, audit=log)
    async with serving(http_app(agent, config, Telemetry())) as port, agent.running():
        await agent.visible(ANYONE)  # started, and everything read once
        yield Running(agent, router, port)
