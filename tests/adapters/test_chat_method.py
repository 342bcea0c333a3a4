"""A chat model as a method: what is sent, what is made of the answer, and our own server as the model."""

import json

import httpx
import pytest

from adapters.chat_method import ChatModel, chat_messages
from adapters.questions import read_set
from adapters.retrieval import Retriever
from prompts import Message, ToolCall
from serving.api.app import create_app
from serving.assembly import build_prefilter, build_router
from serving.config import Config
from serving.telemetry import Telemetry
from serving.types import EngineError
from tests.adapters.conftest import CATALOGUE, call, request, write_lines

pytestmark = pytest.mark.anyio

NAME = "openai:some/model@http://model/v1"
BM25 = Config.model_validate({"prefilter": {"method": "bm25"}}).prefilter


@pytest.fixture
def question(world):
    history = [
        {"role": "user", "content": "tend the garden"},
        call("garden/water_bed", target=1),
        {"role": "tool", "name": "garden/water_bed", "content": "wet"},
    ]
    line = request("case", "now mow the lawn", ["garden/mow-lawn"], query_pos=3, history=history)
    write_lines(world / "sets/small/catalog.jsonl", CATALOGUE)
    write_lines(world / "sets/small/cases.jsonl", [line])
    set_ = read_set(world / "sets", "small")
    return set_.main(set_.cases[0], 3)


class Endpoint:
    """Answers every request with the same, and keeps what it was sent."""

    def __init__(self, answer, status=200):
        self.sent = []
        self._answer, self._status = answer, status

    def method(self, name=NAME, **settings):
        retriever = Retriever(build_prefilter(Config(prefilter=BM25)))
        return ChatModel(name, retriever, transport=httpx.MockTransport(self._respond), **settings)

    def _respond(self, request):
        self.sent.append(request)
        return httpx.Response(self._status, json=self._answer)


def said(name=None, **fields):
    """A chat completion that calls `name`, or calls nothing."""
    calls = {"tool_calls": [{"id": "1", "type": "function", "function": {"name": name, "arguments": "{}"}}]}
    return {"choices": [{"message": {"role": "assistant", "content": "", **(calls if name else {})}}], **fields}


async def test_kept_candidates_are_tools_and_the_call_is_the_choice(question):
    endpoint = Endpoint(said("garden__harvest_row", usage={"prompt_tokens": 321}))
    answer = await endpoint.method(api_key="secret").answer(question, "key")
    [sent] = endpoint.sent
    assert str(sent.url) == "http://model/v1/chat/completions"
    assert sent.headers["authorization"] == "Bearer secret"
    body = json.loads(sent.content)
    assert (body["model"], body["temperature"], body["tool_choice"]) == ("some/model", 0.0, "auto")
    offered = [tool["function"] for tool in body["tools"]]
    assert len(offered) == 3
    assert {"garden__mow-lawn", "garden__harvest_row"} <= {tool["name"] for tool in offered}
    assert all(tool["description"] and tool["parameters"]["properties"] for tool in offered)
    assert (answer.chosen, answer.ranking[0], answer.kept) == ("garden/harvest_row", "garden/harvest_row", 3)
    assert sorted(answer.ranking) == sorted(line["id"] for line in CATALOGUE)
    assert (answer.none_probability, answer.score, answer.prompt_tokens) == (0.0, 1.0, 321)


@pytest.mark.parametrize("name", [None, "garden__invented"])
async def test_no_call_and_an_invented_tool_are_none(question, name):
    answer = await Endpoint(said(name)).method().answer(question, "key")
    assert (answer.chosen, answer.none_probability, answer.score) == (None, 1.0, 0.0)
    assert answer.ranking[0] == "garden/mow-lawn"


@pytest.mark.parametrize(
    ("endpoint", "message"),
    [
        (Endpoint({"error": "no such model"}, 404), "answered 404: .*no such model"),
        (Endpoint({"choices": []}), "no chat completion"),
        (Endpoint(["what"]), "no chat completion"),
    ],
)
async def test_another_answer_is_an_error_that_shows_it(question, endpoint, message):
    with pytest.raises(EngineError, match=message):
        await endpoint.method().answer(question, "key")


@pytest.mark.parametrize("name", ["openai:model", "openai:@http://host/v1", "openai:model@host/v1"])
def test_a_name_needs_model_and_url(name):
    with pytest.raises(ValueError, match="must be openai:MODEL@URL"):
        Endpoint({}).method(name)


def test_every_call_is_answered_before_the_next_message():
    messages = [
        Message("user", "a"),
        Message("assistant", "", (ToolCall("x.y z", '{"n": 1}'), ToolCall("w", "n=2"))),
        Message("tool", "one", name="x.y z"),
        Message("user", "b"),
        Message("tool", "late", name="w"),
        Message("assistant", "", (ToolCall("v"),)),
    ]
    sent = chat_messages(messages)[1:]
    assert [message["role"] for message in sent] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "user",
        "user",
        "assistant",
        "tool",
    ]
    calls = sent[1]["tool_calls"]
    assert [c["function"]["name"] for c in calls] == ["x_y_z", "w"]
    assert [json.loads(c["function"]["arguments"]) for c in calls] == [{"n": 1}, {"arguments": "n=2"}]
    assert [message["tool_call_id"] for message in sent[2:4]] == [c["id"] for c in calls]
    assert (sent[2]["content"], sent[3]["content"], sent[5]["content"]) == ("one", "", "w: late")


async def test_our_own_server_is_such_a_model(question, tiny_llama, tiny_embedder):
    config = Config.model_validate(
        {
            "model": {"path": str(tiny_llama), "name": "tiny"},
            "engine": {"dtype": "float32", "threads": 1},
            "prefilter": {"embedder": str(tiny_embedder)},
        }
    )
    app = create_app(config, build_router(config), Telemetry())
    async with app.router.lifespan_context(app):
        await app.state.service.readiness.started.wait()
        retriever = Retriever(build_prefilter(Config(prefilter=BM25)))
        method = ChatModel("openai:tiny@http://localhost/v1", retriever, transport=httpx.ASGITransport(app))
        answer = await method.answer(question, "key")
    assert answer.kept == 3
    assert answer.prompt_tokens > 100
    assert answer.chosen in {*answer.ranking[:3], None}
