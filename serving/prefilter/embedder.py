"""Texts to vectors: the embedder that runs in process, one behind HTTP, and what is remembered of either.

Knows texts only. torch and sentence-transformers (the extra `cpu`) are imported when the local embedder starts, not
before.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from prompts.tokenizer import CHARACTERS_PER_TOKEN
from serving.cache import LRU
from serving.types import EngineUnavailableError

K = TypeVar("K")

# Tokens of a text that are read. all-MiniLM-L6-v2 allows 256 and was trained on 128: reading 256 found no more of the
# right candidates, in half as much time again.
READ_TOKENS = 128
# Texts embedded in one call. Between two calls the queries of other requests have their turn, and a cancelled
# request stops.
BATCH = 32
# Bytes that a remembered vector costs beside its numbers: array, key and place in the cache.
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


def batches(texts: Mapping[K, str]) -> Iterator[dict[K, str]]:
    """The texts, BATCH at a time, those of like length together: a batch is padded to its longest."""
    ordered = sorted(texts, key=lambda key: len(texts[key]))
    for start in range(0, len(ordered), BATCH):
        yield {key: texts[key] for key in ordered[start : start + BATCH]}


class Embeddings:
    """An embedder that remembers the vectors of texts.

    Args:
        embedder: what makes the vectors.
        cache_bytes: memory for them.
    """

    def __init__(self, embedder: Embedder, cache_bytes: int) -> None:
        self.embedder = embedder
        self._vectors: LRU[bytes, NDArray[np.float16]] = LRU(cache_bytes, lambda row: row.nbytes + VECTOR_OVERHEAD)
        self._embedding = asyncio.Lock()
        self._salt = b""

    def salted(self, salt: str) -> Embeddings:
        """The same embedder and memory, in which only what was embedded under the same salt is found again."""
        view = copy(self)
        view._salt = hashlib.blake2b(salt.encode(), digest_size=32).digest() if salt else b""
        return view

    async def of(self, texts: Sequence[str]) -> NDArray[np.float16]:
        """Array (texts, dimensions) of unit vectors, (0, 0) of none; only texts not seen before are embedded."""
        keys = [hashlib.blake2b(text.encode(), digest_size=16, key=self._salt).digest() for text in texts]
        vectors = self._vectors.get_many(keys)
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in vectors}
        for batch in batches(missing):
            vectors |= await self._embed(batch)
        return np.stack([vectors[key] for key in keys]) if keys else np.zeros((0, 0), dtype=np.float16)

    async def _embed(self, texts: dict[bytes, str]) -> dict[bytes, NDArray[np.float16]]:
        """One request at a time, so that the same texts are not embedded twice in parallel."""
        async with self._embedding:
            found = self._vectors.get_many(texts)
            missing = [key for key in texts if key not in found]
            if missing:
                made = await self.embedder.embed([texts[key] for key in missing])
                for key, row in zip(missing, made.astype(np.float16), strict=True):
                    found[key] = row.copy()  # a row of its own, which does not hold the whole batch
                    self._vectors.put(key, found[key])
            return found
