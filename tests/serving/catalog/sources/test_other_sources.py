"""Agents from cards served over HTTP, skills from folders, candidates from files, and which place is which."""

import gzip
import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from a2a.server.routes.agent_card_routes import create_agent_card_routes
from a2a.types.a2a_pb2 import AgentCapabilities, AgentCard, AgentInterface, AgentSkill
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serving.catalog.sources.a2a import A2ASource, card_url
from serving.catalog.sources.base import Limits, Listing, SourceError
from serving.catalog.sources.files import FileSource
from serving.catalog.sources.locate import sources_at
from serving.catalog.sources.mcp import McpSource
from serving.catalog.sources.skills import SkillSource
from serving.types import Candidate, InvalidRequestError
from tests.live import serving

pytestmark = pytest.mark.anyio

CARD = AgentCard(
    name="Trip planner",
    description="Plans trips.",
    version="1",
    supported_interfaces=[AgentInterface(url="http://agent", protocol_binding="JSONRPC", protocol_version="1.0")],
    capabilities=AgentCapabilities(),
    default_input_modes=["text"],
    default_output_modes=["text"],
    skills=[
        AgentSkill(id="flights", name="Book flights", description="Finds and books flights", tags=["travel", "air"]),
        AgentSkill(id="hotels", name="Book hotels", description="Finds rooms", tags=["travel"]),
    ],
)


def served(body: Any, status: int = 200) -> Starlette:
    async def answer(request: Request) -> Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return Response(content, status, media_type="application/json")

    return Starlette(routes=[Route("/.well-known/agent-card.json", answer)])


async def test_a_card_is_one_agent_with_its_skills() -> None:
    app = Starlette(routes=create_agent_card_routes(CARD, cache_control="public, max-age=60"))
    async with serving(app) as port:
        (listing,) = await A2ASource(f"http://127.0.0.1:{port}", {}, name="trips").read()
    assert listing.candidates == (
        Candidate(
            "trips/Trip planner",
            "Trip planner",
            "Plans trips.\nBook flights: Finds and books flights\nBook hotels: Finds rooms",
            type="agent",
            server="trips",
            tools=("Book flights", "Book hotels"),
            tags=("travel", "air"),
        ),
    )
    assert listing.server.ttl_ms == 60_000
    assert listing.server.source == {"kind": "a2a", "url": f"http://127.0.0.1:{port}/.well-known/agent-card.json"}


async def test_a_card_of_protocol_0_3_is_read() -> None:
    old = {
        "name": "Old agent",
        "description": "Still here",
        "url": "http://agent",
        "preferredTransport": "JSONRPC",
        "protocolVersion": "0.3.0",
        "version": "1",
        "capabilities": {},
        "defaultInputModes": [],
        "defaultOutputModes": [],
        "supportsAuthenticatedExtendedCard": True,
        "skills": [{"id": "one", "name": "", "description": "Does it", "tags": [], "security": [{"key": []}]}],
    }
    async with serving(served(old)) as port:
        (listing,) = await A2ASource(f"http://127.0.0.1:{port}", {}).read()
    (candidate,) = listing.candidates
    assert (candidate.id, candidate.tools) == ("127.0.0.1/Old agent", ("one",))


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({}, 404, "is answered with HTTP 404"),
        ([], 200, "must be a JSON object"),
        ({"name": 7}, 200, "A2A agent 'a': .*name"),
        ({"name": "a", "skills": ["x"]}, 200, "Invalid agent card structure"),
        (b"<html>", 200, "the card is not valid JSON"),
        (b" " * (2**20 + 1), 200, "has more than 1,048,576 bytes"),
    ],
)
async def test_what_is_no_card_is_an_error_that_says_why(body: Any, status: int, message: str) -> None:
    async with serving(served(body, status)) as port:
        with pytest.raises(SourceError, match=message):
            await A2ASource(f"http://127.0.0.1:{port}", {}, name="a").read()


async def test_an_agent_that_is_down_is_an_error_without_its_secrets() -> None:
    async with serving(served({})) as port:
        pass
    with pytest.raises(SourceError, match="A2A agent 'a'") as caught:
        await A2ASource(f"http://127.0.0.1:{port}/${{KEY}}", {"KEY": "s3cret-value"}, name="a").read()
    assert "s3cret-value" not in str(caught.value)


def test_where_a_card_is() -> None:
    assert card_url("https://a.example") == "https://a.example/.well-known/agent-card.json"
    assert card_url("https://a.example/team/") == "https://a.example/team/.well-known/agent-card.json"
    assert card_url("https://a.example/cards/x.json") == "https://a.example/cards/x.json"


def skill(folder: Path, text: str) -> None:
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(text, encoding="utf-8")


async def test_skills_are_read_from_their_front_matter(tmp_path: Path) -> None:
    root = tmp_path / "skills"
    skill(
        root / "pdf-forms",
        "---\nname: pdf-forms\ndescription: >\n  Fills in\n  forms.\nlicense: MIT\n---\n# How\n---\n",
    )
    skill(root / "team" / "deep", "\N{BYTE ORDER MARK}---\r\nname: deep\r\ndescription: In a folder\r\n---\r\n")
    skill(root / "pdf-forms" / "examples" / "not-one", "---\nname: not-one\n---\n")
    skill(root / ".git" / "hidden", "---\nname: hidden\n---\n")
    skill(root / "odd", "---\nname: Odd Name\n---\n")
    skill(root / "plain", "# No front matter\n")
    skill(root / "open", "---\nname: open\n")
    skill(root / "tagged", "---\nname: !!python/object/apply:os.getcwd []\n---\n")
    skill(root / "typed", "---\nname: typed\ndescription: [a]\n---\n")
    (listing,) = await SkillSource(root).read()
    assert [(candidate.id, candidate.description) for candidate in listing.candidates] == [
        ("skills/Odd Name", ""),
        ("skills/pdf-forms", "Fills in forms.\n"),
        ("skills/deep", "In a folder"),
    ]
    assert {candidate.type for candidate in listing.candidates} == {"skill"}
    told = "\n".join(listing.problems)
    assert "odd/SKILL.md: the name 'Odd Name' should be" in told
    assert "odd/SKILL.md: has no description" in told
    assert "plain/SKILL.md: has no front matter" in told
    assert "open/SKILL.md: has no second line of ---" in told
    assert "tagged/SKILL.md: could not determine a constructor" in told
    assert "typed/SKILL.md: has a `description` that is no text" in told


