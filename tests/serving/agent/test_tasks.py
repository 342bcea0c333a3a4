"""A host with two tools does ten tasks of several steps, on servers that others wrote, with the shipped router.

The servers are processes: filesystem and memory (npm), git and time (PyPI), and an agent built with the A2A SDK. The
router is the default profile's own, its model in process. The host is a script in a model's place: it takes the
decision, or what it wants out of the alternatives beside it, which the model of 135 million parameters makes necessary
now and then. How often it may be wrong is bounded; what counts is the effect on files, repository and graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from serving.agent.server import mcp_server
from serving.catalog.sources.mcp import McpSource
from serving.catalog.sources.mcp_config import StdioEntry
from serving.cli_agent import build_agent
from serving.config import CatalogConfig, Config
from tests.conftest import ROOT
from tests.serving.agent.tasks import Step, git, tasks
from tests.serving.agent.test_a2a import Planner, planning

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
PEERS = ROOT / ".peers"
# Of 23 steps. Two of them when this was written.
WRONG_AT_MOST = 4


def npm(name: str, package: str, *arguments: str, **environment: str) -> McpSource:
    program = PEERS / "node_modules" / "@modelcontextprotocol" / package / "dist" / "index.js"
    entry = StdioEntry(command=str(PEERS / "bin" / "node"), args=[str(program), *arguments], env=environment)
    return McpSource(name, entry, {})


def pypi(name: str, *arguments: str) -> McpSource:
    entry = StdioEntry(command=str(PEERS / "bin" / f"mcp-server-{name}"), args=list(arguments))
    return McpSource(name, entry, {})


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """A folder that is a repository with one commit."""
    folder = tmp_path / "desk"
    folder.mkdir()
    git(folder, "init", "--quiet")
    git(folder, "config", "user.name", "Ada")
    git(folder, "config", "user.email", "ada@example.org")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "Begin")
    return folder


async def test_ten_tasks_are_done_with_two_tools(desk: Path, database: str, tmp_path: Path) -> None:
    memory = tmp_path / "memory.jsonl"
    config = Config.load(ROOT / "configs" / "cpu.yaml").model_copy(update={"catalog": CatalogConfig(database=database)})
    steps = wrong = 0
    async with planning(Planner()) as trips:
        agent = build_agent(
            config,
            [
                npm("files", "server-filesystem", str(desk)),
                npm("memory", "server-memory", MEMORY_FILE_PATH=str(memory)),
                pypi("git", "--repository", str(desk)),
                pypi("time", "--local-timezone", "Europe/Lisbon"),
                trips,
            ],
        )
        async with agent.running(), Client(mcp_server(agent)) as host:
            assert [tool.name for tool in (await host.list_tools()).tools] == ["route", "execute"]
            for task in tasks(desk, memory):
                assert not task.done(), f"{task.name}: it is done before it has begun"
                thread, told = None, ""
                for step in task.steps:
                    routed = await _routed(host, step, thread)
                    thread, steps = routed["thread"], steps + 1
                    wrong += (routed["decision"] or {}).get("candidate_id") != step.wanted
                    told = await _executed(host, step, thread, told)
                assert task.done(), f"{task.name}: {told}"
    assert steps == 23
    assert wrong <= WRONG_AT_MOST


async def _routed(host: Client, step: Step, thread: str | None) -> Mapping[str, Any]:
    remembered = {"thread": thread} if thread else {}
    routed = (await host.call_tool("route", {"task": step.words, **remembered})).structured_content
    shown = [one["candidate_id"] for one in (routed["decision"], *routed["alternatives"]) if one]
    assert step.wanted in shown, f"{step.words!r} was answered with {shown}"
    return routed


async def _executed(host: Client, step: Step, thread: str, told: str) -> str:
    arguments = step.arguments(told) if callable(step.arguments) else step.arguments
    call = {"candidate_id": step.wanted, "arguments": dict(arguments), "thread": thread}
    result = await host.call_tool("execute", call)
    assert not result.is_error, result.content
    return result.content[0].text
