"""What stands behind the agent and the gateway while they are measured: `python -m serving.bench_upstream --port N`.

A MCP server whose one tool says its text again, and a chat model that answers at once.
"""

from __future__ import annotations

import sys
from typing import Any

import uvicorn
from mcp.server.lowlevel.server import Server
from mcp.types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams, TextContent, Tool
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

TEXT: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


async def _list_tools(context: Any, params: PaginatedRequestParams | None) -> ListToolsResult:
    return ListToolsResult(tools=[Tool(name="echo", description="Says the text again", input_schema=TEXT)])


async def _call_tool(context: Any, params: CallToolRequestParams) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=(params.arguments or {})["text"])])


async def _chat(request: Request) -> Response:
    asked = await request.json()
    message = {"role": "assistant", "content": f"{len(asked.get('tools', ()))} tools"}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    told = {"id": "chatcmpl-bench", "object": "chat.completion", "created": 0, "model": asked["model"]}
    return JSONResponse({**told, "choices": [choice]})


async def _ready(_: Request) -> Response:
    return JSONResponse({"status": "ok"})


def app() -> Starlette:
    """Both of them."""
    server = Server("bench", on_list_tools=_list_tools, on_call_tool=_call_tool)
    routes = [Route("/v1/chat/completions", _chat, methods=["POST"]), Route("/health/ready", _ready)]
    return server.streamable_http_app(custom_starlette_routes=routes)


if __name__ == "__main__":
    uvicorn.run(app(), port=int(sys.argv[-1]), log_level="error")
