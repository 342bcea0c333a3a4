"""What an agent remembers, for whom, and what the router reads of it."""

from __future__ import annotations

import pytest
from mcp.types import CallToolResult, ImageContent, TextContent

from serving.agent.threads import Thread, Threads, digest, step
from serving.catalog.sources.mcp import McpSource
from serving.types import ForbiddenError, Message, ToolCall
from tests.live import serving
from tests.serving.agent.conftest import running
from tests.serving.agent.test_results import source
from tests.serving.agent.upstreams import Studio
from tests.serving.catalog.conftest import postgres, postgres_url  # noqa: F401

pytestmark = pytest.mark.anyio


async def test_a_host_that_passes_only_the_task_is_routed_with_its_history(database: str) -> None:
    async with (
        serving(Studio().server.streamable_http_app()) as port,
        running(database, [source(port)]) as agent,
        agent.host() as client,
    ):
        first = (await client.call_tool("route", {"task": "echo the text"})).structured_content
        handle = first["thread"]
        await client.call_tool(
            "execute", {"candidate_id": "studio/echo_text", "arguments": {"text": "hi"}, "thread": handle}
        )
        again = (await client.call_tool("route", {"task": "show a picture", "thread": handle})).structured_content
        assert again["thread"] == handle
        assert again["decision"]["name"] == "show_picture"
        assert agent.router.asked[-1].messages == (
            Message("user", "echo the text"),
            Message("assistant", "", (ToolCall("studio/echo_text", '{"text": "hi"}'),)),
            Message("tool", "studio: hi", (), "studio/echo_text"),
            Message("user", "show a picture"),
        )
        # The same task again is no new question: what happened since belongs to it.
        await client.call_tool("execute", {"candidate_id": "broken_thing", "arguments": {}, "thread": handle})
        await client.call_tool("route", {"task": "show a picture", "thread": handle})
        assert agent.router.asked[-1].messages[-1] == Message("tool", "error: it is broken", (), "studio/broken_thing")


async def test_without_a_handle_every_answer_stands_alone(database: str) -> None:
    async with (
        serving(Studio().server.streamable_http_app()) as port,
        running(database, [source(port)]) as agent,
        agent.host() as client,
    ):
        first = (await client.call_tool("route", {"task": "echo the text"})).structured_content
        await client.call_tool("execute", {"candidate_id": "studio/echo_text", "arguments": {"text": "hi"}})
        second = (await client.call_tool("route", {"task": "show a picture"})).structured_content
        assert first["thread"] != second["thread"]
        assert agent.router.asked[-1].messages == (Message("user", "show a picture"),)


async def test_a_history_that_the_host_tells_counts_and_is_remembered(database: str) -> None:
    history = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "x", "arguments": "{}"}}]},
        {"role": "tool", "content": "y", "name": "x"},
    ]
    async with (
        serving(Studio().server.streamable_http_app()) as port,
        running(database, [source(port)]) as agent,
        agent.host() as client,
    ):
        told = (await client.call_tool("route", {"task": "show a picture", "history": history})).structured_content
        asked = agent.router.asked[-1].messages
        assert [message.role for message in asked] == ["user", "assistant", "tool", "user"]
        await client.call_tool("route", {"task": "play a sound", "thread": told["thread"]})
        assert agent.router.asked[-1].messages == (*asked, Message("user", "play a sound"))


async def test_the_thread_of_another_caller_is_refused(database: str) -> None:
    studio = Studio()
    async with (
        serving(studio.server.streamable_http_app()) as port,
        running(database, [source(port)], keys=["key-of-ada", "key-of-bob"]) as agent,
        agent.host(key="key-of-ada") as ada,
        agent.host(key="key-of-bob") as bob,
    ):
        handle = (await ada.call_tool("route", {"task": "echo the text"})).structured_content["thread"]
        refused = await bob.call_tool("route", {"task": "show a picture", "thread": handle})
        call = {"candidate_id": "studio/echo_text", "arguments": {"text": "x"}, "thread": handle}
        executed = await bob.call_tool("execute", call)
        unknown = await bob.call_tool("route", {"task": "show a picture", "thread": "nothing"})
        assert refused.is_error
        assert executed.is_error
        assert not studio.calls
        # Nothing tells a handle of another from one that never was.
        assert refused.content == unknown.content
        assert not (await ada.call_tool("execute", call)).is_error


@pytest.fixture(params=["sqlite", "postgresql"])
def any_database(request: pytest.FixtureRequest, database: str) -> str:
    return database if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))


async def test_a_thread_is_kept_bounded_expires_and_can_be_deleted(any_database: str) -> None:
    threads = Threads(any_database, characters=1_000)
    await threads.start()
    try:
        handle = await threads.create("ada", Thread([Message("user", "the question")]))
        for number in range(20):
            async with threads.change(handle, "ada") as thread:
                result = CallToolResult(content=[TextContent(text=f"{number} " + "x" * 200)])
                thread.messages += step("a/b", {"n": number}, result, 300)
                thread.show(f"a/{number}", "hash")
        kept = await threads.get(handle, "ada")
        assert kept.messages[0] == Message("user", "the question")
        assert kept.messages[1].role == "assistant"
        assert kept.messages[-1].content.startswith("19 ")
        assert sum(len(message.content) for message in kept.messages) <= 1_000
        assert len(kept.routed) == 20
        with pytest.raises(ForbiddenError):
            await threads.delete(handle, "bob")
        await threads.delete(handle, "ada")
        with pytest.raises(ForbiddenError):
            await threads.get(handle, "ada")
    finally:
        await threads.close()
    short = Threads(any_database, ttl_s=-1)
    await short.start()
    try:
        with pytest.raises(ForbiddenError, match="expired"):
            await short.get(await short.create("ada", Thread()), "ada")
    finally:
        await short.close()


def test_a_digest_keeps_both_ends_and_tells_what_it_left_out() -> None:
    assert digest("short", 10) == "short"
    assert digest("a" * 50 + "z" * 50, 20) == f"{'a' * 15}[... 80 characters ...]{'z' * 5}"
    assert digest("nul\0", 10) == "nul\N{REPLACEMENT CHARACTER}"


def test_a_picture_is_remembered_as_one() -> None:
    result = CallToolResult(content=[ImageContent(data="AAAA", mime_type="image/png")])
    assert step("a/b", {}, result, 100)[1].content == "[image image/png]"


async def test_a_handle_is_no_value_of_the_database(database: str, tmp_path) -> None:
    threads = Threads(database)
    await threads.start()
    handle = await threads.create("ada", Thread([Message("user", "findable")]))
    await threads.close()
    data = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"findable" in data
    assert handle.encode() not in data


async def test_a_candidate_that_says_something_else_than_the_thread_was_shown_is_reported_once(database: str) -> None:
    studio = Studio()
    async with (
        serving(studio.server.streamable_http_app()) as port,
        running(database, [source(port)]) as agent,
        agent.host() as client,
    ):
        handle = (await client.call_tool("route", {"task": "echo the text"})).structured_content["thread"]
        studio.description = "Says it again, and sends it to someone"
        # Read again, as when its server had said that its list changed.
        await agent.read_again(McpSource("studio", source(port)._entry, {}))
        call = {"candidate_id": "studio/echo_text", "arguments": {"text": "x"}, "thread": handle}
        told = await client.call_tool("execute", call)
        assert told.is_error
        assert "sends it to someone" in told.content[0].text
        assert not studio.calls
        assert not (await client.call_tool("execute", call)).is_error
