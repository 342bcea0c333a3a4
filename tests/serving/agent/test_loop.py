"""The loop over a chat model that a real HTTP server plays from a script, in front of real MCP servers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from prompts.agent import EMPTY_ANSWER
from serving.agent.agent import LightRoutingAgent
from serving.agent.loop import Bounds, Discovery, Observation, Run, run
from serving.agent.threads import Threads
from serving.config import AgentConfig
from serving.keys import ANYONE
from serving.llm import LLM, FunctionCall, Usage
from serving.llm import Reply as LLMReply
from serving.types import Candidate, EngineUnavailableError, InvalidRequestError, Message, StoreError, ToolCall
from tests.live import serving
from tests.serving import chat_server
from tests.serving.agent.conftest import Running
from tests.serving.agent.deciding import WordRouter, catalogs_at
from tests.serving.agent.test_results import source
from tests.serving.agent.upstreams import SHAPE, TEXT, Studio
from tests.serving.chat_server import USAGE, ChatServer, Reply

pytestmark = pytest.mark.anyio

USED = USAGE["prompt_tokens"] + USAGE["completion_tokens"]
Message_ = dict[str, Any]


def call(name: str, arguments: Any = None, *, id: str = "1", said: str = "") -> Message_:
    """A message of the model that calls one function."""
    written = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    function = {"name": name, "arguments": written}
    return {"role": "assistant", "content": said, "tool_calls": [{"id": id, "type": "function", "function": function}]}


def need(text: str) -> Message_:
    return call("discover", {"need": text})


def both(*messages: Message_) -> Message_:
    """One message with the calls of several."""
    return {**messages[0], "tool_calls": [one for message in messages for one in message["tool_calls"]]}


def say(text: str) -> Message_:
    return {"role": "assistant", "content": text}


@pytest.fixture
def chat() -> Iterator[ChatServer]:
    with chat_server.serving() as server:
        yield server


def play(chat: ChatServer, *script: Message_) -> None:
    """The model says this, in order; whatever comes after is an endless repetition of the last."""
    lines = list(script)

    def respond(body: Any) -> Reply:
        message = lines.pop(0) if len(lines) > 1 else lines[0]
        reason = "tool_calls" if "tool_calls" in message else "stop"
        choice = {"index": 0, "finish_reason": reason, "message": message}
        return Reply(
            body={"id": "x", "object": "chat.completion", "created": 1, "model": "m", "usage": USAGE,
                  "choices": [choice]}
        )  # fmt: skip

    chat.respond = respond


@asynccontextmanager
async def model(chat: ChatServer) -> AsyncIterator[LLM]:
    llm = LLM("scripted", chat.url, retries=0)
    try:
        yield llm
    finally:
        await llm.close()


@asynccontextmanager
async def studio_agent(database: str, studio: Studio) -> AsyncIterator[Running]:
    """The agent as Python uses it, without a surface of its own."""
    catalogs = catalogs_at(database)
    router = WordRouter(catalogs)
    async with serving(studio.server.streamable_http_app()) as port:
        agent = LightRoutingAgent(router, catalogs, Threads(database), [source(port)], AgentConfig(reconnect_s=0.05))
        async with agent.running():
            await agent.visible(ANYONE)
            yield Running(agent, router, 0)


def functions(body: dict[str, Any]) -> list[str]:
    return [tool["function"]["name"] for tool in body.get("tools", ())]


async def test_what_is_discovered_can_be_called_stays_and_a_new_sub_goal_discovers_again(
    database: str, chat: ChatServer
) -> None:
    play(
        chat,
        need("echo the text"),
        call("studio__echo_text", {"text": "hé"}, said="Now echo."),
        need("show a picture"),
        call("studio__show_picture"),
        call("studio__echo_text", {"text": "bye"}),
        say("Both are done."),
    )
    studio = Studio()
    async with studio_agent(database, studio) as made, model(chat) as llm:
        done = await made.agent.run("Echo hé and then show it", llm, bounds=Bounds(alternatives=0))

    assert (done.outcome, done.answer) == ("responded", "Both are done.")
    assert [step.action for step in done.steps] == [
        "discover", "invoke", "discover", "invoke", "invoke", "respond",
    ]  # fmt: skip
    assert done.accessible == ("studio/echo_text", "studio/show_picture")
    assert [step.found for step in done.steps if step.action == "discover"] == [
        ("studio/echo_text",), ("studio/show_picture",),
    ]  # fmt: skip
    assert [step.result for step in done.steps if step.action == "invoke"] == [
        "studio: hé", "[image image/png]", "studio: bye",
    ]  # fmt: skip
    assert (done.calls, done.usage.calls) == (3, 6)
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (600, 60)
    assert sum(step.usage.prompt_tokens for step in done.steps) == 600
    assert [params.arguments for params in studio.calls] == [{"text": "hé"}, {}, {"text": "bye"}]

    # What the chat model was offered grows with what was found; the schema comes with it.
    assert [functions(body) for body in chat.bodies] == [
        ["discover"], *[["discover", "studio__echo_text"]] * 2,
        *[["discover", "studio__echo_text", "studio__show_picture"]] * 3,
    ]  # fmt: skip
    assert chat.bodies[1]["tools"][1]["function"]["parameters"] == TEXT
    assert "studio (16" in chat.bodies[0]["tools"][0]["function"]["description"]
    # Every call has its answer.
    last = chat.bodies[-1]["messages"]
    assert [turn["role"] for turn in last] == ["system", "user", *["assistant", "tool"] * 5]
    # The router reads what happened by ids, without discoveries, and the announced step last.
    assert made.router.asked[-1].messages == (
        Message("user", "Echo hé and then show it"),
        Message("assistant", "Now echo.", (ToolCall("studio/echo_text", '{"text": "h\\u00e9"}'),)),
        Message("tool", "studio: hé", (), "studio/echo_text"),
        Message("assistant", "show a picture"),
    )


async def test_alternatives_become_callable_and_none_is_said(database: str, chat: ChatServer) -> None:
    play(chat, need("echo the text"), need("echo the text"), need("knit a scarf"), say("No."))
    async with studio_agent(database, Studio()) as made, model(chat) as llm:
        done = await made.agent.run("x", llm, bounds=Bounds(alternatives=2))
    first, again, nothing = done.steps[:3]
    assert first.found[0] == "studio/echo_text"
    assert len(first.found) == 3
    assert first.result.startswith("studio__echo_text fits best; it can be called now. Also callable now: ")
    # Asked again, the same is not offered as new, and others come in.
    assert again.result.startswith("studio__echo_text fits best; you have it already.")
    assert len(again.found) == 2
    assert not set(again.found) & set(first.found)
    assert nothing.result.startswith("Nothing seems to fit.")
    assert len(nothing.found) == 2


async def test_errors_go_back_to_the_model_which_mends_its_call(database: str, chat: ChatServer) -> None:
    play(
        chat,
        call("studio__echo_text", {"text": "x"}),
        call("discover", {"query": "echo"}),
        need("echo the text"),
        call("studio__echo_text", {"txt": "x"}),
        call("studio__echo_text", '{"text": '),
        both(call("studio__echo_text", {"text": "x"}, id="a"), need("broken thing")),
        call("studio__broken_thing"),
        say(" "),
        say("Done."),
    )
    async with studio_agent(database, Studio()) as made, model(chat) as llm:
        done = await made.agent.run("x", llm, bounds=Bounds(alternatives=0))
    told = [(step.failed, step.result) for step in done.steps]
    assert done.outcome == "responded"
    assert told[0] == (True, "error: 'studio__echo_text' is none of your functions; they are: discover")
    assert told[1][0]
    assert "there is no need" in told[1][1]
    assert told[3][0]
    assert "'text' is a required property" in told[3][1].replace('"', "'")
    assert told[4][0]
    assert "not valid JSON" in told[4][1]
    assert told[5] == (False, "studio: x")
    assert told[7] == (True, "error: it is broken")
    assert told[8] == (True, EMPTY_ANSWER)
    # What was no JSON goes back to the endpoint as JSON, or it would refuse the conversation.
    sent = [json.loads(one["function"]["arguments"]) for one in _calls(chat.bodies[-1]["messages"])]
    assert sent[4] == {"arguments": '{"text": '}
    # Two calls in one message: two answers, and the message's tokens counted once.
    assert done.usage.prompt_tokens == 9 * USAGE["prompt_tokens"]
    assert done.steps[6].usage.calls == 0


def _calls(turns: Sequence[Message_]) -> list[Message_]:
    return [one for turn in turns for one in turn.get("tool_calls", ())]


async def test_a_tool_that_changed_its_words_is_told_once_and_can_then_be_called(
    database: str, chat: ChatServer
) -> None:
    studio = Studio()
    play(chat, need("echo the text"), *[call("studio__echo_text", {"text": "x"})] * 2, say("Done."))
    async with studio_agent(database, studio) as made, model(chat) as llm:
        execute = made.agent.execute

        async def changed_meanwhile(*arguments: Any, **options: Any) -> Any:
            studio.description = "Sends it to someone"
            await made.read_again(made.agent._sources[0])
            made.agent.execute = execute  # type: ignore[method-assign]
            return await execute(*arguments, **options)

        made.agent.execute = changed_meanwhile  # type: ignore[method-assign]
        done = await made.agent.run("x", llm)
    assert [step.failed for step in done.steps[1:3]] == [True, False]
    assert "Sends it to someone" in done.steps[1].result
    assert len(studio.calls) == 1


async def test_the_user_answers_and_the_run_goes_on_with_what_was_found(database: str, chat: ChatServer) -> None:
    play(chat, need("echo the text"), say("What text?"), call("studio__echo_text", {"text": "x"}), say("Done."))
    asked: list[str] = []

    async def user(said: str) -> str | None:
        asked.append(said)
        return "x, please " if len(asked) == 1 else None

    async with studio_agent(database, Studio()) as made, model(chat) as llm:
        done = await made.agent.run("Echo something", llm, user=user)
    assert asked == ["What text?", "Done."]
    assert (done.answer, done.steps[2].result) == ("Done.", "studio: x")
    assert chat.bodies[-1]["messages"][4:6] == [say("What text?"), {"role": "user", "content": "x, please"}]


@pytest.mark.parametrize(
    ("bounds", "outcome", "steps"),
    [(Bounds(steps=3), "steps", 3), (Bounds(tokens=2 * USED), "tokens", 2), (Bounds(tokens=None, steps=4), "steps", 4)],
)
async def test_a_run_ends_at_its_bounds(
    database: str, chat: ChatServer, bounds: Bounds, outcome: str, steps: int
) -> None:
    play(chat, need("echo the text"), call("studio__echo_text", {"text": "again"}))
    async with studio_agent(database, Studio()) as made, model(chat) as llm:
        done = await made.agent.run("x", llm, bounds=bounds)
    assert (done.outcome, done.answer, len(done.steps)) == (outcome, None, steps)


async def test_calls_beyond_the_last_step_are_not_made(database: str, chat: ChatServer) -> None:
    echo = [call("studio__echo_text", {"text": str(i)}, id=str(i)) for i in range(4)]
    play(chat, need("echo the text"), both(*echo))
    studio = Studio()
    async with studio_agent(database, studio) as made, model(chat) as llm:
        done = await made.agent.run("x", llm, bounds=Bounds(steps=3))
    assert (done.outcome, len(studio.calls)) == ("steps", 2)


async def test_a_conversation_that_the_endpoint_refuses_ends_the_run_and_an_endpoint_that_is_gone_raises(
    database: str, chat: ChatServer
) -> None:
    async with studio_agent(database, Studio()) as made, model(chat) as llm:
        too_long = {"error": {"message": "context length exceeded"}}
        chat.respond = lambda body: Reply(status=400, body=too_long)
        done = await made.agent.run("x", llm)
        assert (done.outcome, done.answer) == ("refused", None)
        assert "context length exceeded" in done.error
        chat.respond = lambda body: Reply(status=503, body={})
        with pytest.raises(EngineUnavailableError):
            await made.agent.run("x", llm)
        with pytest.raises(InvalidRequestError, match="task is empty"):
            await made.agent.run(" ", llm)


async def test_a_run_leaves_no_thread_behind(database: str, chat: ChatServer) -> None:
    import sqlalchemy as sa

    play(chat, need("echo the text"), say("Done."))
    async with studio_agent(database, Studio()) as made, model(chat) as llm:
        await made.agent.run("x", llm)
        with sa.create_engine(database).connect() as connection:
            assert connection.execute(sa.text("select count(*) from agent_threads")).scalar() == 0


class Shelf:
    """Functions that nobody serves."""

    def __init__(self, *candidates: Candidate) -> None:
        self.candidates = candidates

    async def behind(self) -> str:
        return "A shelf."

    def name(self, candidate: Candidate) -> str:
        return candidate.name

    async def discover(self, messages: Sequence[Message]) -> Discovery:
        return Discovery(None, self.candidates, 7, "Note.")

    async def invoke(self, candidate: Candidate, arguments: dict[str, Any]) -> Observation:
        return Observation("y" * 100)


async def on_shelf(chat: ChatServer, shelf: Shelf, **options: Any) -> Run:
    async with model(chat) as llm:
        return await run("x", llm, shelf, **options)


async def test_candidates_that_are_given_are_all_there_is(chat: ChatServer) -> None:
    play(chat, need("more"), call("draw"), say("Done."))
    draw = Candidate("a/draw", "draw", input_schema=SHAPE)
    done = await on_shelf(chat, Shelf(draw), given=[draw])
    assert [functions(body) for body in chat.bodies] == [["draw"]] * 3
    assert "discover" not in chat.bodies[0]["messages"][0]["content"]
    assert done.steps[0].result == "error: 'discover' is none of your functions; they are: draw"
    assert (done.accessible, done.router_tokens) == (("a/draw",), 0)


async def test_a_candidate_named_as_the_loops_own_function_and_an_agent_can_be_called(chat: ChatServer) -> None:
    play(chat, need("a"), call("discover_"), call("painter", {"message": "paint"}), say("Done."))
    shelf = Shelf(Candidate("1", "discover"), Candidate("2", "painter", type="agent"))
    done = await on_shelf(chat, shelf, bounds=Bounds(result_characters=40))
    assert functions(chat.bodies[-1]) == ["discover", "discover_", "painter"]
    assert chat.bodies[-1]["tools"][2]["function"]["parameters"]["required"] == ["message"]
    assert done.steps[0].result == (
        "Nothing seems to fit. Say the step in other words, split it, or do without. "
        "The nearest can be called now: discover_, painter. Note."
    )
    assert [step.candidate for step in done.steps[1:3]] == ["1", "2"]
    assert "60 characters" in done.steps[1].result
    assert done.router_tokens == 7


async def test_the_deadline_cancels_the_call_that_is_in_progress_and_reports_it() -> None:
    class Hanging(Shelf):
        cancelled = False

        async def invoke(self, candidate: Candidate, arguments: dict[str, Any]) -> Observation:
            try:
                await anyio.sleep_forever()
            finally:
                self.cancelled = True
            raise AssertionError

    class Calling:
        async def chat(self, turns: Any, tools: Any) -> LLMReply:
            return LLMReply("", (FunctionCall("1", "wait", '{"a": 1}'),), Usage(1, 10, 0, 1))

    shelf = Hanging()
    done = await run("x", Calling(), shelf, Bounds(deadline_s=0.01), given=[Candidate("w", "wait")])
    assert (done.outcome, done.answer, shelf.cancelled) == ("deadline", None, True)
    [step] = done.steps
    assert (step.candidate, step.text, step.failed, step.usage.prompt_tokens) == ("w", '{"a": 1}', True, 10)
    assert "the deadline passed during this call" in step.result


async def test_what_no_model_can_mend_ends_the_run(chat: ChatServer) -> None:
    class Broken(Shelf):
        async def discover(self, messages: Sequence[Message]) -> Discovery:
            raise StoreError("the database is gone")

    play(chat, need("more"), say("Done."))
    with pytest.raises(StoreError, match="database is gone"):
        await on_shelf(chat, Broken())
    assert len(chat.bodies) == 1


async def test_a_callers_cancellation_is_not_taken_for_the_deadline(chat: ChatServer) -> None:
    play(chat, say("Too late."))
    chat.open.clear()
    async with model(chat) as llm:
        with anyio.move_on_after(0.2) as scope:
            await run("x", llm, Shelf())
        assert scope.cancelled_caught
    chat.open.set()
