"""Bounds what may be chosen before the model reads it. `selection` is the policy; the other files rank, or hold what is
ranked."""

from __future__ import annotations

from pydantic import SecretStr

from serving.config import PrefilterConfig
from serving.prefilter.base import Kept, Prefilter, Ranker
from serving.prefilter.dense import DenseRanker
from serving.prefilter.embedder import Embedder, Embeddings, LocalEmbedder
from serving.prefilter.fusion import FusedRanker
from serving.prefilter.graph import GraphRanker
from serving.prefilter.lexical import BM25Ranker
from serving.prefilter.pattern import RegexRanker
from serving.prefilter.rerank import CrossEncoder, LocalCrossEncoder, RerankedRanker

__all__ = ["Kept", "Prefilter", "make_embeddings", "make_rankers"]


def make_embeddings(config: PrefilterConfig) -> Embeddings | None:
    """The profile's embedder, not started; None where its method needs none."""
    if config.method in {"bm25"}:
        return None
    embedder: Embedder = LocalEmbedder(config.embedder, config.threads)
    if config.embedder_url is not None:
        from serving.prefilter.remote import RemoteEmbedder  # noqa: PLC0415  (openai)

        embedder = RemoteEmbedder(config.embedder_url, config.embedder, _secret(config.embedder_key))
    return Embeddings(embedder, config.cache_mb * 2**20)


def _secret(key: SecretStr | None) -> str | None:
    return None if key is None else key.get_secret_value()


def _cross_encoder(config: PrefilterConfig, name: str) -> CrossEncoder:
    if config.reranker_url is None:
        return LocalCrossEncoder(name)
    from serving.prefilter.remote import RemoteCrossEncoder  # noqa: PLC0415  (openai)

    return RemoteCrossEncoder(config.reranker_url, name, _secret(config.reranker_key))


def make_rankers(config: PrefilterConfig, embeddings: Embeddings | None) -> dict[str, Ranker]:
    """Every method that the profile has the means for, by name, not started. A method is a line here."""
    rankers: dict[str, Ranker] = {"bm25": BM25Ranker(), "regex": RegexRanker()}
    if embeddings is not None:
        rankers["dense"] = DenseRanker(embeddings)
        rankers["graph"] = GraphRanker(embeddings, config.graph)
        rankers["fused"] = FusedRanker(rankers["dense"], rankers["bm25"])  # BM25 counts while the embedder works
    if config.reranker is not None:
        first = rankers.get("fused", rankers["bm25"])
        rankers["rerank"] = RerankedRanker(first, _cross_encoder(config, config.reranker), config.rerank_depth)
    return rankers
