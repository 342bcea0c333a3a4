"""A server around a router whose engine is deterministic: it counts the words that option and conversation share."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
import numpy as np
import pytest
from fastapi import FastAPI

from prompts import PromptTokenizer, Template
from serving.api.app import create_app
from serving.api.service import Service
from serving.catalog.catalogs import Catalogs
from serving.catalog.store import Store
from serving.config import Config, PrefilterConfig
from serving.engine.base import Choice, ChoiceRequest, ScoreRequest, Scores
from serving.prefilter import Prefilter, make_rankers
from serving.prefilter.base import Kept
from serving.prefilter.embedder import Embeddings
from serving.prefilter.selection import RankingPrefilter
from serving.router import Router
from serving.telemetry import Telemetry
from serving.types import Candidate, PrefilterReport, RouteRequest
from tests.live import serving
from tests.serving.catalog.test_index import WordEmbedder

WORD = re.compile(r"[a-z]{4,}")


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PromptTokenizer:
    """Bytes, the letters' words Yes and No, and ChatML's two control tokens."""
    from tokenizers.pre_tokenizers import ByteLevel

    pieces = [*sorted(ByteLevel.alphabet()), "Ye", "Yes", "No"]
    added = [
        {"id": len(pieces) + i, "content": content, "special": True, "single_word": False, "lstrip": False,
         "rstrip": False, "normalized": False}
        for i, content in enumerate(["<|im_start|>", "<|im_end|>"])
    ]  # fmt: skip
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    model = {
        "type": "BPE",
        "vocab": {piece: i for i, piece in enumerate(pieces)},
        "merges": [["Y", "e"], ["Ye", "s"], ["N", "o"]],
    }
    path.write_text(
        json.dumps({"version": "1.0", "added_tokens": added, "pre_tokenizer": byte_level, "decoder": byte_level,
                    "model": model})
    )  # fmt: skip
    return PromptTokenizer(path)


@dataclass
class WordEngine:
    """Log-odds of an option: twice the words of four letters it shares with the conversation.

    The option of none says "fits", which counts as half a word: it wins where no other shares any.
    """

    tokenizer: PromptTokenizer
    model: str = "words"
    max_tokens: int = 100_000
    failure: Exception | None = None
    started: int = 0
    closed: int = 0
    scored: list[ScoreRequest] = field(default_factory=list)
    """Requests whose work has begun; those that wait behind another are not among them."""
    cancelled: int = 0
    """Requests whose work had begun and was given up."""
    open: asyncio.Event = field(default_factory=asyncio.Event)
    """Work goes on only while it is set."""
    queue: asyncio.Lock = field(default_factory=asyncio.Lock)
    asked: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    """Released for every request that arrives, before it waits."""

    def __post_init__(self) -> None:
        self.open.set()

    @property
    def in_progress(self) -> int:
        return int(self.queue.locked())

    async def start(self) -> None:
        self.started += 1

    async def close(self) -> None:
        self.closed += 1

    async def score(self, request: ScoreRequest) -> Scores:
        self.asked.release()
        async with self.queue:
            self.scored.append(request)
            try:
                await self.open.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        if self.failure:
            raise self.failure
        known = set(WORD.findall(self.tokenizer.decode(request.prefix).partition("<|im_end|>")[2].lower()))
        options = [WORD.findall(self.tokenizer.decode(ids).lower()) for ids in request.continuations]
        odds = np.array([2.0 * len(known.intersection(option)) + ("fits" in option) for option in options])
        logprobs = np.stack([-np.logaddexp(0, -odds), -np.logaddexp(0, odds)], axis=1)
        tokens = len(request.prefix) + sum(map(len, request.continuations))
        return Scores(logprobs, np.ones(len(options)), tokens, len(request.prefix))

    async def choose(self, request: ChoiceRequest) -> Choice:
        raise NotImplementedError


class FirstPrefilter:
    """Keeps the first k candidates in their order."""

    catalogs: Catalogs | None = None
    methods = ("first",)

    def __init__(self, k: int) -> None:
        self._k = k

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def select(self, request: RouteRequest) -> Kept:
        kept = tuple(request.candidates[: request.k or self._k])
        method = "first" if len(kept) < len(request.candidates) else "none"
        return Kept(kept, [0.0] * len(kept), PrefilterReport(method, len(request.candidates), len(kept)))

    async def search(self, request: RouteRequest) -> Kept:
        deferred = tuple(candidate for candidate in request.candidates if candidate.id not in request.pinned)
        return await self.select(replace(request, candidates=deferred))

    async def pinned(self, request: RouteRequest) -> tuple[Candidate, ...]:
        return tuple(candidate for candidate in request.candidates if candidate.id in request.pinned)


class Server:
    """An application and what stands behind it."""

    def __init__(
        self, tokenizer: PromptTokenizer, config: Config, adapter: str | None = None, prefilter: Prefilter | None = None
    ) -> None:
        self.engine = WordEngine(tokenizer)
        self.router = Router(
            template=Template(tokenizer),
            engine=self.engine,
            prefilter=prefilter or FirstPrefilter(config.prefilter.k),
            base_model="base/words",
            adapter=adapter,
        )
        self.telemetry = Telemetry()
        self.app: FastAPI = create_app(config, self.router, self.telemetry)
        self.service: Service = self.app.state.service

    def client(self, **headers: str) -> httpx.AsyncClient:
        """Speaks to the application in process. Whatever the application raises is raised here."""
        transport = httpx.ASGITransport(self.app)
        return httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers)

    def metric(self, name: str, **labels: str) -> float:
        """A metric's value; 0 where it was never touched."""
        return self.telemetry.registry.get_sample_value(f"light_router_{name}", labels) or 0.0


@pytest.fixture
def config() -> Config:
    return Config()


@pytest.fixture
def adapter() -> str | None:
    return None


@pytest.fixture
def searching(tmp_path: Path) -> RankingPrefilter:
    """The real rankers over catalogues in SQLite, and an embedder of words."""
    embeddings = Embeddings(WordEmbedder(), 10**6)  # type: ignore[no-untyped-call]
    catalogs = Catalogs(Store(f"sqlite:///{tmp_path / 'catalog.db'}"), embeddings, "words", poll_s=60)
    config = PrefilterConfig()
    return RankingPrefilter(make_rankers(config, embeddings), config, catalogs)


@pytest.fixture
def prefilter() -> Prefilter | None:
    """None for one that keeps the first."""
    return None


@pytest.fixture
def unstarted(tokenizer: PromptTokenizer, config: Config, adapter: str | None, prefilter: Prefilter | None) -> Server:
    return Server(tokenizer, config, adapter, prefilter)


@pytest.fixture
async def server(unstarted: Server) -> AsyncIterator[Server]:
    """A server that is ready, and whose engine has forgotten the canary."""
    async with unstarted.app.router.lifespan_context(unstarted.app):
        await unstarted.service.readiness.started.wait()
        unstarted.engine.scored.clear()
        await unstarted.engine.asked.acquire()
        yield unstarted


@pytest.fixture
async def client(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    async with server.client() as client:
        yield client


@pytest.fixture
async def url(server: Server) -> AsyncIterator[str]:
    """Where a real uvicorn serves the same application, in this event loop."""
    async with serving(server.app, lifespan="off") as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def tools() -> list[dict[str, object]]:
    """Two OpenAI tools that share no word."""

    def function(name: str, description: str, argument: str) -> dict[str, object]:
        parameters = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
        return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}

    return [
        function("get_weather", "Weather forecast for a city", "city"),
        function("send_mail", "Send a letter by electronic mail", "recipient"),
    ]
