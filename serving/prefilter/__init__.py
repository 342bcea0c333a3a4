"""Bounds a request's candidates before the model reads them. `base` is the policy; the other files rank."""

from __future__ import annotations

from collections.abc import Callable

from serving.config import PrefilterConfig
from serving.prefilter.base import Kept, Prefilter, Ranker, RankingPrefilter
from serving.prefilter.dense import DenseRanker, LocalEmbedder
from serving.prefilter.fusion import FusedRanker
from serving.prefilter.lexical import BM25Ranker

__all__ = ["Kept", "Prefilter", "make_prefilter"]


def _bm25(config: PrefilterConfig) -> Ranker:
    return BM25Ranker()


def _dense(config: PrefilterConfig) -> Ranker:
    return DenseRanker(LocalEmbedder(config.embedder, config.threads), cache_bytes=config.cache_mb * 2**20)


def _fused(config: PrefilterConfig) -> Ranker:
    return FusedRanker(_dense(config), _bm25(config))  # BM25 counts while the embedder's thread works


# A method of PrefilterConfig is a line here.
RANKERS: dict[str, Callable[[PrefilterConfig], Ranker]] = {"bm25": _bm25, "dense": _dense, "fused": _fused}


def make_prefilter(config: PrefilterConfig) -> Prefilter:
    """The profile's prefilter, not started."""
    return RankingPrefilter(RANKERS[config.method](config), config)
