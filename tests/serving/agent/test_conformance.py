"""The protocol's own conformance suite, over Streamable HTTP, for every server feature that the agent offers.

The suite calls tools by names of its own. They stand behind the agent and are pinned, so that what is tested is how the
agent passes on calls, results, questions and errors.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, STDOUT

import anyio
import pytest

from serving.keys import Caller
from serving.types import Candidate
from tests.conftest import ROOT
from tests.live import serving
from tests.serving.agent.conformance_tools import SCHEMAS, conformance_tools
from tests.serving.agent.conftest import Running, running
from tests.serving.agent.test_results import source

pytestmark = pytest.mark.anyio
PEERS = ROOT / ".peers"
SUITE = PEERS / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"

# The agent declares tools and nothing else; and before 2026-07-28 a server asks its host in the middle of a call, which
# cannot be passed on from an upstream that many hosts share.
NOT_OFFERED = {
    "2025-11-25": {
        *("logging-set-level", "tools-call-with-logging", "completion-complete"),
        *("tools-call-sampling", "tools-call-elicitation"),
        *("elicitation-sep1034-defaults", "elicitation-sep1330-enums"),
        *("resources-list", "resources-read-text", "resources-read-binary", "resources-templates-read"),
        *("resources-subscribe", "resources-unsubscribe"),
        *("prompts-list", "prompts-get-simple", "prompts-get-with-args", "prompts-get-embedded-resource"),
        "prompts-get-with-image",
    },
    "2026-07-28": {
        *("completion-complete", "input-required-result-non-tool-request"),
        *("resources-list", "resources-read-text", "resources-read-binary", "resources-templates-read"),
        *("prompts-list", "prompts-get-simple", "prompts-get-with-args", "prompts-get-embedded-resource"),
        "prompts-get-with-image",
        # An extension.
        *("tasks-lifecycle", "tasks-capability-negotiation", "tasks-wire-fields", "tasks-request-state-removal"),
        *("tasks-mrtr-input", "tasks-request-headers", "tasks-dispatch-and-envelope", "tasks-status-notifications"),
        *("tasks-required-task-error", "tasks-mrtr-composition"),
        # Arguments that a host repeats as headers, which only pinned tools could ask for. The suite does not score it.
        "http-custom-header-server-validation",
    },
}
# Single checks of scenarios that are offered otherwise.
NOT_OFFERED_CHECKS = {
    "sep-2549-prompts-list-caching-hints",
    "sep-2549-resources-list-caching-hints",
    "sep-2549-resources-templates-list-caching-hints",
    # The HTTP parser leaves white space before a line's end in a header's value. The suite does not score it.
    "sep-2243-server-accepts-whitespace-header-value",
}
# What a scenario says beside its own checks; they hold even where nothing was asked.
GENERAL_CHECKS = {"wire-schema-valid", "wire-schema-harness-error"}


@dataclass(frozen=True)
class Check:
    scenario: str
    id: str
    status: str
    error: str


@pytest.mark.parametrize("revision", sorted(NOT_OFFERED))
async def test_what_is_offered_conforms(
    revision: str, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        serving(conformance_tools().streamable_http_app()) as port,
        running(database, [source(port, "suite")], pinned=list(SCHEMAS)) as agent,
    ):
        _name_as_the_suite_does(agent, monkeypatch)
        checks = await _run(agent.port, revision, tmp_path)
    offered = [check for check in checks if check.scenario not in NOT_OFFERED[revision]]
    failed = [check for check in offered if check.status == "FAILURE" and check.id not in NOT_OFFERED_CHECKS]
    assert not failed
    passed = {check.scenario for check in offered if check.status == "SUCCESS" and check.id not in GENERAL_CHECKS}
    assert {"tools-list", "tools-call-with-progress", "dns-rebinding-protection"} <= passed
    # What is said not to be offered does not pass unnoticed either.
    assert {check.scenario for check in offered} - passed <= {"server-sse-polling"}
    assert {check.scenario for check in checks if check.status == "FAILURE"} >= NOT_OFFERED[revision] - {
        "tasks-status-notifications"  # has nothing to look at
    }


def _name_as_the_suite_does(agent: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = agent.agent.pinned

    async def bare(caller: Caller) -> dict[str, Candidate]:
        return {candidate.name: candidate for candidate in (await pinned(caller)).values()}

    monkeypatch.setattr(agent.agent, "pinned", bare)


async def _run(port: int, revision: str, folder: Path) -> Sequence[Check]:
    """Every scenario that the revision knows, at its own wire format."""
    command = [
        *(str(PEERS / "bin" / "node"), str(SUITE), "server", "--url", f"http://127.0.0.1:{port}/mcp"),
        *("--requirements", revision, "--output-dir", str(folder)),
    ]
    # It ends with 1 where any scenario fails, those that are not offered among them.
    done = await anyio.run_process(
        command, check=False, stdout=PIPE, stderr=STDOUT, env={**os.environ, "NO_COLOR": "1"}
    )
    found = _checks(folder)
    assert found, done.stdout.decode()
    return found


def _checks(folder: Path) -> list[Check]:
    return [
        Check(
            # server-SCENARIO-2026-11-30T07-47-56-531Z
            file.parent.name.removeprefix("server-")[:-25],
            check["id"],
            check["status"],
            check.get("errorMessage") or "",
        )
        for file in folder.glob("*/checks.json")
        for check in json.loads(file.read_text())
    ]
