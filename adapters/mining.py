"""Ranks a catalogue for a conversation, as the prefilter does when it serves, for many cases at once.

Knows candidates and search texts. Does not know cases, gold or what a negative is.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from prompts import Candidate
from prompts.candidate import describe
from serving.prefilter.base import SearchText
from serving.prefilter.dense import mean_vector
from serving.prefilter.embedder import LocalEmbedder, batches
from serving.prefilter.fusion import WEIGHTS, score_fusion
from serving.prefilter.postings import Postings

Vectors = NDArray[np.float32]
Embed = Callable[[Sequence[str]], Vectors]

# Characters of a text that are embedded. The embedder would read twice as many, at twice the time, and what
# distinguishes a candidate or a conversation stands at the beginning.
EMBEDDED_CHARACTERS = 600
# Batches between two saves.
SAVE_EVERY = 64


def folded(text: str) -> str:
    """A name or description without case, white space and punctuation, for finding the same one twice."""
    return "".join(filter(str.isalnum, text.casefold()))


def cosines(vectors: Vectors, vector: Vectors) -> Vectors:
    """Of every row with one unit vector. In one thread, so that the rounding does not depend on their number."""
    product: Vectors = np.einsum("ij,j->i", vectors, vector)
    return product


class CachedEmbedder:
    """The prefilter's embedder, with every vector kept in one file.

    Embedding is the slow part of building cases: an interrupted run, or one with another recipe, embeds only what
    is new.

    Raises:
        ValueError: the file holds another model's vectors.
    """

    def __init__(self, model: str, cache: Path) -> None:
        self._model = model
        self._file = cache
        self._vectors: dict[bytes, NDArray[np.float16]] = {}
        if cache.exists():
            with np.load(cache) as stored:
                if str(stored["model"]) != model:
                    raise ValueError(f"{cache} holds vectors of {stored['model']}, not of {model}; name another file")
                rows = stored["vectors"]
                self._vectors = {key.tobytes(): row for key, row in zip(stored["keys"], rows, strict=True)}

    def __call__(self, texts: Sequence[str]) -> Vectors:
        """Unit vectors, float32 (texts, dimensions)."""
        texts = [text[:EMBEDDED_CHARACTERS] for text in texts]
        keys = [hashlib.blake2b(text.encode(), digest_size=16).digest() for text in texts]
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._vectors}
        if missing:
            asyncio.run(self._fill(missing))
        return np.stack([self._vectors[key] for key in keys]).astype(np.float32)

    async def _fill(self, missing: dict[bytes, str]) -> None:
        embedder = LocalEmbedder(self._model)
        await embedder.start()
        for number, batch in enumerate(batches(dict(sorted(missing.items())))):
            vectors = await embedder.embed(list(batch.values()))
            self._vectors.update(zip(batch, vectors.astype(np.float16), strict=True))
            if number % SAVE_EVERY == 0:
                self._save()
        self._save()
        await embedder.close()

    def _save(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        partial = self._file.with_suffix(".partial.npz")
        keys = np.frombuffer(b"".join(self._vectors), dtype=np.uint8).reshape(-1, 16)
        np.savez(partial, model=self._model, keys=keys, vectors=np.stack(list(self._vectors.values())))
        partial.replace(self._file)


class CatalogueIndex:
    """A catalogue's candidates with their vectors and postings.

    Positions are places in `candidates`; every array here is indexed by them. `names`, `descriptions` and `servers`
    hold numbers that are equal where the folded texts are.
    """

    def __init__(self, candidates: Sequence[Candidate], embed: Embed) -> None:
        self.candidates = tuple(candidates)
        self.position = {candidate.id: position for position, candidate in enumerate(self.candidates)}
        self.vectors = embed([describe(candidate) for candidate in self.candidates])
        self.names, _ = _coded(folded(candidate.name) for candidate in self.candidates)
        self.descriptions, _ = _coded(folded(candidate.description) for candidate in self.candidates)
        self.servers, self.server_codes = _coded(candidate.server for candidate in self.candidates)
        self._postings = Postings()
        self._postings.add(map(describe, self.candidates))

    def scores(self, text: SearchText, vector: Vectors, pool: NDArray[np.intp]) -> NDArray[np.float64]:
        """Of each of `pool`: BM25 and cosine, fused by `serving.prefilter.fusion`."""
        scores: list[NDArray[np.floating]] = [
            self._postings.scores(text.parts)[pool],
            cosines(self.vectors[pool], vector),
        ]
        return score_fusion(scores, [WEIGHTS["bm25"], 1.0])

    def ranking(self, text: SearchText, vector: Vectors, pool: NDArray[np.intp]) -> NDArray[np.intp]:
        """Positions of `pool`, best first."""
        return pool[np.argsort(-self.scores(text, vector, pool), kind="stable")]


def search_vectors(texts: Sequence[SearchText], embed: Embed) -> list[Vectors]:
    """The unit vector of each search text, as the prefilter's dense ranker makes it."""
    voices = [voice for text in texts for voice, _ in text.voices]
    rows = iter(embed(voices) if voices else ())
    return [mean_vector(text, np.stack([next(rows) for _ in text.voices])) for text in texts]


def _coded(texts: Iterable[str]) -> tuple[NDArray[np.intp], dict[str, int]]:
    """A number for each text, equal for equal texts, and the number of each."""
    codes: dict[str, int] = {}
    return np.array([codes.setdefault(text, len(codes)) for text in texts], dtype=np.intp), codes
