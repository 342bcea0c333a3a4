"""The engine over HTTP: a vLLM server, asked with token ids.

Knows vLLM's routes (measured with 0.32) and its limits. Does not know messages, templates or torch. Listwise and
general questions go to `/v1/completions` with `logprob_token_ids`, which returns exactly the labels'
log-probabilities; two labels after many continuations are one `/generative_scoring` call; choices are written under
`structured_outputs.choice`. A LoRA adapter is chosen by its model name.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import time
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import httpx
import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from serving.config import Config
from serving.connections import CONNECT_S, LeavableTransport
from serving.engine.base import Choice, ChoiceRequest, ScoreRequest, Scores
from serving.tracing import http_call
from serving.types import EngineError, EngineTimeoutError, EngineUnavailableError

logger = logging.getLogger(__name__)

# The most ids that vLLM takes as `logprob_token_ids` in one call.
MAX_LABELS = 128
# vLLM writes this for a log-probability of minus infinity: the token could not have been said.
IMPOSSIBLE = -9999.0
# What may stand in a choice: anything else can break the grammar, and a broken grammar the server, for everyone.
CHOICE = re.compile(r"[a-zA-Z0-9_-]+")
# vLLM closes idle connections after 5 s. A request sent at that moment would be lost, and is not sent again.
KEEPALIVE_S = 2.0
# Between two looks at a server that is still loading its model.
POLL_S = 0.5
# Ids that every vocabulary holds, for the requests before the first real one.
WARM_UP_PREFIX = range(64)
# Statuses of a server that is overloaded, shutting down, or missing behind a load balancer.
UNAVAILABLE = frozenset({502, 503, 504})


class _Answer(BaseModel):
    """What is read of an answer; NaN and infinity are refused."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class _Card(_Answer):
    id: str
    max_model_len: int | None = None


class _Models(_Answer):
    data: list[_Card]


class _Logprobs(_Answer):
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] = Field(min_length=1)


class _Completion(_Answer):
    index: int
    text: str
    logprobs: _Logprobs


class _TokenDetails(_Answer):
    cached_tokens: int = 0


class _Usage(_Answer):
    prompt_tokens_details: _TokenDetails | None = None

    @property
    def cached_tokens(self) -> int:
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else 0


class _Completions(_Answer):
    choices: list[_Completion]
    usage: _Usage = _Usage()


class _Score(_Answer):
    index: int
    score: Annotated[float, Field(ge=0, le=1)]


class _Scoring(_Answer):
    data: list[_Score]


Answer = TypeVar("Answer", bound=_Answer)


