"""Walks, and dialogues played against a real HTTP server whose canned answers stand in for an LLM."""

import dataclasses
import json
from collections import Counter

import numpy as np
import pytest

from adapters.arguments import valid, without_empty
from adapters.graph import build_graph
from adapters.mixture import generator
from adapters.trajectories import MOST_ATTEMPTS, Play, names_tool, trajectories
from adapters.walk import Walker
from prompts import Candidate, Message, ToolCall, synthesis
from serving.catalog.shapes import candidates_from
from tests.adapters.conftest import toy_embed
from tests.adapters.factory import CATALOGUE, asking, play_roles
from tests.serving.chat_server import Reply, document, serving

CANDIDATES = candidates_from([{**line, "tools": None} for line in CATALOGUE])
PLAIN = Play(least=3, most=4, failures=0, empties=0, changes=0)


@pytest.fixture
def chat():
    with serving() as server:
        server.respond = play_roles
        yield server


def chain(*edges, size=8, servers=None):
    """A walker over a graph of dependency edges alone."""
    candidates = [
        Candidate(str(i), f"tool {i}", server=servers[i] if servers else "", input_schema=_takes(i, edges),
                  output_schema={"properties": {f"out{i}x": {}}})
        for i in range(size)
    ]  # fmt: skip
    graph = build_graph(candidates, np.eye(size, dtype=np.float32))
    assert sorted(zip(graph.sources.tolist(), graph.targets.tolist(), strict=True)) == sorted(edges)
    return graph, candidates


def _takes(place, edges):
    return {"properties": {f"out{source}x": {} for source, target in edges if target == place}}


def walks(walker, number=60):
    return [walker.subset(generator("walk", i)) for i in range(number)]


def test_a_walk_goes_in_depth_and_stays_connected():
    graph, candidates = chain((0, 1), (1, 2), (2, 3), (4, 5), (5, 6), (6, 7))
    for subset in walks(Walker(graph, candidates, 3, 4)):
        assert len(set(subset)) == len(subset) in {3, 4}
        assert set(subset) <= {0, 1, 2, 3} or set(subset) <= {4, 5, 6, 7}
    # In depth: from 0 of a star of paths, the walk follows one path before it begins another.
    graph, candidates = chain((0, 1), (1, 2), (0, 3), (3, 4), (0, 5), (5, 6), size=7)
    walker = Walker(graph, candidates, 3, 3)
    visited: dict[int, None] = {}
    walker._descend(0, 3, visited, generator("depth"))
    assert list(visited) in ([0, 1, 2], [0, 3, 4], [0, 5, 6])


def test_a_walk_that_ends_goes_on_at_the_same_servers_and_then_anywhere():
    graph, candidates = chain((0, 1), size=8, servers="aabbaccc")
    assert all(set(subset) == {0, 1, 4} for subset in walks(Walker(graph, candidates, 3, 3)))
    four = walks(Walker(graph, candidates, 4, 4))
    assert all({0, 1, 4} < set(subset) for subset in four)
    assert len({tuple(sorted(subset)) for subset in four}) > 2
    # Whoever has enough does not go where nothing leads.
    assert all(len(subset) == 3 for subset in walks(Walker(graph, candidates, 3, 6)))


def test_a_walk_takes_dependent_ones_as_often_as_many_similar_ones():
    size = 40
    vectors = np.zeros((size, size), np.float32)
    vectors[:, 0] = 1.0
    candidates = [Candidate(str(i), f"t{i}") for i in range(size)]
    candidates[0] = dataclasses.replace(candidates[0], output_schema={"properties": {"berth": {}}})
    candidates[1] = dataclasses.replace(candidates[1], input_schema={"properties": {"berth": {}}})
    walker = Walker(build_graph(candidates, vectors), candidates, 2, 2)
    first = [walker._in_turn(0, generator("turn", i))[0] for i in range(200)]
    assert 80 < first.count(1) < 180  # two of three, where counting edges alone would give one of forty


def test_a_small_catalogue_gives_what_it_has():
    graph, candidates = chain(size=2)
    assert all(sorted(subset) == [0, 1] for subset in walks(Walker(graph, candidates, 3, 8), 5))


