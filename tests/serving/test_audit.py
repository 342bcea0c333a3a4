"""The audit log: what is on record, and that nothing answered is missing from it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from serving import audit as module
from serving.audit import AuditLog
from serving.config import Config
from serving.types import AuditError, Candidate, Decision, Filter, Message, PrefilterReport, Ranked, RouteRequest
from tests.serving.api.conftest import *  # noqa: F403  (a server around a deterministic engine)

CANDIDATES = (Candidate("a", "weather"), Candidate("b", "mail"))
REQUEST = RouteRequest((Message("user", "My PIN is 1234"),), CANDIDATES)


def decision(chosen: int | None = 0, considered: int = 2) -> Decision:
    ranking = tuple(Ranked(candidate, 0.4) for candidate in CANDIDATES[:considered])
    report = PrefilterReport("none", considered, considered)
    return Decision(None if chosen is None else ranking[chosen], 0.2, ranking, None, report, (), 1, 0, "words")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


@pytest.fixture
def config(path: Path) -> Config:
    return Config.model_validate({"server": {"audit": {"path": str(path)}}})


def test_who_was_offered_what_and_why_none(path: Path) -> None:
    log = AuditLog(str(path))
    log.start()
    log.record(REQUEST, decision(), surface="/v1/route", request_id="r1", key="ada", tenant="acme")
    log.record(REQUEST, decision(None), surface="/v1/route")
    from_catalog = RouteRequest(REQUEST.messages, catalog="acme/c", exclude=Filter(servers=("x",)))
    log.record(from_catalog, decision(None, 0), surface="/v1/route", catalog="c")
    log.close()
    first, second, third = lines(path)
    assert first.pop("time").endswith("+00:00")
    assert first == {
        "request_id": "r1", "surface": "/v1/route", "key": "ada", "tenant": "acme", "principals": [], "messages": 1,
        "query": {"characters": 14}, "offered": {"considered": 2, "ids": ["a", "b"]},
        "kept": [{"id": "a", "probability": 0.4}, {"id": "b", "probability": 0.4}], "chosen": "a", "probability": 0.4,
        "none_probability": 0.2, "why_none": None, "model": "words",
    }  # fmt: skip
    assert (second["chosen"], second["why_none"]) == (None, "none_fits")
    assert third["why_none"] == "nothing_offered"
    assert third["offered"]["catalog"] == "c"
    assert third["offered"]["exclude"]["servers"] == ["x"]
    assert "1234" not in path.read_text()
    assert path.stat().st_mode & 0o077 == 0


def test_the_text_is_recorded_where_it_is_asked_for(path: Path) -> None:
    log = AuditLog(str(path), texts=True)
    log.start()
    log.record(REQUEST, decision(), surface="x")
    log.close()
    assert lines(path)[0]["query"]["text"] == "My PIN is 1234"


def test_a_full_disk_loses_nothing_and_then_stops_decisions(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = AuditLog(str(path))
    append, failing, failed = AuditLog._append, threading.Event(), threading.Event()

    def broken(self: AuditLog, data: memoryview) -> int:
        if failing.is_set():
            failed.set()
            raise OSError(28, "No space left on device")
        return append(self, data[:7])  # in pieces, as a write may be

    monkeypatch.setattr(AuditLog, "_append", broken)
    monkeypatch.setattr(module, "WAITING_BYTES", 2_000)
    monkeypatch.setattr(module, "_RETRY_S", 0.001)
    failing.set()
    log.start()
    recorded = 0
    refused: AuditError | None = None
    while refused is None:
        try:
            log.record(REQUEST, decision(), surface=str(recorded))
            recorded += 1
        except AuditError as error:
            refused = error
    assert "no decision is answered" in str(refused)
    assert failed.wait(30)
    failing.clear()
    log.close()
    assert [line["surface"] for line in lines(path)] == [str(number) for number in range(recorded)]


def test_a_file_that_cannot_be_written_is_told_at_start(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"server.audit.path .* cannot be written to"):
        AuditLog(str(tmp_path))


@pytest.mark.anyio
async def test_every_decision_is_on_record_before_the_server_ends(unstarted: Any, path: Path) -> None:
    async with unstarted.app.router.lifespan_context(unstarted.app):
        await unstarted.service.readiness.started.wait()
        async with unstarted.client() as client:
            for number in range(5):
                body = {"query": "weather", "candidates": [{"name": "weather"}, {"name": str(number)}]}
                answer = await client.post("/v1/route", json=body, headers={"x-request-id": f"r{number}"})
                assert answer.status_code == 200
            await client.post("/v1/tools/search", json={"query": "x", "tools": [{"name": "a"}], "method": "router"})
    written = lines(path)
    assert [line["request_id"] for line in written[:5]] == [f"r{number}" for number in range(5)]
    assert [line["surface"] for line in written] == ["/v1/route"] * 5 + ["/v1/tools/search"]


def test_sigterm_loses_no_acknowledged_decision(path: Path) -> None:
    """A process of its own answers as a server does, record first, until it is ended."""
    program = (
        "import signal, sys\n"
        "from tests.serving.test_audit import REQUEST, decision\n"
        "from serving.audit import AuditLog\n"
        "ended = []\n"
        "signal.signal(signal.SIGTERM, lambda *_: ended.append(1))\n"
        "log = AuditLog(sys.argv[1]); log.start(); count = 0\n"
        "while not ended:\n"
        "    log.record(REQUEST, decision(), surface=str(count)); count += 1\n"
        "    print(count, flush=True)\n"
        "log.close()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(200)]
        os.kill(process.pid, signal.SIGTERM)
        answered = int([*said, *process.stdout][-1])
    assert process.returncode == 0
    assert [line["surface"] for line in lines(path)] == [str(number) for number in range(answered)]
