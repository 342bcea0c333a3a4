"""Profiles: every shipped one loads, and a wrong one says what is wrong."""

from pathlib import Path

import pytest

from serving.config import Config
from tests.conftest import ROOT


@pytest.mark.parametrize("profile", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.name)
def test_a_shipped_profile_loads_and_explains_itself(profile: Path) -> None:
    Config.load(profile)
    assert profile.read_text(encoding="utf-8").count("#") >= 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("modle: {}", r"modle: Extra inputs"),
        ("engine: {kind: cuda}", r"engine\.kind: Input should be 'local' or 'vllm'"),
        ("engine: {timeout_s: 0}", r"engine\.timeout_s"),
        ("model: {budget: {candidate: 1}}", r"budget\.candidate is 1"),
        ("[1, 2]", "must be a mapping"),
        ("a: [", "cannot read the profile"),
        ("model: {readout: listwise}\nprefilter: {k: 60}", "52 labels"),
    ],
)
def test_a_wrong_profile_names_the_file_and_the_key(tmp_path: Path, text: str, message: str) -> None:
    profile = tmp_path / "wrong.yaml"
    profile.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message) as caught:
        Config.load(profile)
    assert "wrong.yaml" in str(caught.value)


def test_the_environment_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = tmp_path / "p.yaml"
    profile.write_text("engine: {url: 'http://a', timeout_s: 3}", encoding="utf-8")
    monkeypatch.setenv("LIGHT_ROUTER_ENGINE__URL", "http://b")
    monkeypatch.setenv("LIGHT_ROUTER_SERVER__API_KEYS", '["secret-key"]')
    config = Config.load(profile)
    assert config.engine.url == "http://b"
    assert config.engine.timeout_s == 3
    assert config.server.api_keys[0].get_secret_value() == "secret-key"
    assert "secret-key" not in repr(config)
