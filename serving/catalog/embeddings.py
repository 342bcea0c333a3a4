"""Vectors of a catalogue's texts: read from the store, made and stored where they are missing.

Knows the store and an embedder. Does not know what the vectors are for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from prompts.candidate import describe
from serving.prefilter.embedder import Embedder, batches
from serving.types import Candidate


class EmbeddingStore(Protocol):
    """The part of the store that keeps vectors."""

    async def embeddings(self, embedder: str, hashes: Sequence[str]) -> dict[str, NDArray[np.float16]]:
        """Those that are there, by hash."""
        ...

    async def put_embeddings(self, embedder: str, vectors: Mapping[str, NDArray[np.float16]]) -> None:
        """Keep these."""
        ...


def text_key(text: str) -> str:
    """The key of a text's vector, where the text is no candidate's specification."""
    return hashlib.blake2b(b"text " + text.encode(), digest_size=16).hexdigest()


class TextVectors:
    """Unit vectors as an embedder makes them, kept in a store.

    Args:
        name: the embedder's, under which the store keeps what it made.
        advance: told how many more vectors are there.
    """

    def __init__(
        self,
        store: EmbeddingStore,
        embedder: Embedder,
        name: str,
        advance: Callable[[int], object] = lambda number: None,
    ) -> None:
        self._store = store
        self._embedder = embedder
        self._name = name
        self._advance = advance

    async def of_candidates(self, candidates: Sequence[Candidate]) -> NDArray[np.float32]:
        """Array (candidates, dimensions) of what a model reads of each."""
        shown = {candidate.content_hash: candidate for candidate in candidates}
        return await self._of(
            [candidate.content_hash for candidate in candidates], {key: describe(shown[key]) for key in shown}
        )

    async def of_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Array (texts, dimensions)."""
        keys = list(map(text_key, texts))
        return await self._of(keys, dict(zip(keys, texts, strict=True)))

    async def _of(self, keys: Sequence[str], texts: Mapping[str, str]) -> NDArray[np.float32]:
        vectors = dict(await self._store.embeddings(self._name, list(texts)))
        self._advance(len(vectors))
        for batch in batches({key: texts[key] for key in sorted(texts.keys() - vectors.keys())}):
            made = await self._embedder.embed(list(batch.values()))
            fresh = dict(zip(batch, made.astype(np.float16), strict=True))
            await self._store.put_embeddings(self._name, fresh)
            vectors |= fresh
            self._advance(len(batch))
        return np.array([vectors[key] for key in keys], np.float32) if keys else np.zeros((0, 0), np.float32)
