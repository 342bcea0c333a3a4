"""Ranks a catalogue for a conversation, as the prefilter does when it serves, for many cases at once.

Knows candidates and search texts. Does not know cases, gold or what a negative is.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
from numpy.typing import NDArray

from prompts import Candidate, Message
from prompts.candidate import describe
from prompts.question import query_position

Vectors = NDArray[np.float32]
Embed = Callable[[Sequence[str]], Vectors]

# Reciprocal rank fusion's usual constant (Cormack, Clarke and Büttcher 2009).
RRF_K = 60
# Characters of a text that are embedded: the embedder reads 256 tokens, and most of them are in here.
EMBEDDED_CHARACTERS = 600
# Characters of one message that are searched for.
SEARCHED_CHARACTERS = 300
# Vectors computed between two saves.
SAVE_EVERY = 2048
# A word: capitals that end before a capitalised word, a word, or digits. `[^\W\d_]` is a letter of any script.
_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[^\W\d_A-Z]+|[A-Z]+|\d+")


def search_text(messages: Sequence[Message], history_messages: int = 4) -> str:
    """What a ranker searches for: the query, then observation and history from the newest message to the oldest.

    An embedder reads the beginning of a text, so what decides most stands first.
    """
    query = query_position(messages)
    first = len(messages) - 1 - history_messages
    rest = [messages[i].content for i in range(len(messages) - 1, max(first, 0) - 1, -1) if i != query]
    parts = rest if query is None else [messages[query].content, *rest]
    return "\n".join(part[:SEARCHED_CHARACTERS] for part in parts if part)


def words(text: str) -> list[str]:
    """Lower-case words; names are split at case changes, digits and punctuation."""
    return [word.lower() for word in _WORD.findall(text)]


def folded(text: str) -> str:
    """A name or description without case, white space and punctuation, for finding the same one twice."""
    return "".join(words(text))


def cosines(vectors: Vectors, vector: Vectors) -> Vectors:
    """Of every row with one unit vector. In one thread, so that the rounding does not depend on their number."""
    product: Vectors = np.einsum("ij,j->i", vectors, vector)
    return product


class CachedEmbedder:
    """all-MiniLM-L6-v2 or another sentence-transformers model, with every vector kept in one file.

    Mining is the slow part of building cases: an interrupted run, or one with another recipe, embeds only what
    is new.
    """

    def __init__(self, model: str | Path, cache: Path) -> None:
        self._model_path = str(model)
        self._model: Any = None
        self._file = cache
        self._vectors: dict[bytes, NDArray[np.float16]] = {}
        if cache.exists():
            with np.load(cache) as stored:
                rows = stored["vectors"]
                self._vectors = {key.tobytes(): row for key, row in zip(stored["keys"], rows, strict=True)}

    def __call__(self, texts: Sequence[str]) -> Vectors:
        """Unit vectors, float32 (texts, dimensions)."""
        texts = [text[:EMBEDDED_CHARACTERS] for text in texts]
        keys = [hashlib.blake2b(text.encode(), digest_size=16).digest() for text in texts]
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._vectors}
        # Longest last, so that a batch holds texts of one length whatever the call it came from.
        waiting = sorted(missing.items(), key=lambda item: (len(item[1]), item[1]))
        for start in range(0, len(waiting), SAVE_EVERY):
            batch = waiting[start : start + SAVE_EVERY]
            vectors = self._encode([text for _, text in batch]).astype(np.float16)
            self._vectors.update(zip((key for key, _ in batch), vectors, strict=True))
            self._save()
        return np.stack([self._vectors[key] for key in keys]).astype(np.float32)

    def _encode(self, texts: list[str]) -> Vectors:
        if self._model is None:
            from sentence_transformers import SentenceTransformer  # noqa: PLC0415  (seconds to import)

            self._model = SentenceTransformer(self._model_path, device="cpu")
        return np.asarray(self._model.encode(texts, normalize_embeddings=True), dtype=np.float32)

    def _save(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        partial = self._file.with_suffix(".partial.npz")
        keys = np.frombuffer(b"".join(self._vectors), dtype=np.uint8).reshape(-1, 16)
        np.savez(partial, keys=keys, vectors=np.stack(list(self._vectors.values())))
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
        self._postings = bm25s.BM25()
        self._postings.index([words(describe(candidate)) for candidate in self.candidates], show_progress=False)

    def ranking(self, text: str, vector: Vectors, pool: NDArray[np.intp]) -> NDArray[np.intp]:
        """Positions of `pool`, best first: BM25 and cosine, fused by reciprocal rank."""
        dense = cosines(self.vectors[pool], vector)
        lexical = self._postings.get_scores(words(text))[pool]
        fused = sum(1.0 / (RRF_K + 1 + np.argsort(np.argsort(-scores, kind="stable"))) for scores in (dense, lexical))
        return pool[np.argsort(-np.asarray(fused), kind="stable")]


def _coded(texts: Iterable[str]) -> tuple[NDArray[np.intp], dict[str, int]]:
    """A number for each text, equal for equal texts, and the number of each."""
    codes: dict[str, int] = {}
    return np.array([codes.setdefault(text, len(codes)) for text in texts], dtype=np.intp), codes