class VllmEngine:
    """A vLLM server as an `Engine`. One server may serve several; each has connections of its own.

    Args:
        config: the profile; `engine.url` says where the server is.
        transport: how it is reached; by default TCP. A connection that cannot be made is tried once more; a request
            that was sent is never sent again.
    """

    def __init__(self, config: Config, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._config = config
        self._settings = config.engine
        self._max_tokens = config.model.budget.total
        self._in_progress = 0
        # Waited for here, where a caller may leave at any time, and not in the pool.
        self._places = asyncio.Semaphore(self._settings.max_connections)
        key = self._settings.api_key
        self._client = httpx.AsyncClient(
            base_url=self._settings.url,
            headers={"Authorization": f"Bearer {key.get_secret_value()}"} if key else {},
            timeout=httpx.Timeout(None, connect=CONNECT_S),  # the whole of a request is timed in `_ask`
            trust_env=False,
            transport=transport
            or LeavableTransport(
                retries=1,
                limits=httpx.Limits(
                    max_connections=None,
                    max_keepalive_connections=self._settings.max_connections,
                    keepalive_expiry=KEEPALIVE_S,
                ),
            ),
        )

    @property
    def model(self) -> str:
        """The name under which vLLM serves the adapter, or the base model."""
        return self._config.model.served_name

    @property
    def max_tokens(self) -> int:
        """The server's context less the one token that is read; before `start`, the profile's budget."""
        return self._max_tokens

    @property
    def in_progress(self) -> int:
        """Requests on their way, of which a question may take more than one."""
        return self._in_progress

    async def start(self) -> None:
        """Wait for the server, check what it serves, and ask it once what it will be asked.

        Raises:
            EngineUnavailableError: it does not answer in `engine.start_timeout_s`, does not serve the model, has
                too short a context, or cannot answer the readout's kind of question.
        """
        until = time.monotonic() + self._settings.start_timeout_s
        try:
            self._check_models(await self._wait_for_models(until))
            await self._warm_up(until)
        except EngineUnavailableError:
            raise
        except EngineError as error:
            raise EngineUnavailableError(
                f"the vLLM server at {self._settings.url} cannot serve {self.model!r}: {error}. Start it with the "
                "command that `light-router engine --config FILE` prints"
            ) from error

    async def score(self, request: ScoreRequest) -> Scores:
        """As the protocol says. `cached_tokens` is 0 where vLLM does not report it."""
        return await self._score(request, self._until(request.deadline))

    async def choose(self, request: ChoiceRequest) -> Choice:
        """As the protocol says. vLLM may write a choice in other tokens than `choice_ids`; the text is the same."""
        return await self._choose(request, self._until(request.deadline))

    async def close(self) -> None:
        """Close all connections; vLLM stops the work behind them."""
        await self._client.aclose()

    async def _wait_for_models(self, until: float) -> _Models:
        """What the server serves, once it answers."""
        waiting = False
        while True:
            try:
                await self._ask("GET", "/health", until)
                return _read(_Models, "/v1/models", await self._ask("GET", "/v1/models", until))
            except (EngineUnavailableError, EngineTimeoutError) as error:
                if time.monotonic() + POLL_S >= until:
                    raise EngineUnavailableError(
                        f"no vLLM server was ready at {self._settings.url} within "
                        f"{self._settings.start_timeout_s:g} s ({error}). Start it with `light-router engine "
                        "--config FILE --run`, or set engine.url to where it runs"
                    ) from error
                if not waiting:
                    logger.warning("waiting for the vLLM server at %s: %s", self._settings.url, error)
                waiting = True
                await asyncio.sleep(POLL_S)

    def _check_models(self, models: _Models) -> None:
        served = [card.id for card in models.data]
        if self.model not in served:
            raise EngineError(
                f"it serves {', '.join(map(repr, served)) or 'nothing'}; model.name and the folder name of "
                "model.adapter must be the names that vLLM serves"
            )
        # Only the base model's card says it; an adapter has its base's context.
        context = max((card.max_model_len for card in models.data if card.max_model_len), default=0)
        needed = self._config.model.budget.total + 1
        if context < needed:
            raise EngineError(
                f"its context is {context} tokens, but model.budget.total needs {needed}: "
                f"start it with --max-model-len {needed}, or lower the budget"
            )
        self._max_tokens = context - 1

    async def _warm_up(self, until: float) -> None:
        """The first request of a kind compiles what it needs, and shows whether this vLLM knows it at all."""
        prefix = list(WARM_UP_PREFIX)
        readout = self._config.model.readout
        if readout == "generate":
            await self._choose(ChoiceRequest(prefix, ["a", "b"], [[1], [2]], end_token=0), until)
            await self._score(ScoreRequest(prefix, [[1], [2]], [1, 2, 3]), until)  # forks of the tree of choices
        elif readout == "listwise":
            await self._score(ScoreRequest(prefix, [[1]], list(range(self._config.prefilter.k + 1))), until)
        else:
            await self._score(ScoreRequest(prefix, [[1], [2]], [1, 2]), until)

    async def _score(self, request: ScoreRequest, until: float) -> Scores:
        self._check_length(len(request.prefix) + max(map(len, request.continuations)))
        tokens = len(request.prefix) + sum(map(len, request.continuations))
        if len(request.labels) == 2 and len(request.continuations) > 1:
            return Scores(await self._pairs(request, until), None, tokens, 0)
        logprobs, cached = await self._labels(request, until)
        return Scores(logprobs, np.minimum(np.exp(logprobs).sum(axis=1), 1.0), tokens, cached)

    async def _labels(self, request: ScoreRequest, until: float) -> tuple[NDArray[np.float64], int]:
        """Log-probabilities over the vocabulary, and how many prompt tokens were cached."""
        prompts = [[*request.prefix, *continuation] for continuation in request.continuations]
        chunks: list[list[list[float]]] = []
        cached = 0
        for start in range(0, len(request.labels), MAX_LABELS):
            labels = request.labels[start : start + MAX_LABELS]
            answer = await self._complete(
                prompts, request.cache_salt, until, max_tokens=1, logprobs=len(labels), logprob_token_ids=list(labels)
            )
            chunks.append([_label_logprobs(choice, labels) for choice in answer.choices])
            if start == 0:  # the later calls find this one's prompt in the cache
                cached = answer.usage.cached_tokens
        return np.concatenate([np.array(chunk, dtype=np.float64) for chunk in chunks], axis=1), cached

    async def _pairs(self, request: ScoreRequest, until: float) -> NDArray[np.float64]:
        """Log-probabilities over two labels alone, of every continuation in one call."""
        body = {
            "query": list(request.prefix),
            "items": [list(continuation) for continuation in request.continuations],
            "label_token_ids": list(request.labels),
            "apply_softmax": True,
        }
        path = "/generative_scoring"
        answer = _read(_Scoring, path, await self._ask("POST", path, until, self._body(body, request.cache_salt)))
        _check_indexes(path, [item.index for item in answer.data], len(request.continuations))
        score = np.array([item.score for item in sorted(answer.data, key=lambda item: item.index)], dtype=np.float64)
        # A score that float64 rounds to 0 or 1 stays finite: beyond that the odds cannot be told apart.
        smallest, largest = np.finfo(np.float64).tiny, 1 - np.finfo(np.float64).epsneg
        return np.stack([np.log(np.maximum(score, smallest)), np.log1p(-np.minimum(score, largest))], axis=1)

    async def _choose(self, request: ChoiceRequest, until: float) -> Choice:
        for choice in request.choices:
            if not CHOICE.fullmatch(choice):
                raise EngineError(f"the choice {choice!r} may hold letters, digits, _ and - only")
        # Written one character a token at worst, and the end.
        room = max(map(len, request.choices)) + 1
        self._check_length(len(request.prompt))
        answer = await self._complete(
            [list(request.prompt)],
            request.cache_salt,
            until,
            max_tokens=min(room, self._max_tokens + 1 - len(request.prompt)),
            logprobs=1,
            stop_token_ids=[request.end_token],
            structured_outputs={"choice": list(request.choices)},
        )
        written = answer.choices[0]
        if written.text not in request.choices:
            raise EngineError(f"vLLM wrote {written.text!r}, which is none of the choices: does it know their grammar?")
        return Choice(
            position=request.choices.index(written.text),
            # vLLM's log-probabilities are those under the grammar: the choices share all of each token's mass.
            logprob=min(sum(written.logprobs.token_logprobs), 0.0),
            prompt_tokens=len(request.prompt),
            cached_tokens=answer.usage.cached_tokens,
        )

    async def _complete(
        self, prompts: Sequence[Sequence[int]], cache_salt: str, until: float, **options: Any
    ) -> _Completions:
        path = "/v1/completions"
        body = {"prompt": prompts, "temperature": 0, "return_tokens_as_token_ids": True, **options}
        answer = _read(_Completions, path, await self._ask("POST", path, until, self._body(body, cache_salt)))
        _check_indexes(path, [choice.index for choice in answer.choices], len(prompts))
        return answer.model_copy(update={"choices": sorted(answer.choices, key=lambda choice: choice.index)})

    def _body(self, body: dict[str, Any], cache_salt: str) -> dict[str, Any]:
        """With the model's name, and the salt as a digest: vLLM refuses some characters and long ones."""
        salt = {"cache_salt": hashlib.sha256(cache_salt.encode()).hexdigest()} if cache_salt else {}
        return {"model": self.model, **body, **salt}

    def _check_length(self, tokens: int) -> None:
        """`/generative_scoring` would cut a prompt that is too long without a word."""
        if tokens > self._max_tokens:
            raise EngineError(f"the prompt is {tokens} tokens; the vLLM server takes {self._max_tokens}")

    def _until(self, deadline: float | None) -> float:
        """When a request that starts now is given up, as `time.monotonic()`."""
        until = time.monotonic() + self._settings.timeout_s
        return until if deadline is None else min(until, deadline)

    async def _ask(self, method: str, path: str, until: float, body: dict[str, Any] | None = None) -> bytes:
        """One request: its answer's body. Leaving it, by time or cancellation, closes the connection."""
        seconds = until - time.monotonic()
        where = f"{self._settings.url}{path}"
        if seconds <= 0:
            raise EngineTimeoutError(f"the deadline passed before {where} could be asked")
        self._in_progress += 1
        try:
            with http_call(method, where) as headers:
                async with asyncio.timeout(seconds), self._places:
                    response = await self._client.request(method, path, json=body, headers=headers)
        except TimeoutError as error:
            raise EngineTimeoutError(f"vLLM did not answer {where} within {seconds:.3g} s") from error
        except httpx.TransportError as error:
            raise EngineUnavailableError(f"vLLM cannot be reached at {where}: {error!r}") from error
        except httpx.HTTPError as error:
            raise EngineError(f"vLLM's answer to {where} cannot be read: {error}") from error
        finally:
            self._in_progress -= 1
        if response.is_success:
            return response.content
        message = f"vLLM answered {response.status_code} to {where}: {response.text[:500]}"
        raise (EngineUnavailableError if response.status_code in UNAVAILABLE else EngineError)(message)


def _read(kind: type[Answer], path: str, content: bytes) -> Answer:
    """An answer's body as what was asked for, or an EngineError that names what is wrong with it."""
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc'])) or 'body'}: {fault['msg']}" for fault in error.errors())
        raise EngineError(f"vLLM's answer to {path} is not what was asked for: {faults[:500]}") from error


def _check_indexes(path: str, indexes: list[int], count: int) -> None:
    if sorted(indexes) != list(range(count)):
        raise EngineError(f"vLLM's answer to {path} holds the results {indexes}; asked for were {count}, from 0 on")


def _label_logprobs(choice: _Completion, labels: Sequence[int]) -> list[float]:
    """Log-probabilities of the labels at the one position read, in their order."""
    found = choice.logprobs.top_logprobs[0]
    values = [found.get(f"token_id:{label}", IMPOSSIBLE) for label in labels]
    missing = [label for label, value in zip(labels, values, strict=True) if value <= IMPOSSIBLE]
    if missing:
        raise EngineError(
            f"vLLM gave no log-probability for the label ids {missing}: does it know logprob_token_ids, and does "
            "--max-logprobs cover the labels?"
        )
    return values
