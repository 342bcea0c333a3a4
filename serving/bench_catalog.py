"""Measures a catalogue of many candidates: build, restart, memory, and the time of every way to search it.

Knows catalogues, prefilter methods and two baselines: rank_bm25, and every cosine in float32 by numpy. The catalogue
is loaded and searched in a process of its own (`python -m serving.bench_catalog`), so that its memory is its own.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from prompts import Candidate, Message
from prompts.candidate import describe
from serving.bench import Numbers, percentile, tools
from serving.catalog.catalogs import Catalogs
from serving.catalog.entry import Entry
from serving.catalog.shapes import candidates_from
from serving.catalog.sources.files import read_items
from serving.catalog.store import Store
from serving.config import PrefilterConfig
from serving.prefilter import make_rankers
from serving.prefilter.base import SearchText
from serving.prefilter.embedder import Embeddings, LocalEmbedder
from serving.prefilter.postings import Tokenizer
from serving.prefilter.selection import RankingPrefilter
from serving.types import RouteRequest

CATALOG = "bench"
QUERIES = 100
# Questions that the slow baselines answer, and candidates that they hold at most.
FEW = 5


def candidates(count: int, file: Path | None, seed: int = 0) -> list[Candidate]:
    """`count` candidates: those of a file of catalogue lines, or made up, and variants of them where they are fewer.

    A variant has another name, and a tenth of its description's words left out.
    """
    if file is None:
        made = list(candidates_from(tools(min(count, 20_000), seed)))
    else:
        made = list(candidates_from([item for _, item in read_items(file)], str(file)))[:count]
    choose, originals = random.Random(seed), list(made)  # noqa: S311  (test load, not a secret)
    while len(made) < count:
        like, number = choose.choice(originals), len(made)
        words = like.description.split()
        kept = [word for word in words if choose.random() > 0.1] or words
        made.append(Candidate(f"{like.id}~{number}", f"{like.name}_{number}", " ".join(kept), like.type, like.server,
                              like.input_schema))  # fmt: skip
    return made


def queries(known: Sequence[Candidate], seed: int = 1) -> list[str]:
    """Each a dozen words of a candidate's description, shuffled."""
    choose = random.Random(seed)  # noqa: S311
    described = [candidate.description.split() for candidate in known if len(candidate.description.split()) > 3]
    return [" ".join(choose.sample(words, min(12, len(words)))) for words in choose.choices(described, k=QUERIES)]


def _replica(database: str, embedder: str) -> tuple[Catalogs, RankingPrefilter, LocalEmbedder]:
    local = LocalEmbedder(embedder)
    embeddings = Embeddings(local, 2**20)
    config = PrefilterConfig(embedder=embedder)
    catalogs = Catalogs(Store(database), embeddings, Path(embedder).name)
    return catalogs, RankingPrefilter(make_rankers(config, embeddings), config, catalogs), local


async def build(database: str, embedder: str, known: Sequence[Candidate]) -> Numbers:
    """Write the catalogue and embed what the store has no vectors of; seconds."""
    catalogs, prefilter, _ = _replica(database, embedder)
    await prefilter.start()
    started = time.perf_counter()
    await catalogs.store.upsert(CATALOG, [Entry(candidate) for candidate in known])
    written = time.perf_counter()
    await catalogs.embedded()
    embedded = time.perf_counter()
    await prefilter.close()
    return {"catalogue_write_s": written - started, "catalogue_embed_s": embedded - written}


