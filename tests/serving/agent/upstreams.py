"""A real MCP server for the tests, with results of every kind: over stdio (this file, run) and in the event loop."""

from __future__ import annotations

import base64
import os
import sys
from typing import Any

import anyio
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.stdio import stdio_server
from mcp.types import (
    AudioContent,
    CallToolRequestParams,
    CallToolResult,
    ElicitRequest,
    ElicitRequestFormParams,
    EmbeddedResource,
    ImageContent,
    InputRequiredResult,
    ListToolsResult,
    PaginatedRequestParams,
    ResourceLink,
    TextContent,
    TextResourceContents,
    Tool,
    ToolAnnotations,
)

EMPTY: dict[str, Any] = {"type": "object", "properties": {}}
TEXT: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
# A schema as generators write them: references, and one of two shapes.
SHAPE: dict[str, Any] = {
    "type": "object",
    "properties": {"shape": {"oneOf": [{"$ref": "#/$defs/Circle"}, {"$ref": "#/$defs/Square"}]}},
    "required": ["shape"],
    "$defs": {
        "Circle": {
            "type": "object",
            "properties": {"radius": {"type": "number"}},
            "required": ["radius"],
            "additionalProperties": False,
        },
        "Square": {
            "type": "object",
            "properties": {"side": {"type": "number"}},
            "required": ["side"],
            "additionalProperties": False,
        },
    },
}
REMOTE: dict[str, Any] = {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/never.json"}}}
PIXEL = base64.b64encode(b"\x89PNG").decode()


class Studio:
    """The server, and what happened in it."""

    def __init__(self, name: str = "studio", description: str = "Says the text again") -> None:
        self.name = name
        self.description = description
        self.calls: list[CallToolRequestParams] = []
        self.started = anyio.Event()
        self.cancelled = anyio.Event()
        self.server: Server[Any] = Server(
            name, version="1", on_list_tools=self.list_tools, on_call_tool=self.call_tool, instructions="Makes things."
        )

    async def list_tools(self, context: Any, params: PaginatedRequestParams | None) -> ListToolsResult:
        schemas = {"draw_shape": SHAPE, "remote_reference": REMOTE, "make_large": {"type": "object"}}
        described = {"echo_text": self.description}
        names = [
            *("echo_text", "show_picture", "play_sound", "give_link", "embed_resource", "structured_weather"),
            *("broken_thing", "slow_steps", "hang_forever", "was_cancelled", "make_large", "draw_shape"),
            *("remote_reference", "ask_user", "list_structured", "misfit_output"),
        ]
        return ListToolsResult(
            tools=[
                Tool(
                    name=name,
                    description=described.get(name, f"Does {name.replace('_', ' ')}"),
                    input_schema=TEXT if name == "echo_text" else schemas.get(name, EMPTY),
                    output_schema={"type": "object", "required": ["x"]} if name == "misfit_output" else None,
                    annotations=ToolAnnotations(read_only_hint=True) if name == "echo_text" else None,
                )
                for name in names
            ]
        )

    async def call_tool(
        self, context: ServerRequestContext[Any], params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        self.calls.append(params)
        given = params.arguments or {}
        match params.name:
            case "echo_text":
                return said(f"{self.name}: {given['text']}")
            case "show_picture":
                return CallToolResult(content=[ImageContent(data=PIXEL, mime_type="image/png")])
            case "play_sound":
                return CallToolResult(content=[AudioContent(data=PIXEL, mime_type="audio/wav")])
            case "give_link":
                return CallToolResult(content=[ResourceLink(uri="file:///a.txt", name="a", description="A file")])
            case "embed_resource":
                held = TextResourceContents(uri="memo://1", mime_type="text/plain", text="held")
                return CallToolResult(content=[EmbeddedResource(resource=held)])
            case "structured_weather":
                return CallToolResult(
                    content=[TextContent(text="21 degrees")], structured_content={"degrees": 21}, _meta={"own": 1}
                )
            case "list_structured":
                return CallToolResult(content=[TextContent(text="[1]")], structured_content=[1])
            case "misfit_output":
                return CallToolResult(content=[], structured_content={"y": 1})
            case "broken_thing":
                return CallToolResult(content=[TextContent(text="it is broken")], is_error=True)
            case "slow_steps":
                for done in (1, 2):
                    await context.session.report_progress(done, 2, f"step {done}")
                return said("done")
            case "hang_forever":
                self.started.set()
                try:
                    await anyio.sleep_forever()
                except anyio.get_cancelled_exc_class():
                    self.cancelled.set()
                    raise
            case "was_cancelled":
                await self.cancelled.wait()
                return said("yes")
            case "make_large":
                return said("x" * int(given["size"]))
            case "draw_shape":
                return said(str(sorted(given["shape"])))
            case "ask_user":
                if not params.input_responses:
                    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
                    asked = ElicitRequest(params=ElicitRequestFormParams(message="Who?", requested_schema=schema))
                    return InputRequiredResult(input_requests={"who": asked}, request_state="kept")
                answer: Any = params.input_responses["who"]
                return said(f"{answer.content['name']} {params.request_state}")
            case "stop_now":
                os._exit(3)
        return said("ok")


def said(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text)])


async def main() -> None:
    studio = Studio(os.environ.get("STUDIO", "stdio"))
    options = studio.server.create_initialization_options(NotificationOptions())
    async with stdio_server() as (read, write):
        await studio.server.run(read, write, options)


if __name__ == "__main__":
    if len(sys.argv) > 1:  # the process id, so that a test can end it
        with open(sys.argv[1], "w") as file:  # noqa: PTH123
            file.write(str(os.getpid()))
    anyio.run(main)
