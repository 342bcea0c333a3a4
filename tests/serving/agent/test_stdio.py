"""The agent as a process, as a desktop host starts it, in front of another process."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from tests.serving.agent import agent_process, upstreams

pytestmark = pytest.mark.anyio


@pytest.fixture
def agent(tmp_path: Path, database: str) -> StdioServerParameters:
    server = {"command": sys.executable, "args": [upstreams.__file__], "env": {"PYTHONPATH": "."}}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"stdio": server}}))
    return StdioServerParameters(
        command=sys.executable,
        args=[agent_process.__file__, database, str(tmp_path / "mcp.json")],
        env={"PYTHONPATH": "."},
    )


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_thread_outlives_the_agent(mode: str, agent: StdioServerParameters) -> None:
    async with Client(stdio_client(agent), mode=mode, cache=None) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["route", "execute"]
        routed = (await client.call_tool("route", {"task": "echo the text"})).structured_content
    call = {"candidate_id": routed["decision"]["candidate_id"], "thread": routed["thread"]}
    # Another process: nothing of the first is left but the database.
    async with Client(stdio_client(agent), mode=mode, cache=None) as client:
        result = await client.call_tool("execute", {**call, "arguments": {"text": "again"}})
        assert result.content[0].text == "stdio: again"
        again = await client.call_tool("route", {"task": "show a picture", "thread": routed["thread"]})
        assert again.structured_content["thread"] == routed["thread"]
        assert again.structured_content["decision"]["candidate_id"] == "stdio/show_picture"