async def search(database: str, embedder: str, texts: Sequence[str]) -> Numbers:
    """Load the catalogue and search it by every method; seconds, milliseconds, MiB."""
    catalogs, prefilter, _ = _replica(database, embedder)
    for ranker in prefilter.rankers.values():
        await ranker.start()
    started = time.perf_counter()
    await catalogs.start()
    index = await catalogs.get(CATALOG)
    numbers: Numbers = {"catalogue_build_s": time.perf_counter() - started, "catalogue_candidates": float(len(index))}
    patterns = [max(re.findall(r"\w+", text), key=len, default="a") for text in texts]
    for method in prefilter.rankers:
        asked = patterns if method == "regex" else texts
        await _select(prefilter, asked[0], method)  # what is made once: a pattern's lines, a graph
        own: list[float] = []
        whole: list[float] = []
        for text in asked:
            before = time.perf_counter()
            embedding_ms = await _select(prefilter, text, method)
            whole.append((time.perf_counter() - before) * 1e3)
            own.append(whole[-1] - embedding_ms)
        numbers[f"prefilter_{method}_ms_p50"] = statistics.median(own)
        numbers[f"prefilter_{method}_ms_p99"] = percentile(own, 0.99)
        if method in {"dense", "fused"}:
            numbers[f"prefilter_{method}_with_embedding_ms_p50"] = statistics.median(whole)
    numbers["catalogue_rss_mb"] = _resident_mb()
    one = Candidate("one-more", "calibrate_telescope", "Calibrates the telescope of an observatory")
    before = time.perf_counter()
    await catalogs.store.upsert(CATALOG, [Entry(one)])
    kept = await prefilter.select(_request("calibrate the telescope", "bm25"))
    numbers["catalogue_add_one_ms"] = (time.perf_counter() - before) * 1e3
    if kept.candidates[0].id != one.id:
        raise RuntimeError("a candidate just added was not found")
    await catalogs.store.remove(CATALOG, [one.id])
    await prefilter.close()
    return numbers


def _request(text: str, method: str) -> RouteRequest:
    return RouteRequest((Message("user", text),), catalog=CATALOG, methods=(method,))


async def _select(prefilter: RankingPrefilter, text: str, method: str) -> float:
    return (await prefilter.select(_request(text, method))).embedding_ms


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096 / 2**20


async def against_baselines(database: str, embedder: str, known: Sequence[Candidate], texts: Sequence[str]) -> Numbers:
    """rank_bm25 and numpy beside ours, in one process, over the same candidates and questions."""
    from rank_bm25 import BM25Okapi  # noqa: PLC0415  (the dev extra)

    catalogs, prefilter, local = _replica(database, embedder)
    await prefilter.start()
    index = await catalogs.get(CATALOG)
    tokenize = Tokenizer()
    reference = BM25Okapi([tokenize(describe(candidate)) for candidate in known])
    postings = await index.postings("both")
    ours = _median_ms(texts, lambda text: postings.scores([(text, 1.0)]))
    theirs = _median_ms(texts[:FEW], lambda text: reference.get_scores(tokenize(text)))
    hashes = [candidate.content_hash for candidate in known]
    vectors = await catalogs.store.embeddings(Path(embedder).name, hashes)
    exact = np.stack([vectors[key] for key in hashes]).astype(np.float32)
    dense = prefilter.rankers["dense"]
    found: list[float] = []
    brute: list[float] = []
    for text in texts[: 4 * FEW]:
        [query] = await local.embed([text])
        before = time.perf_counter()
        cosines = exact @ query
        brute.append((time.perf_counter() - before) * 1e3)
        best = {known[row].id for row in np.argsort(-cosines)[:10]}
        ranking = await dense.rank(SearchText(((text, 1.0),)), index)
        ten = {index.rows[row].id for row in np.argsort(-ranking.scores)[:10]}
        found.append(len(best & ten) / len(best))
    await prefilter.close()
    return {
        "prefilter_rank_bm25_ms_p50": theirs,
        "prefilter_bm25_vs_rank_bm25": theirs / ours,
        "prefilter_brute_force_cosine_ms_p50": statistics.median(brute),
        "prefilter_dense_recall10_against_exact": statistics.mean(found),
    }


def _median_ms(texts: Sequence[str], ask: Callable[[str], object]) -> float:
    times = []
    for text in texts:
        before = time.perf_counter()
        ask(text)
        times.append((time.perf_counter() - before) * 1e3)
    return statistics.median(times)


async def measure(count: int, embedder: str, file: Path | None, folder: Path) -> Numbers:
    """All numbers of one run. The database stays in `folder`, so that a second run embeds nothing."""
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    database = f"sqlite:///{folder / f'bench-{count}.db'}"
    known = await asyncio.to_thread(candidates, count, file)
    texts = queries(known)
    numbers = await build(database, embedder, known)
    child = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "serving.bench_catalog", database, embedder],
        input=json.dumps(texts), capture_output=True, text=True, check=True,
    )  # fmt: skip
    numbers |= json.loads(child.stdout)
    numbers |= await against_baselines(database, embedder, known, texts)
    return {key: round(value, 4) for key, value in numbers.items()}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(search(sys.argv[1], sys.argv[2], json.load(sys.stdin)))))
