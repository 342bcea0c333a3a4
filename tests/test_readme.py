"""The README is true: its session, typed into a shell, gives what it shows."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, flags=re.M | re.S)
SHOWN = {"json", "text"}
# Another processor rounds otherwise; a probability may move this much, a decision may not.
TOLERANCE = 0.1
START_SECONDS = 120


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """`make serve`, as the README says, on a free port."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        free = int(probe.getsockname()[1])
    server = subprocess.Popen(["make", "serve", f"PORT={free}"], cwd=ROOT, start_new_session=True)
    deadline = time.monotonic() + START_SECONDS
    ready = 0
    while ready != 200:
        assert server.poll() is None, "make serve ended"
        assert time.monotonic() < deadline, "make serve was not ready in time"
        try:
            ready = httpx.get(f"http://127.0.0.1:{free}/health/ready").status_code
        except httpx.TransportError:
            time.sleep(0.2)
    yield free
    os.killpg(server.pid, signal.SIGTERM)
    server.wait(60)


def run(language: str, text: str, port: int) -> str:
    text = text.replace(":8000", f":{port}")
    command = ["bash", "-euo", "pipefail", "-c", text] if language == "sh" else [sys.executable, "-c", text]
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "100"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def same(shown: Any, given: Any, path: str = "") -> None:
    """Equal: but for times and what is cut with "...", and with numbers within the tolerance."""
    if isinstance(shown, dict):
        assert list(shown) == list(given), path
        for key in shown.keys() - {"timings_ms", "cached_tokens"}:
            same(shown[key], given[key], f"{path}.{key}")
    elif isinstance(shown, list):
        assert len(shown) == len(given), path
        for number, (one, other) in enumerate(zip(shown, given, strict=True)):
            same(one, other, f"{path}[{number}]")
    elif isinstance(shown, float):
        assert given == pytest.approx(shown, abs=TOLERANCE), path
    elif isinstance(shown, str) and shown.endswith("..."):
        assert given.startswith(shown.removesuffix("...")), path
    else:
        assert given == shown, path


def words(text: str) -> list[str]:
    """A table's words, its numbers and rules left out."""
    return re.findall(r"[a-z_]{3,}", text)


COMMANDS = [
    (language, text, BLOCKS[i + 1] if i + 1 < len(BLOCKS) and BLOCKS[i + 1][0] in SHOWN else None)
    for i, (language, text) in enumerate(BLOCKS)
    if language not in SHOWN and "make test" not in text
]


@pytest.mark.parametrize(("language", "text", "shown"), COMMANDS, ids=[text[:30] for _, text, _ in COMMANDS])
def test_a_block_gives_what_it_shows(language: str, text: str, shown: tuple[str, str] | None, port: int) -> None:
    output = run(language, text, port)
    if shown is None:
        assert output.strip()
    elif shown[0] == "json":
        same(json.loads(shown[1]), json.loads(output))
    else:
        assert words(output) == words(shown[1])


def test_the_session_is_there() -> None:
    assert len(COMMANDS) >= 4
    assert "make serve" in README
