"""Mutation against a real HTTP server whose canned answers stand in for an LLM."""

import json
from collections import Counter

import pytest

from adapters.arguments import valid
from adapters.mutation import GENERATION, MOST_ATTEMPTS, fault, mutations, read_mutant
from prompts import Candidate
from prompts.enrichment import numbered
from prompts.synthesis import AGENT_OPERATORS, NEW_PARAMETERS, NEW_RETURNS, NEW_TOOLS, TOOL_OPERATORS, mutate, operators
from tests.adapters.conftest import toy_embed
from tests.adapters.factory import asking, invented, play_roles
from tests.serving.chat_server import Reply, document, serving

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city"],
}
PARENT = Candidate("w/get_weather", "get_weather", "Gets the weather of a city.", server="w", input_schema=SCHEMA)
AGENT = Candidate("w/guide", "guide", "Shows people around.", "agent", "w", tools=("walk",))
POOL = [PARENT, AGENT, *(Candidate(f"w/{n}", n, " ".join(invented(n)), server="w") for n in ("a_b", "c_d", "e_f"))]


@pytest.fixture
def chat():
    with serving() as server:
        server.respond = play_roles
        yield server


def slot(name="", kind="string", required="no", description="Says which."):
    return {"name": name, "type": kind, "required": required, "description": description}


def answer(*parameters, returns=(), **fields):
    slots = [*parameters, *[slot()] * (NEW_PARAMETERS - len(parameters))]
    made = {"name": "get_tides", "description": "Gets the tides of a harbour, by the day."}
    made |= dict(zip(numbered("parameter", NEW_PARAMETERS), slots, strict=True))
    given = [*returns, *[""] * (NEW_RETURNS - len(returns))]
    return made | dict(zip(numbered("returns", NEW_RETURNS), given, strict=True)) | fields


def agent_answer(*tools, **fields):
    slots = [*tools, *[""] * (NEW_TOOLS - len(tools))]
    made = {"name": "night_guide", "description": "Shows people around at night, by boat."}
    return made | dict(zip(numbered("tool", NEW_TOOLS), slots, strict=True)) | fields


async def made_of(chat, folder, pool, count, seed=0):
    async with asking(chat.url, folder) as asker:
        return await mutations(pool, count, asker, toy_embed, seed)


def test_a_mutant_is_written_as_its_parent_and_keeps_what_it_shares():
    mutant = read_mutant(PARENT, answer(slot("city"), slot("days", "string"), slot("tags", "list of strings", "yes")))
    assert (mutant.id, mutant.server, mutant.type) == ("w/get_tides", "w", "tool")
    assert mutant.input_schema["properties"] == {
        "city": SCHEMA["properties"]["city"],
        "days": {"type": "string", "description": "Says which."},
        "tags": {"type": "array", "items": {"type": "string"}, "description": "Says which."},
    }
    assert valid({"tags": ["x"], "city": "Oslo"}, mutant.input_schema)
    assert not valid({"tags": ["x"], "city": "Lima"}, mutant.input_schema)
    assert not valid({"city": "Oslo"}, mutant.input_schema)
    assert mutant.output_schema is None
    assert read_mutant(PARENT, answer(returns=["level"])).output_schema == {
        "type": "object",
        "properties": {"level": {}},
    }


def test_a_mutant_of_an_agent_has_tools_and_is_called_as_its_parent():
    mutant = read_mutant(AGENT, agent_answer("row", "sing", "row", " "))
    assert (mutant.type, mutant.tools, mutant.id) == ("agent", ("row", "sing"), "w/night_guide")


@pytest.mark.parametrize(
    ("parent", "said", "reason"),
    [
        (PARENT, answer(name="  "), "no usable name"),
        (PARENT, answer(name="x" * 100), "no usable name"),
        (PARENT, answer(name="say <b>"), "no usable name"),
        (PARENT, answer(description="Good."), "no description"),
        (PARENT, answer(slot("a"), slot("a")), "parameters without a name of their own"),
        (PARENT, answer(slot("a<b")), "parameters without a name of their own"),
        (AGENT, agent_answer(), "no tools"),
        (AGENT, agent_answer("..."), "no tools"),
        (PARENT, answer(slot("city"), slot("day", required="yes")), ""),
        (AGENT, agent_answer("row"), ""),
    ],
)
def test_an_answer_that_describes_no_candidate_is_refused(parent, said, reason):
    assert fault(parent, said) == reason


