"""Ranking by the similarity of embeddings, and the embedder that runs in process.

Knows pools and search texts. An embedder knows texts only; another one (an HTTP endpoint) fits behind `Embedder`.
torch and sentence-transformers (the extra `cpu`) are imported when the local embedder starts, not before.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from prompts.candidate import describe
from prompts.tokenizer import CHARACTERS_PER_TOKEN
from serving.cache import LRU
from serving.prefilter.base import Pool, Ranking, SearchText
from serving.types import EngineUnavailableError

Vector = NDArray[np.float16]

# Tokens of a text that are read. all-MiniLM-L6-v2 allows 256 and was trained on 128: reading 256 found no more of the
# right candidates, in half as much time again.
READ_TOKENS = 128
# Candidates embedded in one call. Between two calls the queries of other requests have their turn, and a cancelled
# request stops.
BATCH = 32
# Bytes that a cached vector costs beside its numbers: array, key and place in the cache.
VECTOR_OVERHEAD = 320


class Embedder(Protocol):
    """Turns texts into vectors."""

    async def start(self) -> None:
        """Load and warm up. Raises EngineUnavailableError where that fails."""
        ...

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Array (texts, dimensions) of unit length. A text longer than the embedder's context is cut at its end."""
        ...

    async def close(self) -> None:
        """Give back what is held."""
        ...


class LocalEmbedder:
    """A sentence-transformers model on the CPU, in one thread of its own, where calls wait for each other.

    Args:
        path: the model's folder, or its name on a hub.
        threads: torch threads of one call; None for torch's default.
    """

    def __init__(self, path: str, threads: int | None = None) -> None:
        self._path = path
        self._threads = threads
        self._worker: ThreadPoolExecutor | None = None
        self._model: Any = None

    async def start(self) -> None:
        """See `Embedder.start`."""
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="embedder")
        try:
            await self._run(self._load)
            await self.embed(["warm up", "warm up " * 200])
        except Exception as error:
            raise EngineUnavailableError(
                f"cannot load the embedder {self._path!r}: {error}. `make setup` puts it there; "
                "prefilter.embedder names another folder, and prefilter.method: bm25 needs none"
            ) from error

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See `Embedder.embed`."""
        vectors: NDArray[np.float32] = await self._run(self._encode, texts)
        return vectors

    async def close(self) -> None:
        """Stop after the running call; whoever waits behind it is cancelled."""
        if self._worker is not None:
            self._worker.shutdown(wait=False, cancel_futures=True)
        self._worker = self._model = None

    async def _run(self, work: Any, *args: Any) -> Any:
        if self._worker is None:
            raise EngineUnavailableError("the embedder is not started")
        return await asyncio.get_running_loop().run_in_executor(self._worker, work, *args)

    def _load(self) -> None:
        # As the engine does: torch threads that spin while they wait steal the event loop's core.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        import torch  # noqa: PLC0415
        from sentence_transformers import SentenceTransformer  # noqa: PLC0415

        if self._threads is not None:
            # This binds the calling thread, and becomes the default of threads that start later: put that back.
            default = torch.get_num_threads()
            torch.set_num_threads(self._threads)
            restore = threading.Thread(target=torch.set_num_threads, args=(default,))
            restore.start()
            restore.join()
        # Half the time of float32 where the processor multiplies bfloat16 itself, many times it where it does not.
        fast = torch.cpu.get_capabilities().get("avx512_bf16", False)
        self._model = SentenceTransformer(
            self._path, device="cpu", model_kwargs={"dtype": torch.bfloat16 if fast else torch.float32}
        )
        self._model.max_seq_length = min(self._model.max_seq_length or READ_TOKENS, READ_TOKENS)

    def _encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        # A text of megabytes costs no more to tokenise than what the model reads of it.
        most = READ_TOKENS * CHARACTERS_PER_TOKEN
        vectors: NDArray[np.float32] = self._model.encode(
            [text[:most] for text in texts], batch_size=len(texts), convert_to_numpy=True, show_progress_bar=False
        ).astype(np.float32)
        # The model's own normalisation rounds to bfloat16.
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float32).tiny)
        return vectors


class DenseRanker:
    """Ranks by cosine similarity. A candidate's vector is kept by its content: it is embedded once.

    Args:
        embedder: what makes the vectors.
        cache_bytes: memory for candidates' vectors: half for those of each candidate, half for those of whole pools.
    """

    name = "dense"

    def __init__(self, embedder: Embedder, cache_bytes: int) -> None:
        self._embedder = embedder
        self._vectors: LRU[str, Vector] = LRU(cache_bytes // 2, lambda vector: vector.nbytes + VECTOR_OVERHEAD)
        self._pools: LRU[tuple[str, ...], NDArray[np.float32]] = LRU(cache_bytes // 2, lambda rows: rows.nbytes)
        self._embedding = asyncio.Lock()

    async def start(self) -> None:
        """Start the embedder."""
        await self._embedder.start()

    async def close(self) -> None:
        """Close the embedder."""
        await self._embedder.close()

    async def rank(self, text: SearchText, pool: Pool) -> Ranking:
        """See `Ranker.rank`."""
        started = time.perf_counter()
        [query] = await self._embedder.embed([text.text])
        rows = self._pools.get(pool.digests)
        if rows is None:
            rows = await self._rows(pool)
            self._pools.put(pool.digests, rows)
        embedding_ms = (time.perf_counter() - started) * 1e3
        # Not `@`: for so little work, waking the threads of BLAS costs twenty times the work.
        return Ranking(np.einsum("cd,d->c", rows, query), embedding_ms)

    async def _rows(self, pool: Pool) -> NDArray[np.float32]:
        """The vectors of a pool's candidates (candidates, dimensions)."""
        vectors = self._vectors.get_many(pool.digests)
        pairs = zip(pool.digests, pool.candidates, strict=True)
        missing = {digest: describe(candidate) for digest, candidate in pairs if digest not in vectors}
        # Texts of like length together: a batch is padded to its longest.
        ordered = sorted(missing, key=lambda digest: len(missing[digest]))
        for start in range(0, len(ordered), BATCH):
            vectors |= await self._embed({digest: missing[digest] for digest in ordered[start : start + BATCH]})
        rows = np.concatenate([vectors[digest] for digest in pool.digests])
        return rows.reshape(len(pool.digests), -1).astype(np.float32)

    async def _embed(self, texts: dict[str, str]) -> dict[str, Vector]:
        """Vectors by digest. One request at a time, so that the same candidates are not embedded twice in parallel."""
        async with self._embedding:
            found = self._vectors.get_many(texts)
            missing = [digest for digest in texts if digest not in found]
            if missing:
                made = await self._embedder.embed([texts[digest] for digest in missing])
                for digest, row in zip(missing, made.astype(np.float16), strict=True):
                    found[digest] = row.copy()  # a row of its own, which does not hold the whole batch
                    self._vectors.put(digest, found[digest])
            return found