@pytest.mark.parametrize(
    ("text", "name", "given_away"),
    [
        ("Please call get_weather for Rome", "get_weather", True),
        ("use GetWeather now", "getWeather", True),
        ("can you get weather data", "get_weather", False),
        ("search for a hotel", "search", False),
        ("please get open issues of mine", "get_open_issues", True),
        ("get the open issues", "get_open_issues", False),
        ("ask the chief pilot", "chief pilot", False),
        ("", "get_weather", False),
    ],
)
def test_a_name_given_away_is_told_from_words_that_people_say(text, name, given_away):
    assert names_tool(text, name) is given_away


def test_arguments_are_simple_where_they_are_asked_for_and_checked_against_the_whole_schema():
    schema = {
        "type": "object",
        "properties": {
            "free": {},
            "kind": {"enum": ["a", "b"]},
            "count": {"type": ["integer", "null"], "minimum": 1},
            "where": {"type": "object", "properties": {"city": {"type": "string"}}},
            "tags": {"type": "array", "items": {"type": "string", "format": "x"}},
            "any": {"type": "object"},
            "odd": True,
        },
        "required": ["count"],
    }
    candidate = Candidate("a", "a", input_schema=schema)
    simple = synthesis.arguments_schema(candidate)
    assert next(iter(simple["properties"])) == "count"
    assert simple["properties"]["count"] == {"type": "integer"}
    assert simple["properties"]["kind"] == {"type": "string", "enum": ["a", "b"]}
    assert simple["properties"]["where"]["properties"] == {"city": {"type": "string"}}
    assert simple["properties"]["tags"] == {"type": "array", "items": {"type": "string"}}
    assert set(simple["required"]) == set(schema["properties"])
    made = without_empty({"count": 0, "free": "", "kind": "a", "tags": [], "odd": False}, schema)
    assert made == {"count": 0, "kind": "a"}
    assert not valid(made, schema)
    assert valid(made | {"count": 1}, schema)
    assert synthesis.arguments_schema(Candidate("a", "a"))["properties"] == {}
    assert list(synthesis.arguments_schema(Candidate("a", "a", type="agent"))["properties"]) == ["message"]


async def played(chat, folder, play=PLAIN, count=6, **options):
    graph = build_graph(CANDIDATES, toy_embed([candidate.name for candidate in CANDIDATES]))
    walker = Walker(graph, CANDIDATES, play.least, play.most)
    told = []
    async with asking(chat.url, folder, **options) as asker:
        made = await trajectories(
            walker, CANDIDATES, count, asker, toy_embed, play, 0, lambda *numbers: told.append(numbers)
        )
    assert told[-1] == (len(made.kept) + len(made.rejected), len(made.kept))
    return made


def answering(role, change):
    """Canned answers, but those that have this property are changed."""

    def respond(body):
        reply = play_roles(body)
        said = json.loads(reply.content)
        return Reply(json.dumps(said | change(body, said))) if role in said else reply

    return respond


@pytest.mark.anyio
async def test_a_dialogue_is_played_turn_by_turn(chat, tmp_path):
    made = await played(chat, tmp_path)
    assert len(made.kept) == 6
    by_id = {candidate.id: candidate for candidate in CANDIDATES}
    for one in made.kept:
        roles = [message.role for message in one.messages]
        assert roles == ["user", *["assistant", "tool"] * 3, "assistant"]
        assert one.called == list(one.steps)
        assert one.twists == []
        for call, result in zip(one.messages[1:-1:2], one.messages[2::2], strict=True):
            assert result.name == call.tool_calls[0].name
            assert valid(json.loads(call.tool_calls[0].arguments), by_id[result.name].input_schema)


@pytest.mark.anyio
async def test_the_user_never_sees_what_the_assistant_has(chat, tmp_path):
    await played(chat, tmp_path)
    asked = [body for body in chat.bodies if "You play the person" in body["messages"][0]["content"]]
    assert len(asked) > 6
    for body in asked:
        data = document(body)
        assert set(data) <= {"task", "conversation"}
        assert all(set(message) == {"role", "says"} for message in data.get("conversation", ()))


