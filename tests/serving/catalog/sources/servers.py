"""Real servers for the tests: MCP over stdio (this file, run) and over HTTP (in the test's own event loop)."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import anyio
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.mcpserver import MCPServer
from mcp.server.runner import serve_loop
from mcp.server.stdio import stdio_server
from mcp.types import (
    ListToolsResult,
    PaginatedRequestParams,
    Tool,
)
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

EMPTY: dict[str, Any] = {"type": "object"}
OBJECT: dict[str, Any] = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}


def paged_server(tools: list[Tool], pages: int = 1, **fields: Any) -> Server[Any]:
    """A server whose list has this many pages."""
    size = -(-len(tools) // pages)

    async def list_tools(context: Any, params: PaginatedRequestParams | None) -> ListToolsResult:
        start = int(params.cursor) if params and params.cursor else 0
        end = start + size
        return ListToolsResult(
            tools=tools[start:end], next_cursor=str(end) if end < len(tools) else None, ttl_ms=fields.get("ttl_ms", 0)
        )

    return Server(
        fields.get("name", "paged"),
        version="1",
        title=fields.get("title"),
        description=fields.get("description"),
        instructions=fields.get("instructions"),
        on_list_tools=list_tools,
    )


def searching(name: str, description: str = "Search for something", **fields: Any) -> MCPServer:
    """A server with one tool, `search`."""
    server = MCPServer(name, instructions=f"{name} finds things.", **fields)

    @server.tool(description=description)
    def search(query: str) -> str:
        return query

    return server


def legacy(answers: dict[str, Callable[[dict[str, Any]], Any]]) -> Starlette:
    """A server of before 2026-07-28 that sends what it is told to, valid or not: `method -> params -> result`."""

    async def answer(request: Request) -> Response:
        message = await request.json()
        if "id" not in message:
            return Response(status_code=202)
        known: dict[str, Callable[[dict[str, Any]], Any]] = {
            "initialize": lambda params: {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "legacy", "version": "1"},
            },
            **answers,
        }
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        if message["method"] not in known:
            return JSONResponse(reply | {"error": {"code": -32601, "message": "method not found"}})
        # Not JSONResponse, which refuses to write NaN.
        text = json.dumps(reply | {"result": known[message["method"]](message.get("params") or {})})
        return Response(text, media_type="application/json")

    return Starlette(routes=[Route("/mcp", answer, methods=["POST"])])


async def grow() -> None:
    """Has one tool more each time it is asked, and tells so the first time: the protocol of before 2026-07-28."""
    names: list[str] = []

    async def list_tools(context: ServerRequestContext[Any], params: PaginatedRequestParams | None) -> ListToolsResult:
        names.append(f"tool_{len(names)}")
        if len(names) == 1:
            await context.session.send_tool_list_changed()
        return ListToolsResult(tools=[Tool(name=name, input_schema=EMPTY) for name in names])

    server = Server("growing", version="1", on_list_tools=list_tools)
    options = server.create_initialization_options(NotificationOptions(tools_changed=True))
    async with stdio_server() as (read, write):
        await serve_loop(server, read, write, lifespan_state={}, init_options=options)


async def main(kind: str) -> None:
    match kind:
        case "tools":
            tools = [Tool(name="echo", description="Say it again", input_schema=OBJECT)]
            if os.environ.get("EXTRA_TOOL"):
                tools.append(
                    Tool(name=os.environ["EXTRA_TOOL"], description="From the environment", input_schema=EMPTY)
                )
            server = paged_server(tools, name="stdio", title="Echo", instructions="Repeats what it hears.")
            async with stdio_server() as (read, write):
                await server.run(read, write, server.create_initialization_options())
        case "growing":
            await grow()
        case "silent":
            await anyio.sleep_forever()
        case "broken":
            sys.exit(f"cannot start: {os.environ.get('BROKEN_TOKEN')} is not accepted")


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
