"""What models get wrong is mended where it is unambiguous, and otherwise answered with what would be right."""

from __future__ import annotations

import re
from typing import Any

import pytest

from serving.agent.arguments import Execution, Schemas, read_execution
from serving.catalog.entry import Entry
from serving.types import InvalidRequestError
from tests.live import serving
from tests.serving.agent.conftest import running
from tests.serving.agent.test_results import source
from tests.serving.agent.upstreams import TEXT, Studio

pytestmark = pytest.mark.anyio

MEANT = Execution("fs/read", {"path": "/a"}, "t")


@pytest.mark.parametrize(
    "given",
    [
        {"candidate_id": "fs/read", "arguments": {"path": "/a"}, "thread": "t"},
        {"candidate_id": "fs/read", "arguments": '{"path": "/a"}', "thread": "t"},
        {"tool_name": "fs/read", "args": {"path": "/a"}, "thread": "t"},
        {"name": "fs/read", "parameters": {"path": "/a"}, "thread": "t"},
        {"candidate_id": "fs/read", "path": "/a", "thread": "t"},
        {"arguments": {"tool_name": "fs/read", "arguments": {"path": "/a"}}, "thread": "t"},
        {"arguments": {"tool_name": "fs/read", "path": "/a", "thread": "t"}},
        {"arguments": '{"candidate_id": "fs/read", "arguments": "{\\"path\\": \\"/a\\"}"}', "thread": "t"},
        {"candidate_id": "fs/read", "arguments": {"tool_name": "fs/read", "arguments": {"path": "/a"}}, "thread": "t"},
    ],
)
def test_a_call_is_read_as_it_was_meant(given: dict[str, Any]) -> None:
    assert read_execution(given) == MEANT


@pytest.mark.parametrize("given", [{}, {"arguments": {"path": "/a"}}, {"candidate_id": 3, "arguments": {}}])
def test_a_call_without_a_name_is_told_what_is_right(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=re.escape('call execute with {"candidate_id"')):
        read_execution(given)


@pytest.mark.parametrize("arguments", ["[1]", 3, "{", [1]])
def test_arguments_that_are_no_object_are_told_so(arguments: Any) -> None:
    with pytest.raises(InvalidRequestError, match="arguments"):
        read_execution({"candidate_id": "a", "arguments": arguments})


def test_one_more_wrapper_is_taken_off_only_where_the_schema_has_no_such_property() -> None:
    schemas = Schemas()
    assert schemas.fitting({"arguments": {"text": "a"}}, TEXT) == {"text": "a"}
    assert schemas.fitting({"input": '{"text": "a"}'}, TEXT) == {"text": "a"}
    own = {"type": "object", "properties": {"input": {"type": "object", "required": ["x"]}}, "required": ["input"]}
    with pytest.raises(InvalidRequestError, match=r"arguments\.input: .*required"):
        schemas.fitting({"input": {"text": "a"}}, own)


def test_a_schema_that_is_none_is_left_to_the_upstream() -> None:
    assert Schemas().fitting({"a": 1}, {"type": "no such type"}) == {"a": 1}


@pytest.mark.parametrize(
    "name", ["studio/echo_text", "studio__echo_text", "echo_text", "ECHO_TEXT", "Studio/Echo_Text"]
)
async def test_a_candidate_is_found_by_every_name_that_means_only_it(name: str, database: str) -> None:
    async with (
        serving(Studio().server.streamable_http_app()) as port,
        running(database, [source(port)]) as agent,
        agent.host() as client,
    ):
        result = await client.call_tool("execute", {"candidate_id": name, "arguments": '{"text": "a"}'})
        assert result.content[0].text == "studio: a"


async def test_errors_tell_enough_to_be_right_the_next_time(database: str) -> None:
    studio, other = Studio(), Studio("other")
    async with (
        serving(studio.server.streamable_http_app()) as port,
        serving(other.server.streamable_http_app()) as second,
        running(database, [source(port), source(second, "other")]) as agent,
        agent.host() as client,
    ):
        misspelt = await client.call_tool("execute", {"candidate_id": "studio__ecko_text", "arguments": {"text": "a"}})
        assert misspelt.is_error
        expected = misspelt.structured_content["expected"]
        assert {"candidate_id": "studio/echo_text", "input_schema": TEXT} in expected
        several = await client.call_tool("execute", {"candidate_id": "echo_text", "arguments": {"text": "a"}})
        assert several.is_error
        assert "other__echo_text, studio__echo_text" in several.content[0].text
        unfit = await client.call_tool("execute", {"candidate_id": "studio/echo_text", "arguments": {"txt": 1}})
        assert unfit.is_error
        assert '"text" is a required property' in unfit.content[0].text
        assert unfit.structured_content["expected"] == [{"candidate_id": "studio/echo_text", "input_schema": TEXT}]
        assert not studio.calls
        assert not other.calls


async def test_a_candidate_that_is_gone_is_told_so(database: str) -> None:
    async with (
        serving(Studio().server.streamable_http_app()) as port,
        running(database, [source(port)]) as agent,
        agent.host() as client,
    ):
        handle = (await client.call_tool("route", {"task": "echo the text"})).structured_content["thread"]
        await agent.router.catalogs.store.remove("agent", ["studio/echo_text"])
        call = {"candidate_id": "studio/echo_text", "arguments": {"text": "a"}, "thread": handle}
        gone = await client.call_tool("execute", call)
        assert gone.is_error
        assert "was routed to in this thread, but is not there any more" in gone.content[0].text


@pytest.mark.parametrize(
    "name", ["studio/echo_text", "STUDIO/ECHO_TEXT", "echo_text", "studio__echo_text", "Echo_Text"]
)
async def test_no_spelling_reaches_a_candidate_that_is_another_callers(name: str, database: str) -> None:
    studio = Studio()
    async with (
        serving(studio.server.streamable_http_app()) as port,
        running(database, [source(port)], keys=["key-of-ada"]) as agent,
        agent.host(key="key-of-ada") as client,
    ):
        store = agent.router.catalogs.store
        (entry,) = await store.get("agent", ["studio/echo_text"])
        await store.upsert("agent", [Entry(entry.candidate, principals=("bob",))])
        result = await client.call_tool("execute", {"candidate_id": name, "arguments": {"text": "a"}})
        assert result.is_error
        # Nor does an error or a list tell that it is there.
        assert "studio/echo_text" not in str(result.structured_content.get("expected"))
        assert "15 tools" in ((await client.list_tools()).tools[0].description or "")
        assert not studio.calls
