"""Ten tasks of several steps for a host that has only `route` and `execute`, and how to see that they were done.

Knows which tools the servers of other authors have. The words of a step are what a host would say; `wanted` is what
they mean, and `arguments` what the host's model would fill in, with what earlier steps returned.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Arguments = Mapping[str, Any] | Callable[[str], Mapping[str, Any]]


@dataclass(frozen=True)
class Step:
    """One step. `arguments` may be made of what the step before it returned."""

    words: str
    wanted: str
    arguments: Arguments


@dataclass(frozen=True)
class Task:
    name: str
    steps: tuple[Step, ...]
    done: Callable[[], bool]
    """Looks at the world, not at the answers."""


def git(desk: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=desk, check=True, capture_output=True, text=True).stdout


def tasks(desk: Path, memory: Path) -> list[Task]:
    """In this order: a later task may find what an earlier one has made."""
    repo = {"repo_path": str(desk)}
    agenda, renamed = desk / "notes" / "agenda.md", desk / "notes" / "monday.md"
    tokyo, plan = desk / "tokyo.txt", desk / "plan.md"

    def held(file: Path) -> str:
        return file.read_text(encoding="utf-8") if file.exists() else ""

    def graph_has(*words: str) -> bool:
        return all(word in held(memory) for word in words)

    return [
        Task(
            "write a note",
            (
                Step(
                    "Create a directory for my notes",
                    "files/create_directory",
                    {"path": str(agenda.parent)},
                ),
                Step(
                    "Write the agenda into a new file agenda.md",
                    "files/write_file",
                    {"path": str(agenda), "content": "1. budget\n2. hiring\n"},
                ),
                Step("Read the text of that file", "files/read_text_file", {"path": str(agenda)}),
            ),
            lambda: held(agenda) == "1. budget\n2. hiring\n",
        ),
        Task(
            "commit it",
            (
                Step(
                    "Add the file to the git staging area",
                    "git/git_add",
                    {**repo, "files": ["notes/agenda.md"]},
                ),
                Step(
                    "Commit the staged changes to the repository",
                    "git/git_commit",
                    {**repo, "message": "Add the agenda"},
                ),
                Step("Show the commit log", "git/git_log", repo),
            ),
            lambda: "Add the agenda" in git(desk, "log", "--format=%s"),
        ),
        Task(
            "work on a branch",
            (
                Step(
                    "Create a git branch called draft",
                    "git/git_create_branch",
                    {**repo, "branch_name": "draft"},
                ),
                Step("Switch to the branch draft", "git/git_checkout", {**repo, "branch_name": "draft"}),
            ),
            lambda: git(desk, "branch", "--show-current").strip() == "draft",
        ),
        Task(
            "change a line",
            (
                Step(
                    "Edit the file: replace hiring by travel",
                    "files/edit_file",
                    {"path": str(agenda), "edits": [{"oldText": "hiring", "newText": "travel"}]},
                ),
                Step(
                    "Show the changes in the working directory that are not yet staged",
                    "git/git_diff_unstaged",
                    repo,
                ),
            ),
            lambda: "travel" in held(agenda) and "+2. travel" in git(desk, "diff"),
        ),
        Task(
            "stage it",
            (
                Step(
                    "Add the changed file to the staging area",
                    "git/git_add",
                    {**repo, "files": ["notes/agenda.md"]},
                ),
                Step("Show the changes that are staged for commit", "git/git_diff_staged", repo),
                Step("Show the working tree status", "git/git_status", repo),
            ),
            lambda: "+2. travel" in git(desk, "diff", "--staged"),
        ),
        Task(
            "rename it",
            (
                Step(
                    "Rename the file agenda.md to monday.md",
                    "files/move_file",
                    {"source": str(agenda), "destination": str(renamed)},
                ),
                Step(
                    "List the files in the directory",
                    "files/list_directory",
                    {"path": str(agenda.parent)},
                ),
            ),
            lambda: renamed.exists() and not agenda.exists(),
        ),
        Task(
            "note the time",
            (
                Step("What is the current time in Tokyo?", "time/get_current_time", {"timezone": "Asia/Tokyo"}),
                Step(
                    "Write it to the file tokyo.txt",
                    "files/write_file",
                    lambda told: {"path": str(tokyo), "content": told},
                ),
            ),
            lambda: "Asia/Tokyo" in held(tokyo),
        ),
        Task(
            "remember a meeting",
            (
                Step(
                    "Convert 09:00 from the time zone of Lisbon to that of Tokyo",
                    "time/convert_time",
                    {"source_timezone": "Europe/Lisbon", "time": "09:00", "target_timezone": "Asia/Tokyo"},
                ),
                Step(
                    "Create an entity for the meeting in the knowledge graph",
                    "memory/create_entities",
                    lambda told: {
                        "entities": [{"name": "Tokyo call", "entityType": "meeting", "observations": [told]}]
                    },
                ),
            ),
            lambda: graph_has("Tokyo call", "time_difference"),
        ),
        Task(
            "learn more of it",
            (
                Step(
                    "Search the knowledge graph for Tokyo",
                    "memory/search_nodes",
                    {"query": "Tokyo"},
                ),
                Step(
                    "Add an observation to the entity: Ada joins",
                    "memory/add_observations",
                    {"observations": [{"entityName": "Tokyo call", "contents": ["Ada joins"]}]},
                ),
            ),
            lambda: graph_has("Ada joins"),
        ),
        Task(
            "have a trip planned",
            (
                Step("Plan a trip to Rome with flights", "trips/Trip planner", {"message": "Rome"}),
                Step(
                    "Write the plan to the file plan.md",
                    "files/write_file",
                    lambda told: {"path": str(plan), "content": told},
                ),
            ),
            lambda: held(plan) == "plan for Rome: fly",
        ),
    ]
