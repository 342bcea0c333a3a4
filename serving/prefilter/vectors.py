"""Cosine similarity over many vectors that come one by one.

Knows arrays. Does not know what the vectors stand for. Every vector is held twice: in 8 bits for a look at all of
them, and in float16 for the exact order of the best.
"""

from __future__ import annotations

import numpy as np
import simsimd
from numpy.typing import NDArray

# Rows that are scored exactly: all where there are no more, else the best by 8 bits. Among 20,000 tools the ten best
# were always among them.
EXACT = 256


class Vectors:
    """Unit vectors in rows, numbered in the order in which they were added."""

    def __init__(self, dimensions: int) -> None:
        self._size = 0
        self._exact = np.zeros((0, dimensions), dtype=np.float16)
        self._coarse = np.zeros((0, dimensions), dtype=np.int8)
        self._scales = np.zeros(0, dtype=np.float32)

    def __len__(self) -> int:
        return self._size

    def add(self, vectors: NDArray[np.floating]) -> None:
        """Append rows (vectors, dimensions) of unit length."""
        end = self._size + len(vectors)
        if end > len(self._exact):
            room = max(end, len(self._exact) * 5 // 4)
            self._exact, self._coarse, self._scales = (
                np.concatenate([held[: self._size], np.zeros((room - self._size, *held.shape[1:]), dtype=held.dtype)])
                for held in (self._exact, self._coarse, self._scales)
            )
        rows = slice(self._size, end)
        self._exact[rows] = vectors
        self._coarse[rows], self._scales[rows] = _coarse(np.asarray(vectors, dtype=np.float32))
        self._size = end

    def scores(self, query: NDArray[np.float32]) -> NDArray[np.float32]:
        """Cosines with a unit vector (dimensions,): array (rows,).

        Exact for the best EXACT rows; those of the others are off by about a hundredth.
        """
        size = self._size
        if not size:  # of no vector, the dimensions need not be known
            return np.zeros(0, dtype=np.float32)
        if size <= EXACT:
            return self._exactly(np.arange(size), query)
        coarse, scale = _coarse(query[None])
        products = np.asarray(simsimd.cdist(coarse, self._coarse[:size], metric="inner"), dtype=np.float32)[0]
        scores: NDArray[np.float32] = products * self._scales[:size] * scale[0]
        best = np.argpartition(-scores, EXACT)[:EXACT]
        scores[best] = self._exactly(best, query)
        return scores

    def _exactly(self, rows: NDArray[np.intp], query: NDArray[np.float32]) -> NDArray[np.float32]:
        # Not `@`: for so little work, waking the threads of BLAS costs twenty times the work.
        cosines: NDArray[np.float32] = np.einsum("rd,d->r", self._exact[rows].astype(np.float32), query)
        return cosines


def _coarse(vectors: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Rows in 8 bits, and what each must be multiplied by."""
    scales = np.maximum(np.abs(vectors).max(axis=1, initial=0), np.finfo(np.float32).tiny) / 127
    return np.round(vectors / scales[:, None]).astype(np.int8), scales.astype(np.float32)
