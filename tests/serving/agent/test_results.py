"""Route, then execute, through the real protocol in both its eras: results of every kind come back as they were."""

from __future__ import annotations

from typing import Any

import pytest
from mcp import Client, MCPError
from mcp.types import (
    CLIENT_CAPABILITIES_META_KEY,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    AudioContent,
    CallToolResult,
    ElicitResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
)

from serving.catalog.sources.mcp import McpSource
from serving.catalog.sources.mcp_config import HttpEntry
from tests.live import serving
from tests.serving.agent.conftest import running
from tests.serving.agent.upstreams import PIXEL, SHAPE, Studio

pytestmark = pytest.mark.anyio
ERAS = pytest.mark.parametrize("mode", ["legacy", "auto"])


def source(port: int, name: str = "studio") -> McpSource:
    return McpSource(name, HttpEntry(url=f"http://127.0.0.1:{port}/mcp"), {})


async def run(client: Client, task: str, arguments: Any = None) -> CallToolResult:
    """What a host does: route, and execute what was decided."""
    routed = await client.call_tool("route", {"task": task})
    decision = routed.structured_content["decision"]
    return await client.call_tool(
        "execute",
        {
            "candidate_id": decision["candidate_id"],
            "arguments": arguments or {},
            "thread": routed.structured_content["thread"],
        },
    )


@ERAS
async def test_every_kind_of_result_is_passed_on_unchanged(mode: str, database: str) -> None:
    studio = Studio()
    async with (
        serving(studio.server.streamable_http_app()) as port,
        running(database, [source(port)]) as agent,
        agent.host(mode) as client,
    ):
        assert (await run(client, "echo the text", {"text": "hé"})).content == [TextContent(text="studio: hé")]
        assert (await run(client, "show a picture")).content == [ImageContent(data=PIXEL, mime_type="image/png")]
        assert (await run(client, "play a sound")).content == [AudioContent(data=PIXEL, mime_type="audio/wav")]
        assert (await run(client, "give me the link")).content == [
            ResourceLink(uri="file:///a.txt", name="a", description="A file")
        ]
        (embedded,) = (await run(client, "embed the resource")).content
        assert isinstance(embedded, EmbeddedResource)
        weather = await run(client, "structured weather")
        assert weather.structured_content == {"degrees": 21}
        assert weather.meta is not None
        assert weather.meta["own"] == 1
        broken = await run(client, "the broken thing")
        assert broken.is_error
        assert broken.content == [TextContent(text="it is broken")]
        # What does not fit the tool's own output schema is the host's to judge.
        assert (await run(client, "misfit output")).structured_content == {"y": 1}
        listed = (await run(client, "list structured")).structured_content
        assert listed == ([1] if mode == "auto" else {"result": [1]})


@ERAS
async def test_exactly_two_tools_are_listed(mode: str, database: str) -> None:
    async with (
        serving(Studio().server.streamable_http_app()) as port,
        running(database, [source(port)]) as agent,
        agent.host(mode) as client,
    ):
        route, execute = (await client.list_tools()).tools
        assert (route.name, execute.name) == ("route", "execute")
        assert route.annotations is not None
        assert route.annotations.read_only_hint
        assert execute.annotations is not None
        assert execute.annotations.destructive_hint
        assert "16 tools on 1 server" in (route.description or "")
        assert "studio (16: " in (route.description or "")


async def test_a_pinned_candidate_is_a_tool_of_its_own(database: str) -> None:
    async with (
        serving(Studio().server.streamable_http_app()) as port,
        running(database, [source(port)], pinned=["echo_text", "no_such_tool"]) as agent,
        agent.host() as client,
    ):
        *_, pinned = (await client.list_tools()).tools
        assert pinned.name == "studio__echo_text"
        assert pinned.annotations is not None
        assert pinned.annotations.read_only_hint
        result = await client.call_tool(pinned.name, {"text": "direct"})
        assert result.content == [TextContent(text="studio: direct")]


async def test_a_decision_tells_what_to_call_and_what_else_there_is(database: str) -> None:
    async with (
        serving(Studio().server.streamable_http_app()) as port,
        running(database, [source(port)]) as agent,
        agent.host() as client,
    ):
        result = await client.call_tool("route", {"task": "draw a shape", "k": "2"})
        told = result.structured_content
        assert told["decision"]["candidate_id"] == "studio/draw_shape"
        assert told["decision"]["input_schema"] == SHAPE
        assert 0 < told["decision"]["probability"] < 1
        assert len(told["alternatives"]) == 2
        text = result.content[0].text
        assert "studio/draw_shape" in text
        assert told["thread"] in text
        nothing = (await client.call_tool("route", {"task": "xyz"})).structured_content
        assert nothing["decision"] is None
        assert "none of 16 candidates fits" in nothing["reason"]
        elsewhere = {"task": "draw a shape", "filters": {"servers": "other"}}
        filtered = (await client.call_tool("route", elsewhere)).structured_content
        assert filtered["decision"] is None
        assert "filters" in filtered["reason"]


