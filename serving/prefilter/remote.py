"""An embedder and a reranker behind HTTP: any OpenAI-compatible or TEI endpoint.

Knows the two protocols and their errors. Does not know what the texts are.
"""

from __future__ import annotations

from collections.abc import Sequence

import httpx
import numpy as np
import openai
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from serving.connections import LeavableTransport
from serving.types import EngineError, EngineTimeoutError, EngineUnavailableError

# Texts of one call: more than 2,048 are refused by some servers, and hang others.
TOGETHER = 256
# Characters of a text that are sent; a model that reads more than its first thousands of tokens is rare.
CHARACTERS = 8_000
TIMEOUT_S = 30.0


class RemoteEmbedder:
    """`POST {url}/embeddings`, as OpenAI, vLLM and Text Embeddings Inference answer it. An `Embedder`.

    Args:
        url: with its /v1.
        model: its name at the endpoint.
        api_key: None where the endpoint asks for none.
    """

    def __init__(self, url: str, model: str, api_key: str | None = None) -> None:
        self._url = url
        self._model = model
        self._key = api_key or "unused"
        self._client: openai.AsyncOpenAI | None = None

    async def start(self) -> None:
        """See `Embedder.start`."""
        self._client = openai.AsyncOpenAI(api_key=self._key, base_url=self._url, timeout=TIMEOUT_S, max_retries=2)
        await self.embed(["warm up"])

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See `Embedder.embed`. Vectors are brought to unit length here.

        Raises:
            EngineUnavailableError: the endpoint cannot be reached.
            EngineTimeoutError: it did not answer in time.
            EngineError: it answered something else than one vector for each text.
        """
        parts = [await self._embed(texts[start : start + TOGETHER]) for start in range(0, len(texts), TOGETHER)]
        vectors = np.concatenate(parts)
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float32).tiny)
        return vectors

    async def _embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if self._client is None:
            raise EngineUnavailableError("the embedder is not started")
        # An empty text is an error to some servers.
        sent = [text[:CHARACTERS] or " " for text in texts]
        try:
            answer = await self._client.embeddings.create(model=self._model, input=sent, encoding_format="float")
        except openai.APITimeoutError as error:
            raise EngineTimeoutError(f"the embedder at {self._url} did not answer in {TIMEOUT_S:.0f} s") from error
        except openai.APIConnectionError as error:
            raise EngineUnavailableError(f"the embedder at {self._url} cannot be reached: {error}") from error
        except openai.APIError as error:
            raise EngineError(f"the embedder at {self._url} refused: {error}") from error
        rows = [item.embedding for item in sorted(answer.data, key=lambda item: item.index)]
        if len(rows) != len(texts) or len({len(row) for row in rows}) > 1:
            raise EngineError(f"the embedder at {self._url} did not answer one vector for each of {len(texts)} texts")
        return np.array(rows, dtype=np.float32)

    async def close(self) -> None:
        """See `Embedder.close`."""
        if self._client is not None:
            await self._client.close()
            self._client = None


class _Relevance(BaseModel):
    model_config = ConfigDict(extra="ignore")

    index: int
    relevance_score: float


class _Reranked(BaseModel):
    model_config = ConfigDict(extra="ignore")

    results: list[_Relevance]


class RemoteCrossEncoder:
    """`POST {url}/rerank`, as vLLM, Jina and Cohere answer it. A `CrossEncoder`. Arguments as `RemoteEmbedder`'s."""

    def __init__(self, url: str, model: str, api_key: str | None = None) -> None:
        self._url = url
        self._model = model
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx.AsyncClient(
            headers=headers, timeout=TIMEOUT_S, trust_env=False, transport=LeavableTransport()
        )

    async def start(self) -> None:
        """See `CrossEncoder.start`."""
        await self.scores("warm up", ["warm up"])

    async def scores(self, query: str, texts: Sequence[str]) -> NDArray[np.float32]:
        """See `CrossEncoder.scores`. Raises as `RemoteEmbedder.embed`."""
        body = {
            "model": self._model,
            "query": query[:CHARACTERS] or " ",
            "documents": [text[:CHARACTERS] or " " for text in texts],
            "top_n": len(texts),
        }
        try:
            response = await self._client.post(f"{self._url.rstrip('/')}/rerank", json=body)
            response.raise_for_status()
            answer = _Reranked.model_validate_json(response.content)
        except httpx.TimeoutException as error:
            raise EngineTimeoutError(f"the reranker at {self._url} did not answer in {TIMEOUT_S:.0f} s") from error
        except httpx.TransportError as error:
            raise EngineUnavailableError(f"the reranker at {self._url} cannot be reached: {error}") from error
        except (httpx.HTTPStatusError, ValidationError) as error:
            raise EngineError(f"the reranker at {self._url} refused: {error}") from error
        if sorted(item.index for item in answer.results) != list(range(len(texts))):
            raise EngineError(f"the reranker at {self._url} did not answer one score for each of {len(texts)} texts")
        scores = np.zeros(len(texts), dtype=np.float32)
        for item in answer.results:
            scores[item.index] = item.relevance_score
        return scores

    async def close(self) -> None:
        """See `CrossEncoder.close`."""
        await self._client.aclose()