def test_a_parents_broken_schema_is_not_passed_on():
    broken = Candidate(
        "p", "get_weather", "Gets.", input_schema={"properties": {"city": {"type": "string", "pattern": "("}}}
    )
    assert fault(broken, answer(slot("city"))) == "no valid JSON Schema"
    elsewhere = {"properties": {"city": {"type": "string", "$ref": "http://127.0.0.1:9/city.json"}}}
    assert fault(Candidate("p", "w", "Gets.", input_schema=elsewhere), answer(slot("city"))) == "no valid JSON Schema"


def test_five_operators_for_tools_and_five_for_agents():
    assert len({operator.name for operator in (*TOOL_OPERATORS, *AGENT_OPERATORS)}) == 10
    assert operators("tool") == TOOL_OPERATORS
    assert operators("agent") == operators("skill") == AGENT_OPERATORS


@pytest.mark.parametrize("operator", [*TOOL_OPERATORS, *AGENT_OPERATORS], ids=lambda operator: operator.name)
def test_an_operator_says_what_changes_and_shows_a_partner_only_where_it_has_one(operator):
    parent = PARENT if operator in TOOL_OPERATORS else AGENT
    asked = mutate(parent, operator, POOL[2], ["a", "b"])
    assert operator.change in asked.messages[0].content
    assert ("partner" in asked.messages[1].content) == operator.partner
    assert set(asked.schema["required"]) == set(asked.schema["properties"])


@pytest.mark.anyio
async def test_mutants_are_new_and_their_parents_are_known(chat, tmp_path):
    made = await made_of(chat, tmp_path, POOL, 100)
    assert len(made.made) == 100
    ids = {candidate.id for candidate in POOL}
    for mutant in made.made:
        assert mutant.parent in ids  # made before it
        assert mutant.candidate.id not in ids
        ids.add(mutant.candidate.id)
    assert {mutant.operator for mutant in made.made} == {one.name for one in (*TOOL_OPERATORS, *AGENT_OPERATORS)}
    kinds = {candidate.id: candidate.type for candidate in (*POOL, *(one.candidate for one in made.made))}
    assert all(kinds[mutant.parent] == mutant.candidate.type for mutant in made.made)
    # A mutant becomes a parent too, in the generation after its own.
    assert any(mutant.parent not in {candidate.id for candidate in POOL} for mutant in made.made[GENERATION:])


@pytest.mark.anyio
async def test_copies_taken_names_and_silence_are_refused_with_their_reasons(chat, tmp_path):
    def respond(body):
        said = json.loads(play_roles(body).content)
        match body["seed"] % 5:
            case 0:
                return Reply("no")
            case 1:
                return Reply(json.dumps(said | {"name": document(body)["candidate"]["name"]}))
            case 2 if "parameter_1" in said:
                blank = {name: slot() for name in numbered("parameter", NEW_PARAMETERS)}
                copied = {"name": "b_a", "description": " ".join(invented("a_b"))}
                return Reply(json.dumps(said | blank | copied))
        return Reply(json.dumps(said))

    chat.respond = respond
    async with asking(chat.url, tmp_path, corrections=0) as asker:
        made = await mutations(POOL, 30, asker, toy_embed, 0)
    reasons = Counter()
    for (_, reason), count in made.refused.items():
        reasons[reason] += count
    assert len(made.made) == 30
    assert set(reasons) == {"no answer of the schema", "its name is taken", "a near copy"}


@pytest.mark.anyio
async def test_an_llm_that_says_the_same_again_and_again_ends(chat, tmp_path):
    chat.respond = lambda body: Reply(json.dumps(answer(slot("city"))))
    made = await made_of(chat, tmp_path, [PARENT], 10)
    assert len(made.made) == 1
    assert sum(made.refused.values()) == MOST_ATTEMPTS * 10 - 1


@pytest.mark.anyio
async def test_nothing_is_asked_where_nothing_is_wanted(chat, tmp_path):
    assert (await made_of(chat, tmp_path, POOL, 0)).made == []
    assert (await made_of(chat, tmp_path, [], 5)).made == []
    assert chat.bodies == []