@ERAS
async def test_progress_is_passed_on(mode: str, database: str) -> None:
    seen: list[tuple[float, float | None, str | None]] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        seen.append((done, total, message))

    async with (
        serving(Studio().server.streamable_http_app()) as port,
        running(database, [source(port)]) as agent,
        agent.host(mode) as client,
    ):
        arguments = {"candidate_id": "studio/slow_steps", "arguments": {}}
        await client.call_tool("execute", arguments, progress_callback=progress)
    assert seen == [(1, 2, "step 1"), (2, 2, "step 2")]


async def test_what_an_upstream_asks_of_the_user_is_asked_by_the_host(database: str) -> None:
    async def user(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"name": "Ada"})

    async with (
        serving(Studio().server.streamable_http_app()) as port,
        running(database, [source(port)]) as agent,
        agent.host(elicitation_callback=user) as client,
    ):
        result = await client.call_tool("execute", {"candidate_id": "studio/ask_user", "arguments": {}})
        assert result.content == [TextContent(text="Ada kept")]


async def test_a_host_that_cannot_ask_is_told_what_was_asked(database: str) -> None:
    async with (
        serving(Studio().server.streamable_http_app()) as port,
        running(database, [source(port)]) as agent,
        agent.host("legacy") as client,
    ):
        result = await client.call_tool("execute", {"candidate_id": "studio/ask_user", "arguments": {}})
        assert result.is_error
        assert "Who?" in result.content[0].text


async def test_what_a_host_has_not_said_it_can_be_asked_is_not_asked(database: str) -> None:
    async with (
        serving(Studio().server.streamable_http_app()) as port,
        running(database, [source(port)]) as agent,
        agent.host() as client,
    ):
        with pytest.raises(MCPError) as refused:
            await client.call_tool("execute", {"candidate_id": "studio/ask_user", "arguments": {}})
        assert refused.value.code == MISSING_REQUIRED_CLIENT_CAPABILITY
        assert refused.value.data == {"requiredCapabilities": {"elicitation": {}}}


async def test_an_upstream_is_told_what_its_host_can_be_asked_for(database: str) -> None:
    """And not what the agent's own connection could do, which it shares among hosts."""

    async def user(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="decline")

    studio = Studio()
    async with (
        serving(studio.server.streamable_http_app()) as port,
        running(database, [source(port)]) as agent,
        agent.host() as mute,
        agent.host(elicitation_callback=user) as asked,
        agent.host("legacy", elicitation_callback=user) as legacy,
    ):
        call = {"candidate_id": "studio/structured_weather", "arguments": {}}
        for host in (mute, asked, legacy):
            await host.call_tool("execute", call)
    told = [(params.meta or {})[CLIENT_CAPABILITIES_META_KEY] for params in studio.calls]
    assert ["elicitation" in capabilities for capabilities in told] == [False, True, False]
    assert not any(key.startswith("light-router") for params in studio.calls for key in params.meta or {})


async def test_a_result_of_20_mb_arrives_whole(database: str) -> None:
    size = 20 * 2**20
    async with (
        serving(Studio().server.streamable_http_app()) as port,
        running(database, [source(port)]) as agent,
        agent.host() as client,
    ):
        routed = await client.call_tool("route", {"task": "make it large"})
        handle = routed.structured_content["thread"]
        call = {"candidate_id": "studio/make_large", "arguments": {"size": size}, "thread": handle}
        result = await client.call_tool("execute", call)
        assert len(result.content[0].text) == size
        # The next decision reads a digest of it.
        remembered = (await agent.agent.threads.get(handle, "")).messages
        assert [message.role for message in remembered] == ["user", "assistant", "tool"]
        assert len(remembered[-1].content) < 3_000
        assert "characters ...]" in remembered[-1].content


@pytest.mark.parametrize(
    ("shape", "fits"), [({"radius": 1}, True), ({"side": 2.5}, True), ({"radius": 1, "side": 1}, False)]
)
async def test_schemas_with_references_and_one_of_are_checked(shape: Any, fits: bool, database: str) -> None:
    studio = Studio()
    async with (
        serving(studio.server.streamable_http_app()) as port,
        running(database, [source(port)]) as agent,
        agent.host() as client,
    ):
        result = await run(client, "draw a shape", {"shape": shape})
        assert result.is_error is not fits
        assert len(studio.calls) == fits
        if not fits:
            assert result.structured_content["expected"][0]["input_schema"] == SHAPE


async def test_a_reference_to_another_document_is_not_followed_and_left_to_the_upstream(database: str) -> None:
    studio = Studio()
    async with (
        serving(studio.server.streamable_http_app()) as port,
        running(database, [source(port)]) as agent,
        agent.host() as client,
    ):
        assert not (await run(client, "remote reference", {"a": 1})).is_error
        assert studio.calls[-1].arguments == {"a": 1}
