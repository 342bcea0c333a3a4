"""Ten thousand requests of any kind through the real code path, and three hundred through the shipped models.

The tiny models have random weights and real tokenizers: how a request is parsed, filtered, worded, scored and
answered is what a real one meets.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from serving.api.app import create_app
from serving.assembly import build_router
from serving.config import Config
from serving.engine.base import ScoreRequest, Scores
from serving.engine.local import LocalEngine
from serving.telemetry import Telemetry
from tests.generated import Requests

pytestmark = pytest.mark.anyio

TOGETHER = 8
ANSWER_SECONDS = 120


@contextlib.asynccontextmanager
async def served(config: Config) -> AsyncIterator[httpx.AsyncClient]:
    """The application in this process, warm."""
    app = create_app(config, build_router(config), Telemetry())
    async with app.router.lifespan_context(app):
        async with asyncio.timeout(ANSWER_SECONDS):
            await app.state.service.readiness.started.wait()
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=None) as client:
            yield client


def check(body: dict, response: httpx.Response) -> str:
    """The answer is one of the request's ids, or none, or a clear refusal; what it was is returned."""
    if 400 <= response.status_code < 500:
        assert len(response.json()["error"]["message"]) > 10
        return "refused"
    assert response.status_code == 200, response.text
    answer = response.json()
    ids = {candidate["id"] for candidate in body["candidates"]}
    ranked = [entry["id"] for entry in answer["ranking"]]
    assert set(ranked) <= ids
    assert len(set(ranked)) == len(ranked)
    probabilities = [entry["probability"] for entry in answer["ranking"]]
    assert all(0 <= p <= 1 and math.isfinite(p) for p in [*probabilities, answer["none_probability"]])
    if "top" not in body and ids:
        assert sum(probabilities) + answer["none_probability"] == pytest.approx(1)
    if "coverage" in body:
        assert set(answer["prediction_set"]) <= ids
    if answer["decision"] is None:
        assert body.get("allow_none", True)
        return "none"
    assert answer["decision"]["id"] in ids
    return "chosen"


async def ask_all(client: httpx.AsyncClient, requests: Requests, count: int) -> dict[str, int]:
    """Ask `count` times, a few at once; how often each kind of answer came."""
    outcomes = {"chosen": 0, "none": 0, "refused": 0}
    left = iter(range(count))

    async def caller() -> None:
        for _ in left:
            body = requests.body()
            async with asyncio.timeout(ANSWER_SECONDS):
                outcomes[check(body, await client.post("/v1/route", json=body))] += 1

    await asyncio.gather(*(caller() for _ in range(TOGETHER)))
    return outcomes


@pytest.fixture
def prompts_seen(monkeypatch: pytest.MonkeyPatch) -> list[ScoreRequest]:
    """Every question that reaches the engine."""
    seen: list[ScoreRequest] = []
    score = LocalEngine.score

    async def spied(engine: LocalEngine, request: ScoreRequest) -> Scores:
        seen.append(request)
        return await score(engine, request)

    monkeypatch.setattr(LocalEngine, "score", spied)
    return seen


async def test_ten_thousand_requests_through_tiny_models(
    tiny_llama: Path, tiny_embedder: Path, prompts_seen: list[ScoreRequest]
) -> None:
    config = Config.model_validate(
        {
            "model": {"path": str(tiny_llama), "budget": {"candidate": 24, "message": 24, "history": 96, "total": 512}},
            "engine": {"threads": 1},
            "prefilter": {"embedder": str(tiny_embedder)},
        }
    )
    async with served(config) as client:
        outcomes = await ask_all(client, Requests(seed=1, pool=2_000), 10_000)
    assert min(outcomes.values()) > 100, outcomes
    start, end = 1, 2  # <|im_start|> and <|im_end|> are the only added tokens of the template
    for question in prompts_seen:
        if len(question.prefix) < 8:
            continue  # the engine's own warm-up
        opened, closed = question.prefix.count(start), question.prefix.count(end)
        assert opened == closed > 0
        assert not [token for token in question.prefix if token < 17 and token not in (start, end)]
        for continuation in question.continuations:
            assert [token for token in continuation if token < 17] == [start, end, start]


async def test_three_hundred_requests_through_the_shipped_models() -> None:
    config = Config.load("configs/cpu.yaml")
    async with served(config) as client:
        outcomes = await ask_all(client, Requests(seed=2, pool=300), 300)
    assert outcomes["chosen"] > 30, outcomes
    assert outcomes["refused"] > 3, outcomes
