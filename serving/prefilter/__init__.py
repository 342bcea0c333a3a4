"""Bounds what may be chosen before the model reads it. `selection` is the policy; the other files rank, or hold what is
ranked."""

from __future__ import annotations

from serving.config import PrefilterConfig
from serving.prefilter.base import Kept, Prefilter, Ranker
from serving.prefilter.dense import DenseRanker
from serving.prefilter.embedder import Embeddings, LocalEmbedder
from serving.prefilter.fusion import FusedRanker
from serving.prefilter.graph import GraphRanker
from serving.prefilter.lexical import BM25Ranker
from serving.prefilter.pattern import RegexRanker

__all__ = ["Kept", "Prefilter", "make_embeddings", "make_rankers"]


def make_embeddings(config: PrefilterConfig) -> Embeddings | None:
    """The profile's embedder, not started; None where its method needs none."""
    if config.method not in {"dense", "fused", "graph"}:
        return None
    return Embeddings(LocalEmbedder(config.embedder, config.threads), config.cache_mb * 2**20)


def make_rankers(config: PrefilterConfig, embeddings: Embeddings | None) -> dict[str, Ranker]:
    """Every method that the profile has the means for, by name, not started. A method is a line here."""
    rankers: dict[str, Ranker] = {"bm25": BM25Ranker(), "regex": RegexRanker()}
    if embeddings is not None:
        rankers["dense"] = DenseRanker(embeddings)
        rankers["graph"] = GraphRanker(embeddings, config.graph)
        rankers["fused"] = FusedRanker(rankers["dense"], rankers["bm25"])  # BM25 counts while the embedder works
    return rankers
