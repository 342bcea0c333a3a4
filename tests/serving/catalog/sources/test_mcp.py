"""Real MCP servers over stdio and Streamable HTTP, and servers that send what they should not."""

import logging
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.server.caching import CacheHint
from mcp.server.mcpserver import MCPServer
from mcp.server.subscriptions import InMemorySubscriptionBus, ToolsListChanged
from mcp.types import Tool
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from serving.catalog.sources.base import Limits, Listing, SourceError
from serving.catalog.sources.mcp import McpSource
from serving.catalog.sources.mcp_config import HttpEntry, StdioEntry
from tests.live import serving
from tests.serving.catalog.sources.servers import EMPTY, OBJECT, legacy, paged_server, searching

pytestmark = pytest.mark.anyio
SERVERS = str(Path(__file__).parent / "servers.py")


def stdio(kind: str, **env: str) -> StdioEntry:
    return StdioEntry(command=sys.executable, args=[SERVERS, kind], env={"PYTHONPATH": ".", **env})


def http(port: int, **fields: Any) -> HttpEntry:
    return HttpEntry(url=f"http://127.0.0.1:{port}/mcp", **fields)


async def read(app: Any, name: str = "paged", **limits: Any) -> Listing:
    async with serving(app) as port:
        (listing,) = await McpSource(name, http(port), {}, limits=Limits(**limits)).read()
    return listing


def listing_of(tools: Any) -> Starlette:
    return legacy({"tools/list": lambda params: {"tools": tools}})


async def test_a_process_is_started_with_variables_of_the_environment_and_read() -> None:
    source = McpSource("echo/1", stdio("tools", EXTRA_TOOL="${NAME_OF_TOOL}"), {"NAME_OF_TOOL": "added_by_env"})
    (listing,) = await source.read()
    assert [(candidate.id, candidate.server) for candidate in listing.candidates] == [
        ("echo%2F1/echo", "echo/1"),
        ("echo%2F1/added_by_env", "echo/1"),
    ]
    assert listing.candidates[0].parameters == [("query", True)]
    assert listing.server.description == "Echo\nRepeats what it hears."
    assert "added_by_env" not in str(listing.server)


async def test_400_tools_over_5_pages_are_all_listed() -> None:
    tools = [Tool(name=f"tool_{i}", description=f"Does {i}", input_schema=OBJECT) for i in range(400)]
    listing = await read(paged_server(tools, 5, ttl_ms=60_000).streamable_http_app())
    assert [candidate.name for candidate in listing.candidates] == [tool.name for tool in tools]
    assert listing.server.ttl_ms == 60_000
    assert listing.problems == ()


async def test_an_empty_description_a_long_name_and_a_name_given_twice() -> None:
    tools = [
        Tool(name="bare", input_schema=EMPTY),
        Tool(name="t" * 300, description="", title="Long", input_schema=EMPTY),
        Tool(name="bare", description="second", input_schema=EMPTY),
        Tool(name="x" * 5_000, input_schema=EMPTY),
    ]
    listing = await read(paged_server(tools).streamable_http_app())
    assert [(candidate.name, candidate.description) for candidate in listing.candidates] == [
        ("bare", ""),
        ("t" * 300, "Long"),
    ]
    assert len(listing.problems) == 2
    assert "tool 2 ('bare') has the name of an earlier one" in listing.problems[0]
    assert "5006 bytes" in listing.problems[1]


async def test_a_server_without_hints_has_no_ttl_and_one_with_them_has() -> None:
    server = MCPServer("hints", cache_hints={"tools/list": CacheHint(ttl_ms=1_500)})
    assert (await read(server.streamable_http_app())).server.ttl_ms == 1_500
    assert (await read(searching("none").streamable_http_app())).server.ttl_ms is None


async def test_a_server_of_the_older_protocol_is_read() -> None:
    listing = await read(listing_of([{"name": "old", "inputSchema": {"type": "object"}}]), "legacy")
    assert [candidate.id for candidate in listing.candidates] == ["legacy/old"]


