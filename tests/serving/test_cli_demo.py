"""The guided tour, with the shipped router: what it says of each scene is what the router decides."""

import re

from typer.testing import CliRunner

from adapters.cli import app
from serving.cli_demo import SCENES


def test_the_tour_shows_a_choice_what_history_changes_and_none() -> None:
    result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == 0, result.output
    assert [title for _, title in re.findall(r"^(\d)\. (.+)$", result.output, re.MULTILINE)] == [
        scene.title for scene in SCENES
    ]
    decisions = re.findall(r"-> +(\S.*?)  ", result.output)
    assert decisions == ["weather/get_forecast", "flights/search_flights", "flights/book_flight", "none of these"]


def test_a_profile_that_cannot_be_read_is_named(tmp_path) -> None:
    profile = tmp_path / "wrong.yaml"
    profile.write_text("engine: {kind: abacus}", encoding="utf-8")
    result = CliRunner().invoke(app, ["demo", "--config", str(profile)])
    assert result.exit_code == 2
    assert "abacus" in result.output or "engine.kind" in result.output