async def test_one_skills_own_folder_is_a_source(tmp_path: Path) -> None:
    skill(tmp_path / "one", "---\nname: one\ndescription: d\n---\n")
    (listing,) = await SkillSource(tmp_path / "one", name="mine").read()
    assert [candidate.id for candidate in listing.candidates] == ["mine/one"]
    with pytest.raises(SourceError, match="is no folder"):
        await SkillSource(tmp_path / "none").read()


async def read_file(path: Path, content: str) -> list[Listing]:
    data = content.encode()
    await anyio.Path(path).write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return await FileSource(path).read()


@pytest.mark.parametrize(
    ("tools", "parameters"),
    [
        ([{"type": "function", "function": {"name": "t", "parameters": {"properties": {"a": {}}}}}], ["a"]),
        ([{"name": "t", "input_schema": {"properties": {"b": {}}}}], ["b"]),
        ({"tools": [{"name": "t", "inputSchema": {"properties": {"c": {}}}}]}, ["c"]),
        ({"name": "t", "parameters": {"properties": {"d": {}}}}, ["d"]),
    ],
)
async def test_tool_lists_of_several_providers_are_read(tmp_path: Path, tools: Any, parameters: list[str]) -> None:
    (listing,) = await read_file(tmp_path / "tools.json", json.dumps(tools, indent=1))
    (candidate,) = listing.candidates
    assert (candidate.id, candidate.server) == ("tools/t", "tools")
    assert [name for name, _ in candidate.parameters] == parameters


async def test_catalogue_lines_are_listed_by_server(tmp_path: Path) -> None:
    lines = [
        {"id": "1", "type": "tool", "server": "github", "name": "search", "tags": ["code"]},
        {"type": "server", "name": "github", "description": "Code hosting"},
        {"server": "jira", "name": "search"},
        {"id": "1", "server": "jira", "name": "other"},
        {"id": "a", "type": "agent", "name": "helper", "tools": ["x"]},
        {"type": "server", "name": "empty"},
    ]
    listings = await read_file(tmp_path / "mine.jsonl.gz", "\n\n".join(map(json.dumps, lines)))
    assert {listing.server.name: [c.id for c in listing.candidates] for listing in listings} == {
        "github": ["1"],
        "jira": ["jira/search"],
        "mine": ["a"],
        "empty": [],
    }
    by_name = {listing.server.name: listing for listing in listings}
    assert by_name["github"].server.description == "Code hosting"
    assert "the id '1' is a candidate's of 'github'" in by_name["jira"].problems[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"name": "a"}\n{"name": 1}', r"t\.json:2\.name should be a valid string"),
        ('{"name": "a"}\n{"name"', r"t\.json:2 is not valid JSON"),
        ('[{"name": "a"}, 3]', r"t\.json\[1\] should be an object"),
        ("[1", r"t\.json is not valid JSON"),
        ("no json", r"t\.json:1 is not valid JSON"),
    ],
)
async def test_what_is_wrong_in_a_file_is_said_with_its_place(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        await read_file(tmp_path / "t.json", content)


async def test_a_file_that_unpacks_without_end_or_is_broken_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b" " * 10_000))
    with pytest.raises(SourceError, match="holds more than 5,000 bytes"):
        await FileSource(path, limits=Limits(total_size=5_000)).read()
    path.write_bytes(gzip.compress(b" " * 10_000)[:20])
    with pytest.raises(SourceError, match=r"cannot read .*bomb"):
        await FileSource(path).read()
    with pytest.raises(SourceError, match="No such file"):
        await FileSource(tmp_path / "none.json").read()


def test_a_place_is_the_kind_of_source_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {"a": {"command": "a"}, "b": {"url": "http://b"}}}')
    (tmp_path / "server.json").write_text(
        '{"name": "x/y", "remotes": [{"type": "streamable-http", "url": "http://r"}]}'
    )
    (tmp_path / "tools.json").write_text("[]")

    def kinds(place: str, **options: Any) -> list[tuple[type, str]]:
        return [(type(source), source.name) for source in sources_at(place, {}, **options)]

    assert kinds(str(tmp_path / "mcp.json")) == [(McpSource, "a"), (McpSource, "b")]
    assert kinds(str(tmp_path / "server.json")) == [(McpSource, "x/y")]
    assert kinds(str(tmp_path / "tools.json")) == [(FileSource, "tools")]
    assert kinds(str(tmp_path), name="s") == [(SkillSource, "s")]
    assert kinds("https://h.example/mcp") == [(McpSource, "h.example")]
    assert kinds("https://h.example/.well-known/agent-card.json") == [(A2ASource, "h.example")]
    assert kinds("https://h.example", kind="a2a", name="h") == [(A2ASource, "h")]
    with pytest.raises(InvalidRequestError, match="is neither a file, nor a folder, nor a URL"):
        sources_at(str(tmp_path / "none"), {})