@pytest.mark.anyio
async def test_what_goes_otherwise_goes_so_in_the_stated_shares(chat, tmp_path):
    made = await played(chat, tmp_path, dataclasses.replace(PLAIN, failures=0.3, empties=0.2, changes=0.4), 60)
    happened = Counter(twist for one in made.kept for twist in set(one.twists))
    # Drawn, but always the same: within three deviations of 60 drawings.
    for twist, share in (("failure", 0.3), ("empty", 0.2), ("change", 0.4)):
        assert abs(happened[twist] / 60 - share) < 3 * (share * (1 - share) / 60) ** 0.5, twist
    changed = [one for one in made.kept if "change" in one.twists]
    assert all(sum(message.role == "user" for message in one.messages) == 2 for one in changed)
    failing = [body for body in chat.bodies if "This call fails" in body["messages"][0]["content"]]
    assert len(failing) >= happened["failure"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("role", "change", "reason"),
    [
        ("plan", lambda body, said: {"step_2": 0}, "no plan of two steps"),
        ("plan", lambda body, said: {"task": " "}, "no plan of two steps"),
        ("answerable", lambda body, said: {"answerable": "no"}, "plan not answerable"),
        ("message", lambda body, said: {"message": ""}, "a user's message is empty or endless"),
        ("message", lambda body, said: {"message": "please " * 500}, "a user's message is empty or endless"),
        ("choice", lambda body, said: {"choice": 1}, "too many calls"),
        ("choice", lambda body, said: {"choice": 0, "message": ""}, "the assistant says nothing"),
        ("choice", lambda body, said: {"choice": 0}, "fewer than two calls"),
        ("finished", lambda body, said: {"finished": "no", "message": "More."}, "no end in sight"),
        ("target", lambda body, said: {"target": ""}, ""),
        ("score", lambda body, said: {"score": 3}, "the judge's score"),
    ],
)  # fmt: skip
async def test_what_does_not_pass_is_counted_by_its_reason(chat, tmp_path, role, change, reason):
    chat.respond = answering(role, change)
    made = await played(chat, tmp_path, count=4)
    if reason:
        assert made.kept == []
        assert made.reasons[reason] > MOST_ATTEMPTS * 4 / 2
    else:
        assert len(made.kept) == 4
    assert all(one.rejection for one in made.rejected)


@pytest.mark.anyio
async def test_a_user_who_names_a_tool_is_not_kept(chat, tmp_path):
    names = " ".join(candidate.name for candidate in CANDIDATES)
    chat.respond = answering("message", lambda body, said: {"message": f"{said['message']} with {names}"})
    made = await played(chat, tmp_path, count=3)
    assert set(made.reasons) <= {"the user names a tool", "plan not answerable"}
    assert made.kept == []


@pytest.mark.anyio
async def test_arguments_that_only_the_whole_schema_refuses_are_refused(chat, tmp_path):
    day = {"type": "string", "pattern": "^[0-9]+$"}
    schema = {"type": "object", "properties": {"day": day}, "required": ["day"]}
    strict = [dataclasses.replace(candidate, input_schema=schema) for candidate in CANDIDATES]
    walker = Walker(build_graph(strict, toy_embed([c.name for c in strict])), strict, 3, 3)
    async with asking(chat.url, tmp_path) as asker:
        made = await trajectories(walker, strict, 3, asker, toy_embed, PLAIN, 0)
    assert set(made.reasons) <= {"arguments not of the schema", "plan not answerable"}
    assert made.reasons["arguments not of the schema"] >= 5


@pytest.mark.anyio
async def test_the_same_request_again_is_a_duplicate(chat, tmp_path):
    chat.respond = answering("message", lambda body, said: {} if "choice" in said else {"message": "Water my bed."})
    made = await played(chat, tmp_path, count=4)
    assert len(made.kept) == 1
    assert made.reasons["duplicate"] > 5


def test_a_conversation_is_shown_by_numbers_and_within_bounds():
    subset = CANDIDATES[:2]
    messages = [
        Message("user", "x" * 10_000),
        Message("assistant", "", (ToolCall(subset[1].id, "{}"),)),
        Message("tool", "</data> done", name=subset[1].id),
    ]
    asked = synthesis.act(subset, "t" * 10_000, "p" * 10_000, messages)
    text = asked.messages[1].content
    assert len(text) < 10_000
    assert text.count("</data>") == 1
    data = json.loads(text.removeprefix("<data>\n").removesuffix("\n</data>"))
    assert data["conversation"][1] == {"role": "assistant", "calls": [{"called": "2", "arguments": "{}"}]}
    assert data["conversation"][2] == {"role": "result", "of": "2", "says": "</data> done"}
    assert asked.schema["properties"]["choice"]["enum"] == [0, 1, 2]
