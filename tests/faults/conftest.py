from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.api.app import create_app
from serving.api.service import Service
from serving.assembly import build_router
from serving.config import Config
from serving.engine.breaker import GuardedEngine
from serving.telemetry import Telemetry
from tests.faults.vllm_process import VllmProcess
from tests.live import serving

QUESTION = {
    "query": "What will the weather be?",
    "candidates": [
        {"name": "get_weather", "description": "Weather forecast for a city"},
        {"name": "send_mail", "description": "Send a letter"},
    ],
}
TIMEOUT_S = 3.0
FAILURES = 3


@pytest.fixture(scope="module")
def _process() -> Iterator[VllmProcess]:
    process = VllmProcess()
    yield process
    process.kill()


@pytest.fixture
def vllm(_process: VllmProcess) -> VllmProcess:
    """A process that answers well, whatever the test before did to it."""
    if _process.process.poll() is not None:
        _process.start()
    _process.answer("well")
    return _process


def profile(url: str, tokenizer: Path, **sections: dict[str, Any]) -> dict[str, Any]:
    """A profile whose engine is at `url`, and that needs no embedder."""
    engine = {"kind": "vllm", "url": url, "timeout_s": TIMEOUT_S, "start_timeout_s": 30}
    breaker = {"breaker_failures": FAILURES, "breaker_open_s": 3_600.0}  # until a test says
    return {
        "model": {"name": "base", "path": str(tokenizer), "adapter": None, "readout": "listwise"},
        "engine": {**engine, **breaker, **sections.get("engine", {})},
        "prefilter": {"method": "bm25"},
        "catalog": sections.get("catalog", {}),
        "server": sections.get("server", {}),
    }


@dataclass
class Running:
    """The API on a real socket in this event loop."""

    client: httpx.AsyncClient
    service: Service
    telemetry: Telemetry
    url: str

    async def ask(self, **headers: str) -> httpx.Response:
        return await self.client.post("/v1/route", json=QUESTION, headers=headers)

    async def ready(self) -> dict[str, Any]:
        report: dict[str, Any] = (await self.client.get("/health/ready")).json()
        return report

    def try_again(self) -> None:
        """As if the time were over for which the engine is not asked."""
        engine = self.service.router.engine
        assert isinstance(engine, GuardedEngine)
        engine.breaker._open_s = 0.0

    def metric(self, name: str, **labels: str) -> float:
        return self.telemetry.registry.get_sample_value(f"light_router_{name}", labels) or 0.0


@asynccontextmanager
async def running(settings: dict[str, Any]) -> AsyncIterator[Running]:
    config, telemetry = Config.model_validate(settings), Telemetry()
    app = create_app(config, build_router(config), telemetry)
    async with serving(app) as port:
        url = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            await app.state.service.readiness.started.wait()
            yield Running(client, app.state.service, telemetry, url)
