"""The agent as a process of its own over stdio, for tests that end it: `DATABASE MCP_JSON`. Its router is no model."""

from __future__ import annotations

import sys

import anyio
from mcp.server.stdio import stdio_server

from serving.agent.agent import LightRoutingAgent
from serving.agent.server import mcp_server
from serving.agent.threads import Threads
from serving.catalog.sources.locate import sources_at
from serving.config import AgentConfig
from tests.serving.agent.deciding import WordRouter, catalogs_at


async def main(database: str, settings: str) -> None:
    catalogs = catalogs_at(database)
    agent = LightRoutingAgent(
        WordRouter(catalogs), catalogs, Threads(database), sources_at(settings, {}), AgentConfig()
    )
    server = mcp_server(agent)
    async with agent.running(), stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
