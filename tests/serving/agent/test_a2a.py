"""A real agent, built with the A2A SDK, routed to and called like any tool."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest
from a2a.helpers import new_task_from_user_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types.a2a_pb2 import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, Part
from mcp.types import ImageContent, TextContent
from starlette.applications import Starlette

from serving.catalog.sources.a2a import A2ASource
from tests.live import serving
from tests.serving.agent.conftest import running
from tests.serving.agent.test_results import source
from tests.serving.agent.upstreams import Studio

pytestmark = pytest.mark.anyio
PICTURE = b"\x89PNG"


class Planner(AgentExecutor):
    """Plans in steps; asks, fails or hangs where the message says so."""

    def __init__(self) -> None:
        self.cancelled = anyio.Event()

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        said = context.get_user_input()
        task = context.current_task
        if task is None:
            task = new_task_from_user_message(context.message)
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await updater.start_work(updater.new_agent_message([Part(text="planning")]))
        if "hang" in said:
            await anyio.sleep_forever()
        if "ask" in said:
            await updater.requires_input(updater.new_agent_message([Part(text="Where to?")]))
            return
        if "fail" in said:
            await updater.failed(updater.new_agent_message([Part(text="no flights")]))
            return
        await updater.add_artifact([Part(text=f"plan for {said}: ")], artifact_id="plan")
        await updater.add_artifact([Part(text="fly")], artifact_id="plan", append=True, last_chunk=True)
        await updater.add_artifact([Part(raw=PICTURE, media_type="image/png")], artifact_id="map")
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        self.cancelled.set()
        await TaskUpdater(event_queue, context.task_id or "", context.context_id or "").cancel()


@asynccontextmanager
async def planning(planner: Planner, *, streaming: bool = True) -> AsyncIterator[A2ASource]:
    app = Starlette()
    async with serving(app) as port:
        card = AgentCard(
            name="Trip planner",
            description="Plans trips.",
            version="1",
            supported_interfaces=[
                AgentInterface(url=f"http://127.0.0.1:{port}/", protocol_binding="JSONRPC", protocol_version="1.0")
            ],
            capabilities=AgentCapabilities(streaming=streaming),
            default_input_modes=["text"],
            default_output_modes=["text"],
            skills=[AgentSkill(id="flights", name="Book flights", description="Finds flights", tags=["travel"])],
        )
        handler = DefaultRequestHandler(planner, InMemoryTaskStore(), card)
        app.routes.extend([*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/")])
        yield A2ASource(f"http://127.0.0.1:{port}", {}, name="trips")


@pytest.mark.parametrize("streaming", [True, False])
async def test_an_agent_is_routed_to_and_its_stream_is_passed_on(streaming: bool, database: str) -> None:
    seen: list[Any] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        seen.append(message)

    async with (
        planning(Planner(), streaming=streaming) as agent_source,
        running(database, [agent_source]) as agent,
        agent.host() as client,
    ):
        routed = (await client.call_tool("route", {"task": "a planner for my trip"})).structured_content
        decision = routed["decision"]
        assert decision["type"] == "agent"
        assert decision["input_schema"]["required"] == ["message"]
        call = {"candidate_id": decision["candidate_id"], "arguments": {"message": "Rome"}, "thread": routed["thread"]}
        result = await client.call_tool("execute", call, progress_callback=progress)
        assert result.content == [
            TextContent(text="plan for Rome: fly"),
            ImageContent(data="iVBORw==", mime_type="image/png"),
        ]
        assert result.structured_content["state"] == "completed"
        assert not result.is_error
        assert seen == (["planning", "plan for Rome: ", "fly"] if streaming else [])


async def test_an_agent_that_asks_is_answered_in_its_task_and_one_that_fails_is_an_error(database: str) -> None:
    async with (
        planning(Planner()) as agent_source,
        running(database, [agent_source]) as agent,
        agent.host() as client,
    ):
        name = "trips/Trip planner"
        asked = await client.call_tool("execute", {"candidate_id": name, "arguments": {"message": "ask me"}})
        assert asked.structured_content["state"] == "input-required"
        assert "Where to?" in asked.content[0].text
        answer = {"message": "Rome", "task_id": asked.structured_content["task_id"]}
        assert (
            "plan for Rome"
            in (await client.call_tool("execute", {"candidate_id": name, "arguments": answer})).content[0].text
        )
        failed = await client.call_tool("execute", {"candidate_id": name, "arguments": {"message": "fail"}})
        assert failed.is_error
        assert failed.content[0].text == "no flights"
        unfit = await client.call_tool("execute", {"candidate_id": name, "arguments": {"text": "Rome"}})
        assert '"message" is a required property' in unfit.content[0].text


async def test_cancelling_reaches_the_agent(database: str) -> None:
    planner = Planner()
    working = anyio.Event()

    async def progress(done: float, total: float | None, message: str | None) -> None:
        working.set()

    async with (
        planning(planner) as agent_source,
        running(database, [agent_source]) as agent,
        agent.host() as client,
    ):
        async with anyio.create_task_group() as group:
            call = {"candidate_id": "trips/Trip planner", "arguments": {"message": "hang"}}
            group.start_soon(partial(client.call_tool, "execute", call, progress_callback=progress))
            # Before the agent has named its task there is nothing to cancel.
            await working.wait()
            group.cancel_scope.cancel()
        with anyio.fail_after(30):
            await planner.cancelled.wait()


async def test_for_teaming_only_agents_are_routed_to_and_called(database: str) -> None:
    studio = Studio()
    async with (
        planning(Planner()) as agent_source,
        serving(studio.server.streamable_http_app()) as port,
        running(database, [agent_source, source(port)], types=["agent"]) as agent,
        agent.host() as client,
    ):
        routed = (await client.call_tool("route", {"task": "echo the text"})).structured_content
        assert routed["decision"] is None
        assert [other["candidate_id"] for other in routed["alternatives"]] == ["trips/Trip planner"]
        refused = await client.call_tool("execute", {"candidate_id": "studio/echo_text", "arguments": {"text": "a"}})
        assert refused.is_error
        assert not studio.calls
        assert "1 agent on 1 server" in ((await client.list_tools()).tools[0].description or "")
