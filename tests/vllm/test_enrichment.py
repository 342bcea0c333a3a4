"""The LLM client and a whole enrichment against a real vLLM server under JSON-schema constraint.

SmolLM2 is too small to write anything useful, or even JSON by itself: the constraint is what holds it in shape.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from prompts import Candidate, Message
from serving.catalog.enrich import Options, enrich
from serving.catalog.enrich_report import Report
from serving.llm import LLM, Journal
from tests.serving.catalog.enrichment import CATALOG, WordEmbedder, filled
from tests.vllm.conftest import Server

pytestmark = [pytest.mark.vllm, pytest.mark.anyio]

TOOLS = [
    Candidate("1", "get_weather", "Gets the weather forecast of a city for the next days."),
    Candidate("2", "send_invoice", "Sends an invoice to a customer by mail.", server="billing"),
    Candidate("3", "list_open_invoices", "", server="billing"),
]
OPTIONS = Options(queries=2, intentions=2, distractors=2)


def connected(server: Server, journal: Path | None = None) -> LLM:
    # Greedy, and no longer than it takes: a small model may not find the end of a text.
    return LLM(
        server.profile.model.name,
        f"{server.profile.engine.url}/v1",
        journal=Journal(journal),
        concurrency=2,
        corrections=0,
        max_tokens=300,
        extra={"temperature": 0, "repetition_penalty": 1.2},
    )


@pytest.fixture
async def llm(smollm2_server: Server) -> AsyncIterator[LLM]:
    llm = connected(smollm2_server)
    yield llm
    await llm.close()


async def test_the_schema_decides_what_can_be_said(llm: LLM) -> None:
    schema = {
        "type": "object",
        "properties": {
            "number": {"type": "integer", "enum": [3, 5]},
            "word": {"type": "string", "enum": ["zyx", "wvu"]},
        },
        "required": ["number", "word"],
        "additionalProperties": False,
    }
    answer = await llm.ask([Message("user", "Tell me a long story about the sea. No JSON, please.")], schema)
    assert answer["number"] in {3, 5}
    assert answer["word"] in {"zyx", "wvu"}
    assert llm.spent.calls == 1
    assert llm.spent.prompt_tokens > llm.spent.completion_tokens > 0


async def test_a_catalogue_is_enriched_and_the_journal_repeats_it(smollm2_server: Server, tmp_path: Path) -> None:
    store = await filled(tmp_path, TOOLS)
    reports: list[Report] = []
    for run in range(2):
        llm = connected(smollm2_server, tmp_path / "journal")
        options = OPTIONS if run == 0 else Options(queries=2, intentions=2, distractors=2, everything=True)
        reports.append(await enrich(store, CATALOG, llm, WordEmbedder(), "words", options))
        await llm.close()
    first, second = reports
    assert (first.failed, first.stopped, first.enriched, first.queries_written) == ({}, "", 3, 6)
    assert first.queries_kept + first.queries_near_duplicate + first.queries_refused == 6
    assert first.spent.calls >= 7  # a description, and queries and intentions of three; the verifier's come on top
    assert (second.spent.calls, second.enriched, second.queries_kept) == (0, 3, first.queries_kept)
    found = await store.get(CATALOG, ["1", "2", "3"])
    assert all(entry.intentions for entry in found)
    assert sum(len(entry.queries) for entry in found) == first.queries_kept
    await store.close()