@pytest.mark.parametrize("json_response", [True, False])
async def test_headers_are_sent_and_never_told(json_response: bool, caplog: pytest.LogCaptureFixture) -> None:
    app = searching("guarded").streamable_http_app(json_response=json_response)
    seen = []

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            seen.append(dict(scope["headers"])[b"authorization"])
        await app(scope, receive, send)

    caplog.set_level(logging.DEBUG)
    async with serving(guarded) as port:
        entry = http(port, headers={"Authorization": "Bearer ${TOKEN}"})
        (listing,) = await McpSource("guarded", entry, {"TOKEN": "s3cret-value"}).read()
    assert set(seen) == {b"Bearer s3cret-value"}
    assert listing.server.source == {
        "kind": "mcp",
        "url": f"http://127.0.0.1:{port}/mcp",
        "headers": {"Authorization": "Bearer ${TOKEN}"},
    }
    ours = [record for record in caplog.records if record.name.split(".")[0] in {"mcp", "httpx2", "serving"}]
    assert not any("s3cret-value" in record.getMessage() for record in ours)


async def test_a_secret_in_a_url_is_in_no_log_and_no_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def refused(request: Request) -> Response:
        return Response(status_code=500)

    async with serving(Starlette(routes=[Route("/{key}/mcp", refused, methods=["POST"])])) as port:
        entry = HttpEntry(url=f"http://127.0.0.1:{port}/${{KEY}}/mcp")
        with pytest.raises(SourceError, match="MCP server 'guarded' failed") as caught:
            await McpSource("guarded", entry, {"KEY": "s3cret-value"}).read()
    assert "s3cret-value" not in str(caught.value)
    ours = [record for record in caplog.records if record.name.split(".")[0] in {"mcp", "httpx2", "serving"}]
    assert not any("s3cret-value" in record.getMessage() for record in ours)


async def test_an_unset_variable_is_named() -> None:
    with pytest.raises(SourceError, match="MCP server 'echo': the environment variable TOKEN is not set"):
        await McpSource("echo", stdio("tools", EXTRA_TOOL="${TOKEN}"), {}).read()
    source = McpSource("echo", stdio("tools", EXTRA_TOOL="${env:TOKEN:-fallback}"), {})
    assert [candidate.name for candidate in (await source.read())[0].candidates] == ["echo", "fallback"]


async def test_a_process_that_ends_says_why_without_its_secrets() -> None:
    source = McpSource("broken", stdio("broken", BROKEN_TOKEN="${TOKEN}"), {"TOKEN": "s3cret-value"})
    with pytest.raises(SourceError, match=r"standard error ends with: cannot start: \S+ is not accepted") as caught:
        await source.read()
    assert "s3cret-value" not in str(caught.value)


async def test_a_command_that_is_not_there_is_named() -> None:
    entry = StdioEntry(command="no-such-command")
    with pytest.raises(SourceError, match="could not be started: No such file or directory: no-such-command"):
        await McpSource("missing", entry, {}).read()


async def test_a_server_that_says_nothing_is_given_up() -> None:
    with pytest.raises(SourceError, match=r"MCP server 'silent' did not answer within 0\.2 s"):
        await McpSource("silent", stdio("silent"), {}, limits=Limits(timeout_s=0.2)).read()


