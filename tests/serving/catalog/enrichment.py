"""What tests of enrichment share, and a process that enriches: `python -m tests.serving.catalog.enrichment DIR URL`."""

from __future__ import annotations

import asyncio
import hashlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prompts import Candidate
from serving.catalog.enrich import Options, enrich
from serving.catalog.enrich_report import Report
from serving.catalog.entry import Entry
from serving.catalog.store import Store
from serving.llm import LLM, Journal

WORD = re.compile(r"\w+")
CATALOG = "tools"


class WordEmbedder:
    """Directions of words, added up: texts are as similar as their words are the same. Stands in for a model."""

    async def start(self) -> None:
        pass

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        rows = [sum((_direction(word) for word in WORD.findall(text.lower())), np.full(64, 1e-6)) for text in texts]
        return np.array([row / np.linalg.norm(row) for row in rows], np.float32)

    async def close(self) -> None:
        pass


def _direction(word: str) -> NDArray[Any]:
    seed = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest())
    return np.random.default_rng(seed).normal(size=64)


def candidates(number: int = 12) -> list[Candidate]:
    """Tools of three servers; every word of a description is its own."""
    made = []
    for i in range(number):
        letters = chr(97 + i % 26) + chr(97 + i // 26)
        own = " ".join(f"{letters}{word}" for word in ("alpha", "bravo", "carol", "delta", "erica", "frank"))
        made.append(Candidate(f"{i:03}", f"tool {letters}", own, server=f"server{i % 3}"))
    return made


async def opened(folder: Path) -> Store:
    store = Store(f"sqlite:///{folder / 'catalog.db'}")
    await store.start()
    return store


async def filled(folder: Path, pool: Sequence[Candidate]) -> Store:
    store = await opened(folder)
    await store.upsert(CATALOG, [Entry(candidate) for candidate in pool])
    return store


async def enriched(store: Store, url: str, journal: Path, options: Options | None = None, **client: Any) -> Report:
    llm = LLM("canned", url, journal=Journal(journal), **{"concurrency": 2, "retries": 0, **client})
    try:
        return await enrich(store, CATALOG, llm, WordEmbedder(), "words", options)
    finally:
        await llm.close()


async def _main(folder: Path, url: str) -> None:
    store = await opened(folder)
    await enriched(store, url, folder / "journal", Options(chains=True))
    await store.close()


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1]), sys.argv[2]))
