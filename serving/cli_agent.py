"""`light-router agent`: the Light Routing Agent as an MCP server.

Knows terminals and profiles. Over stdio the standard output is the protocol's: everything else goes to the standard
error.
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
import uvicorn

from serving import logs, tracing
from serving.assembly import build_router
from serving.audit import STDOUT, AuditLog
from serving.cli import DEFAULT_PROFILE, ConfigOption, fail, load_config
from serving.config import Config
from serving.telemetry import Telemetry
from serving.types import LightRouterError

if TYPE_CHECKING:
    from serving.agent.agent import LightRoutingAgent
    from serving.catalog.sources.base import Source

# The agent's parts and the SDKs of its upstreams are imported where it is started: every command loads this module.

# Where a profile names no database. Threads and the catalogue must outlive the process.
DEFAULT_DATABASE = Path("light-router.db")


def agent(
    config: ConfigOption = DEFAULT_PROFILE,
    http: Annotated[
        int | None, typer.Option(help="Serve Streamable HTTP on this port; by default stdio.", min=0, max=65535)
    ] = None,
    source: Annotated[
        list[str] | None,
        typer.Option(help="mcp.json, URL of a MCP server or agent card, folder of skills; beside the profile's."),
    ] = None,
) -> None:
    """Serve two MCP tools, `route` and `execute`, in front of every server and agent of the profile."""
    from serving.catalog.sources.base import first_cause  # noqa: PLC0415
    from serving.catalog.sources.locate import sources_at  # noqa: PLC0415

    profile = load_config(config)
    logs.configure(profile.server.log_format)
    if profile.catalog.database is None:
        database = f"sqlite:///{DEFAULT_DATABASE}"
        profile = profile.model_copy(update={"catalog": profile.catalog.model_copy(update={"database": database})})
    try:
        tracing.configure()
        sources = [one for place in (*profile.agent.sources, *(source or ())) for one in sources_at(place, os.environ)]
        if http is None and profile.server.audit.path == STDOUT:
            raise ValueError("over stdio the standard output is the protocol's: set server.audit.path to a file")
        made = build_agent(profile, sources)
        asyncio.run(_serve_stdio(made) if http is None else _serve_http(made, profile, http))
    except (LightRouterError, ValueError) as error:
        fail(error, 2)
    except BaseExceptionGroup as group:
        cause = first_cause(group)
        if not isinstance(cause, (LightRouterError, ValueError)):
            raise
        fail(cause, 2)


def build_agent(config: Config, sources: list[Source]) -> LightRoutingAgent:
    """The profile's agent, not started.

    Raises:
        ValueError: as `build_router`, or the profile names no database.
    """
    from serving.agent.agent import LightRoutingAgent  # noqa: PLC0415
    from serving.agent.threads import Threads  # noqa: PLC0415

    router = build_router(config)
    catalogs, database = router.prefilter.catalogs, config.catalog.database
    if catalogs is None or database is None:
        raise ValueError("the agent keeps a catalogue and threads: set catalog.database, such as sqlite:///agent.db")
    threads = Threads(database, ttl_s=config.agent.thread_ttl_s, characters=config.agent.thread_characters)
    audit = config.server.audit
    return LightRoutingAgent(
        router,
        catalogs,
        threads,
        sources,
        config.agent,
        quarantine=config.catalog.on_finding == "quarantine",
        audit=None if audit.path is None else AuditLog(audit.path, texts=audit.texts),
    )


async def _serve_stdio(made: LightRoutingAgent) -> None:
    from mcp.server.stdio import stdio_server  # noqa: PLC0415

    from serving.agent.server import mcp_server  # noqa: PLC0415

    server = mcp_server(made)
    async with made.running(), stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


async def _serve_http(made: LightRoutingAgent, config: Config, port: int) -> None:
    from serving.agent.http import PATH, http_app  # noqa: PLC0415

    settings = uvicorn.Config(
        http_app(made, config, Telemetry()), host=config.server.host, port=port, access_log=False, log_config=None
    )
    logging.getLogger(__name__).info("MCP at http://%s:%d%s", config.server.host, port, PATH)
    async with made.running():
        await uvicorn.Server(settings).serve()


if __name__ == "__main__":
    typer.run(agent)