async def test_nothing_that_listens_is_an_error_of_words() -> None:
    async with serving(searching("gone").streamable_http_app()) as port:
        pass
    with pytest.raises(SourceError, match=r"MCP server 'gone' failed: .*ConnectError"):
        await McpSource("gone", http(port), {}).read()


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ([{"name": "t", "description": 7, "inputSchema": EMPTY}], r"invalid answer: .*tools\.0\.description"),
        ([{"name": ["t"], "inputSchema": EMPTY}], r"invalid answer: .*tools\.0\.name"),
        ([{"name": "t", "inputSchema": "none"}], r"invalid answer: .*tools\.0\.inputSchema"),
        ("none", r"invalid answer: .*tools"),
    ],
)
async def test_fields_of_the_wrong_kind_are_an_error_that_says_where(tools: Any, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        await read(listing_of(tools))


async def test_what_no_database_takes_is_left_out_and_told() -> None:
    tools = [
        {"name": "nul\0", "inputSchema": EMPTY},
        {"name": "", "inputSchema": EMPTY},
        {"name": "large", "description": "d" * 3_000, "inputSchema": EMPTY},
        {"name": "nan", "inputSchema": EMPTY | {"x": float("nan")}},
        {"name": "good", "inputSchema": EMPTY},
    ]
    listing = await read(listing_of(tools), candidate_size=2_000)
    assert [candidate.name for candidate in listing.candidates] == ["good"]
    assert [problem.partition(")")[0] for problem in listing.problems] == [
        "tool 0 ('nul\N{REPLACEMENT CHARACTER}'",
        "tool 1 (''",
        "tool 2 ('large'",
        "tool 3 ('nan'",
    ]


async def test_a_list_that_never_ends_is_an_error() -> None:
    same = legacy({"tools/list": lambda params: {"tools": [], "nextCursor": "again"}})
    with pytest.raises(SourceError, match="its list never ends"):
        await read(same)
    new = legacy({"tools/list": lambda params: {"tools": [], "nextCursor": params.get("cursor", "") + "x"}})
    with pytest.raises(SourceError, match="lists more than 20 pages of tools"):
        await read(new, pages=20)


async def test_too_many_tools_or_bytes_are_an_error() -> None:
    tools = [{"name": f"t{i}", "description": "d" * 1_000, "inputSchema": EMPTY} for i in range(11)]
    with pytest.raises(SourceError, match="lists more than 10 candidates"):
        await read(listing_of(tools), candidates=10)
    with pytest.raises(SourceError, match="the answer has more than 5,000 bytes"):
        await read(listing_of(tools), total_size=5_000)
    pages = legacy({"tools/list": lambda params: {"tools": tools[:1], "nextCursor": params.get("cursor", "") + "x"}})
    with pytest.raises(SourceError, match="lists more than 5,000 characters of candidates"):
        await read(pages, total_size=5_000)


async def test_an_answer_without_end_is_cut_off() -> None:
    async def endless(request: Request) -> Response:
        async def parts() -> Any:
            while True:
                yield b" " * 1_000
                await anyio.lowlevel.checkpoint()

        return StreamingResponse(parts(), media_type="application/json")

    app = Starlette(routes=[Route("/mcp", endless, methods=["POST"])])
    with pytest.raises(SourceError, match="the answer has more than 50,000 bytes"):
        await read(app, total_size=50_000)


async def test_a_change_is_told_over_http_on_the_connection_that_lists_it() -> None:
    bus = InMemorySubscriptionBus()
    server = searching("changing", subscriptions=bus)
    async with (
        serving(server.streamable_http_app()) as port,
        McpSource("changing", http(port), {}).watch() as watch,
    ):
        assert watch.changed is not None
        (before,) = await watch.read()
        server.remove_tool("search")
        await bus.publish(ToolsListChanged())
        with anyio.fail_after(10):
            await watch.changed()
        (after,) = await watch.read()
    assert [candidate.name for candidate in before.candidates] == ["search"]
    assert after.candidates == ()


async def test_the_end_of_a_subscription_is_told() -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(AsyncExitStack())
        port = await server.enter_async_context(serving(searching("ending").streamable_http_app()))
        watch = await stack.enter_async_context(McpSource("ending", http(port), {}).watch())
        assert watch.changed is not None
        await server.aclose()
        with pytest.raises(SourceError, match="MCP server 'ending' failed: SubscriptionLost"), anyio.fail_after(10):
            await watch.changed()


async def test_a_change_is_told_over_stdio_by_a_server_of_the_older_protocol() -> None:
    async with McpSource("growing", stdio("growing"), {}).watch() as watch:
        assert watch.changed is not None
        (before,) = await watch.read()
        with anyio.fail_after(10):
            await watch.changed()
        (after,) = await watch.read()
    assert len(before.candidates) == 1
    assert len(after.candidates) == 2


async def test_a_server_that_tells_nothing_need_not_be_kept_open() -> None:
    async with serving(listing_of([])) as port, McpSource("legacy", http(port), {}).watch() as watch:
        assert watch.changed is None


async def test_what_fails_while_a_server_is_watched_comes_out_as_it_is() -> None:
    class OtherError(Exception):
        pass

    async with serving(searching("fine").streamable_http_app()) as port:
        with pytest.raises(OtherError):
            async with McpSource("fine", http(port), {}).watch():
                raise OtherError


async def test_a_server_that_still_speaks_sse_is_read() -> None:
    async with serving(searching("sse").sse_app()) as port:
        entry = HttpEntry(url=f"http://127.0.0.1:{port}/sse", type="sse")
        (listing,) = await McpSource("sse", entry, {}).read()
    assert [candidate.id for candidate in listing.candidates] == ["sse/search"]
