"""The client against a real HTTP server that stands in for an LLM (chat_server.py)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prompts import Message
from serving.llm import LLM, FunctionCall, Journal, Prices, Usage
from serving.llm import Reply as LLMReply
from serving.types import EngineError, EngineTimeoutError, EngineUnavailableError
from tests.serving.chat_server import USAGE, ChatServer, Reply, serving

pytestmark = pytest.mark.anyio

SCHEMA = {
    "type": "object",
    "properties": {"number": {"type": "integer"}},
    "required": ["number"],
    "additionalProperties": False,
}
QUESTION = [Message("system", "Count."), Message("user", "How many?")]
SOON = {"retry-after-ms": "1"}


@pytest.fixture
def chat() -> Iterator[ChatServer]:
    with serving() as server:
        server.respond = lambda body: Reply('{"number": 3}')
        yield server


@contextlib.asynccontextmanager
async def asking(chat: ChatServer, path: Path | None = None, **options: Any):
    llm = LLM("canned", chat.url, journal=Journal(path), **options)
    try:
        yield llm
    finally:
        await llm.close()


async def test_an_answer_is_of_the_schema_and_its_cost_is_counted(chat: ChatServer) -> None:
    async with asking(chat, extra={"top_k": 5}) as llm:
        assert await llm.ask(QUESTION, SCHEMA, temperature=0.5, seed=7) == {"number": 3}
    [body] = chat.bodies
    assert body["messages"] == [{"role": "system", "content": "Count."}, {"role": "user", "content": "How many?"}]
    assert body["response_format"]["json_schema"] == {"name": "answer", "schema": SCHEMA, "strict": True}
    assert (body["model"], body["temperature"], body["seed"], body["top_k"]) == ("canned", 0.5, 7, 5)
    assert llm.spent == Usage(1, prompt_tokens=100, cached_tokens=40, completion_tokens=10)
    assert llm.spent.cost(Prices(input=10, output=100, cached_input=1)) == pytest.approx((600 + 40 + 1000) / 1e6)
    assert llm.spent.cost(Prices(input=10, output=100)) == pytest.approx((1000 + 1000) / 1e6)


async def test_a_finished_call_is_not_made_again_by_a_later_process(chat: ChatServer, tmp_path: Path) -> None:
    for _ in range(2):
        async with asking(chat, tmp_path / "deep" / "journal.jsonl") as llm:
            assert await llm.ask(QUESTION, SCHEMA) == {"number": 3}
    assert len(chat.bodies) == 1
    assert (llm.spent, llm.replayed.prompt_tokens) == (Usage(), 100)


async def test_what_makes_another_answer_makes_another_call(chat: ChatServer) -> None:
    other = {**SCHEMA, "title": "other"}
    journal = Journal()
    llm = LLM("canned", chat.url, journal=journal)
    second = LLM("another", chat.url, journal=journal)
    for ask in (
        llm.ask(QUESTION, SCHEMA),
        llm.ask(QUESTION[::-1], SCHEMA),
        llm.ask(QUESTION, other),
        llm.ask(QUESTION, SCHEMA, seed=1),
        llm.ask(QUESTION, SCHEMA, temperature=0),
        second.ask(QUESTION, SCHEMA),
    ):
        await ask
    assert (len(chat.bodies), len(journal)) == (6, 6)
    await llm.close()
    await second.close()


async def test_the_same_question_at_once_is_one_call(chat: ChatServer) -> None:
    async with asking(chat) as llm:
        answers = await asyncio.gather(*(llm.ask(QUESTION, SCHEMA) for _ in range(5)))
    assert (answers, len(chat.bodies)) == ([{"number": 3}] * 5, 1)


async def test_no_more_calls_run_at_once_than_may(chat: ChatServer) -> None:
    chat.open.clear()
    async with asking(chat, concurrency=2) as llm, asyncio.TaskGroup() as group:
        for seed in range(6):
            group.create_task(llm.ask(QUESTION, SCHEMA, seed=seed))
        for _ in range(2):
            await asyncio.to_thread(chat.arrived.acquire)
        chat.open.set()
    assert (chat.most_at_once, len(chat.bodies)) == (2, 6)


@pytest.mark.parametrize(
    "fault", [Reply(status=429, body={}, headers=SOON), Reply(status=503, body={}, headers=SOON), Reply(status=0)]
)
async def test_a_refusal_that_passes_is_tried_again(chat: ChatServer, fault: Reply) -> None:
    chat.faults.extend([fault])
    async with asking(chat) as llm:
        assert await llm.ask(QUESTION, SCHEMA) == {"number": 3}
    assert len(chat.bodies) == 2
    assert llm.spent.calls == 1


@pytest.mark.parametrize(
    ("fault", "error", "requests"),
    [
        (Reply(status=400, body={"error": {"message": "too long"}}), EngineError, 1),
        (Reply(status=401, body={"error": {"message": "no such key"}}), EngineUnavailableError, 1),
        (Reply(status=404, body={"error": {"message": "no such model"}}), EngineUnavailableError, 1),
        (Reply(status=429, body={"error": {"message": "no money"}}, headers=SOON), EngineUnavailableError, 3),
        (Reply(status=500, body={"error": {"message": "broken"}}, headers=SOON), EngineUnavailableError, 3),
    ],
)
async def test_a_refusal_that_stays_says_what_it_was(
    chat: ChatServer, fault: Reply, error: type[EngineError], requests: int
) -> None:
    chat.respond = lambda body: fault
    async with asking(chat, retries=2) as llm:
        with pytest.raises(
            error, match=f"canned at .* answered {fault.status}: .*{fault.body['error']['message']}"
        ) as e:
            await llm.ask(QUESTION, SCHEMA)
        assert type(e.value) is error
        assert (len(chat.bodies), len(llm.journal)) == (requests, 0)


async def test_silence_is_a_timeout(chat: ChatServer) -> None:
    chat.open.clear()
    async with asking(chat, timeout_s=0.2, retries=0) as llm:
        with pytest.raises(EngineTimeoutError, match=r"silent for 0\.2 s"):
            await llm.ask(QUESTION, SCHEMA)


async def test_nobody_there_is_unavailable() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        llm = LLM("canned", f"http://127.0.0.1:{free.getsockname()[1]}/v1", retries=0)
        with pytest.raises(EngineUnavailableError, match="cannot be reached"):
            await llm.ask(QUESTION, SCHEMA)
        await llm.close()


async def test_an_answer_that_breaks_the_schema_is_asked_for_again(chat: ChatServer, tmp_path: Path) -> None:
    chat.faults.extend([Reply("three, I think"), Reply('{"number": "3"}')])
    async with asking(chat, tmp_path / "journal") as llm:
        assert await llm.ask(QUESTION, SCHEMA) == {"number": 3}
    second, third = chat.bodies[1]["messages"], chat.bodies[2]["messages"]
    assert [len(body["messages"]) for body in chat.bodies] == [2, 4, 4]
    assert second[2] == {"role": "assistant", "content": "three, I think"}
    assert "not valid JSON" in second[3]["content"]
    assert "number" in third[3]["content"]
    assert "integer" in third[3]["content"]
    assert llm.spent.calls == 3
    [line] = (tmp_path / "journal").read_text().splitlines()
    assert json.loads(line)["value"]["usage"]["calls"] == 3


@pytest.mark.parametrize(
    "reply",
    [
        Reply('{"number": 3.5}'),
        Reply('{"number": NaN}'),
        Reply('{"number": 3, "more": 1}'),
        Reply(""),
        Reply(None),
        Reply(body="<html>hello</html>"),
        Reply(body={"choices": []}),
        Reply(body={"choices": [{"message": None}]}),
        Reply(body={"error": "none"}),
    ],
)
async def test_what_never_becomes_an_answer_is_an_error_and_not_recorded(chat: ChatServer, reply: Reply) -> None:
    chat.respond = lambda body: reply
    async with asking(chat, corrections=1) as llm:
        with pytest.raises(EngineError, match="gave no JSON of the schema in 2 answers"):
            await llm.ask(QUESTION, SCHEMA)
        assert (len(llm.journal), llm.spent.calls) == (0, 2)


async def test_an_endpoint_without_schemas_is_asked_for_any_json_and_checked_here(chat: ChatServer) -> None:
    chat.faults.append(Reply('{"count": 3}'))
    async with asking(chat, constraint="json_object") as llm:
        assert await llm.ask(QUESTION, SCHEMA) == {"number": 3}
    assert [body["response_format"] for body in chat.bodies] == [{"type": "json_object"}] * 2


def test_a_journal_keeps_whole_lines_and_passes_over_torn_ones(tmp_path: Path, caplog: Any) -> None:
    path = tmp_path / "journal.jsonl"
    first = Journal(path)
    first.put("a", {"x": 1})
    first.put("a", {"x": 2})
    first.put("b", None)
    first.close()
    with path.open("ab") as file:
        file.write(b'[1]\n\xff\xfe\n{"key": "c", "val')
    second = Journal(path)
    assert (second.get("a"), second.get("c"), len(second)) == ({"x": 2}, None, 2)
    assert [record.getMessage().split(" ")[0] for record in caplog.records] == [f"{path}:{line}" for line in (4, 5, 6)]
    second.put("c", "whole")
    second.close()
    third = Journal(path)
    assert third.get("c") == "whole"
    third.close()


def test_two_journals_of_one_file_keep_each_others_lines(tmp_path: Path) -> None:
    journals = [Journal(tmp_path / "journal"), Journal(tmp_path / "journal")]
    for number in range(10):
        journals[number % 2].put(str(number), number)
    for journal in journals:
        journal.close()
    third = Journal(tmp_path / "journal")
    assert [third.get(str(number)) for number in range(10)] == list(range(10))
    third.close()


def test_a_path_that_is_no_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="as a journal"):
        Journal(tmp_path)


async def test_a_turn_of_a_conversation_may_be_words_and_calls(chat: ChatServer) -> None:
    called = [
        {"id": "a", "type": "function", "function": {"name": "count", "arguments": "{"}},
        {"id": None, "type": "function", "function": {"name": "add", "arguments": None}},
    ]
    message = {"role": "assistant", "content": None, "tool_calls": called}
    tool = {"type": "function", "function": {"name": "count", "parameters": {"type": "object"}}}
    turns = [{"role": "user", "content": "Count."}]
    async with asking(chat) as llm:
        chat.faults.append(Reply(body={"choices": [{"index": 0, "message": message}], "usage": USAGE}))
        reply = await llm.chat(turns, [tool])
        assert reply.calls == (FunctionCall("a", "count", "{"), FunctionCall("call_1", "add", ""))
        assert (reply.content, reply.usage) == ("", Usage(1, 100, 40, 10))
        assert await llm.chat(turns, []) == LLMReply('{"number": 3}', (), Usage(1, 100, 40, 10))
        assert llm.spent.calls == 2
        assert "tools" not in chat.bodies[1]  # an empty list is refused by some
        for body in ({"choices": []}, "<html>"):
            chat.faults.append(Reply(body=body))
            with pytest.raises(EngineError, match="did not answer in the protocol"):
                await llm.chat(turns, [])
        # What calls do is not repeatable: nothing is recorded.
        assert len(llm.journal) == 0
