"""A process that enriches is killed, and another goes on. chat_server.py stands in for the LLM."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from prompts import Candidate
from serving.catalog.enrich import Options
from serving.catalog.entry import Entry
from serving.catalog.store import Store
from tests.conftest import ROOT
from tests.serving.catalog.enrichment import CATALOG, candidates, enriched, filled, opened
from tests.serving.chat_server import ChatServer, Reply, answer, serving

pytestmark = pytest.mark.anyio


@pytest.fixture
def chat() -> Iterator[ChatServer]:
    with serving() as server:
        yield server


async def entries(store: Store) -> list[Entry]:
    """All of them, as if written at once."""
    return [dataclasses.replace(entry, version=0) for entry in (await store.changes(CATALOG, 0)).entries]


async def test_a_killed_run_goes_on_without_repeating_a_finished_call(chat: ChatServer, tmp_path: Path) -> None:
    pool = [*candidates(9), Candidate("bare1", "list invoices", server="server1"), Candidate("bare2", "read a book")]
    await (await filled(tmp_path, pool)).close()
    journal = tmp_path / "journal"
    command = [sys.executable, "-m", "tests.serving.catalog.enrichment", str(tmp_path), chat.url]
    finished_before: list[int] = []
    for answers in (1, 9, 30):  # in the descriptions, and twice in the queries
        killed_now = threading.Event()
        chat.respond = partial(_answer_some, len(chat.bodies) + answers, chat, killed_now)
        process = subprocess.Popen(command, cwd=ROOT)  # noqa: ASYNC220
        for _ in range(answers + 1):
            await asyncio.to_thread(chat.arrived.acquire)
        process.kill()
        process.wait()
        killed_now.set()
        while chat.arrived.acquire(blocking=False):
            pass
        finished_before.append(len(journal.read_text().splitlines()))
    assert finished_before == sorted(set(finished_before)), "every run got further"
    lines = [json.loads(line) for line in journal.read_text().splitlines() if line.endswith("}")]
    finished = sum("usage" in line["value"] for line in lines if isinstance(line["value"], dict))
    killed = len(chat.bodies)
    chat.respond = lambda body: Reply(answer(body))
    await asyncio.to_thread(subprocess.run, command, cwd=ROOT, check=True)
    repeated = Counter(json.dumps(body, sort_keys=True) for body in chat.bodies)
    # Only what was being answered when a run was killed may be asked again: at most two calls were under way.
    assert sum(count - 1 for count in repeated.values()) == killed - finished
    assert killed - finished <= 2 * 3

    whole = await filled(_folder(tmp_path / "whole"), pool)
    store = await opened(tmp_path)
    await enriched(whole, chat.url, tmp_path / "whole" / "journal", Options(chains=True))
    assert await entries(store) == await entries(whole)
    assert await store.chains(CATALOG) == await whole.chains(CATALOG)
    await whole.close()
    await store.close()


def _answer_some(last: int, chat: ChatServer, killed: threading.Event, body: dict[str, Any]) -> Reply:
    """Answers until `last` requests have arrived; whoever asks then waits until the process is killed."""
    if len(chat.bodies) > last:
        killed.wait()
    return Reply(answer(body))


def _folder(path: Path) -> Path:
    path.mkdir()
    return path
