from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from serving.cli_catalog import app

LINES: list[dict[str, Any]] = [
    {"id": "weather", "type": "server", "name": "weather", "description": "About the sky"},
    {"server": "weather", "name": "forecast", "description": "What comes", "queries": ["Rain?"], "tags": ["sky"]},
    {"id": "7", "name": "search", "server": "github", "inputSchema": {"type": "object"}, "pinned": True},
    {"id": "8", "name": "search", "server": "jira", "enabled": False, "principals": ["bob"]},
    {"id": "[red]/9", "name": "[/b]", "type": "skill"},
]
Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(app, list(words), env={"COLUMNS": "200"})


@pytest.fixture
def filled(run: Run) -> Run:
    Path("lines.jsonl").write_text("\n".join(map(json.dumps, LINES)) + "\n", encoding="utf-8")
    result = run("add", "c", "lines.jsonl")
    assert result.exit_code == 0, result.output
    assert "4 candidates are in c, now at version 2" in result.output
    return run


def lines(path: str) -> list[Any]:
    opened = gzip.open if path.endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8") as file:  # type: ignore[operator]
        return [json.loads(line) for line in file]


def test_the_default_database_is_a_file_here(filled: Run) -> None:
    assert Path("light-router.db").exists()
    result = filled("list", "--database", "sqlite:///light-router.db")
    assert [word in result.output for word in ("c", "2", "4")] == [True] * 3


def test_candidates_are_listed(filled: Run) -> None:
    everything = filled("list", "c").output
    assert all(id in everything for id in ("weather/forecast", "7", "8", "[red]/9", "What comes"))
    filtered = filled("list", "c", "--tag", "sky").output
    assert "weather/forecast" in filtered
    assert "github" not in filtered
    assert "--after '7'" in filled("list", "c", "--limit", "1").output


def test_a_candidate_is_shown_by_id_or_name(filled: Run) -> None:
    for name in ("weather/forecast", "forecast", "weather__forecast", "FORECAST"):
        shown = json.loads(filled("show", "c", name).output)
        assert (shown["id"], shown["queries"], shown["stale"]) == ("weather/forecast", ["Rain?"], False)
    ambiguous = filled("show", "c", "search")
    assert ambiguous.exit_code == 1
    assert "'search' may be github__search, jira__search; say which" in ambiguous.stderr
    assert "nearest names are weather__forecast" in filled("show", "c", "forecst").stderr


def test_a_catalogue_is_shown(filled: Run) -> None:
    shown = filled("show", "c").output
    assert "c, version 2" in shown
    assert "3 tools, 1 skills; 1 pinned, 1 disabled, 1 enriched" in shown


def test_an_export_imported_elsewhere_is_the_same(filled: Run) -> None:
    assert filled("export", "c", "a.jsonl.gz").exit_code == 0
    assert filled("import", "d", "a.jsonl.gz").exit_code == 0
    assert filled("export", "d", "b.jsonl").exit_code == 0
    exported = lines("a.jsonl.gz")
    assert exported == lines("b.jsonl")
    assert [line["id"] for line in exported] == ["weather", "7", "8", "[red]/9", "weather/forecast"]
    assert exported[0]["description"] == "About the sky"
    assert exported[1] == {
        "id": "7", "type": "tool", "server": "github", "name": "search", "description": "", "pinned": True,
        "input_schema": {"type": "object"},
    }  # fmt: skip


def test_enrichment_and_chains_go_their_own_way(filled: Run) -> None:
    Path("e.jsonl").write_text('{"id": "7", "queries": ["q"], "intentions": ["i"]}\n{"id": "no", "queries": []}\n')
    result = filled("import", "c", "e.jsonl")
    assert "1 candidates' enrichment taken over" in result.output
    assert "'no'" in result.output
    filled("export", "c", "made.jsonl", "--enrichment")
    assert lines("made.jsonl")[0] == {"id": "7", "queries": ["q"], "intentions": ["i"]}
    Path("chains.jsonl").write_text('{"query": "x", "tools": ["7", "8"]}\n')
    assert "1 chains taken over" in filled("import", "c", "chains.jsonl").output
    calls = [{"name": "8", "arguments": "{}"}, {"name": "7", "arguments": "{}"}]
    said = [{"role": "user", "content": "y"}, {"role": "assistant", "content": "", "tool_calls": calls}]
    Path("t.jsonl").write_text(json.dumps({"task": "t", "messages": said}))
    assert "1 chains taken over" in filled("import", "c", "t.jsonl").output
    filled("export", "c", "again.jsonl", "--chains")
    assert sorted(line["tools"] for line in lines("again.jsonl")) == [["7", "8"], ["8", "7"]]


def test_removing(filled: Run) -> None:
    assert "no 'nope'" in filled("remove", "c", "7", "nope").stderr
    assert filled("remove", "c", "7", "8").exit_code == 0
    assert filled("remove", "c", "--server", "weather").exit_code == 0
    assert "no server 'weather'" in filled("remove", "c", "--server", "weather").stderr
    filled("export", "c", "left.jsonl")
    assert [line["id"] for line in lines("left.jsonl")] == ["[red]/9"]
    assert filled("remove", "c").exit_code == 2
    assert filled("remove", "c", "x", "--all").exit_code == 2
    assert filled("remove", "c", "--all").exit_code == 0
    assert "'c' does not exist" in filled("show", "c").stderr


def test_a_hash_in_a_name_is_reported(run: Run) -> None:
    Path("tools.json").write_text('[{"id": "1", "name": "a.b"}, {"id": "2", "name": "a_b"}]')
    assert "carry a hash therefore: 'a_b'" in run("add", "c", "tools.json").output


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"name": "a"}, {"name": ""}]', "tools.json[1].name should have at least 1 character"),
        ('[{"name": "a"}, {"name": "a"}]', "have the same id 'a'"),
        ('{"name": "a"}\n{"name"', "tools.json:2 is not valid JSON"),
        (None, "cannot read tools.json"),
    ],
)
def test_a_wrong_file_says_where(run: Run, content: str | None, message: str) -> None:
    if content is not None:
        Path("tools.json").write_text(content)
    result = run("add", "c", "tools.json")
    assert result.exit_code == 1
    assert message in result.stderr
    assert "does not exist" in run("show", "c").stderr


def test_a_wrong_database_says_what_is_right(run: Run) -> None:
    result = run("list", "--database", "mysql://x")
    assert result.exit_code == 1
    assert "sqlite:///light-router.db" in result.stderr
