"""POST /v1/route: the router's own surface, with everything that a decision knows.

Knows its request and answer. The flow is the router's.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, SkipValidation
from starlette.requests import Request
from starlette.responses import Response

from prompts.question import CandidateType, query_position
from serving.api.answers import TruncationAnswer
from serving.api.auth import caller_of
from serving.api.errors import documented
from serving.api.messages import MessageItem, conversation
from serving.api.openapi import DocumentedRoute, decision_body
from serving.api.service import Service
from serving.catalog.shapes import Shape, candidates_from
from serving.types import (
    BusyError,
    Candidate,
    Decision,
    EngineError,
    EngineTimeoutError,
    Filter,
    InvalidRequestError,
    Message,
    RouteRequest,
    TooLargeError,
    Truncation,
)
from serving.validation import REMEMBERED_BYTES, Remembered, parse_object

PATH = "/v1/route"


class FilterBody(BaseModel):
    """Candidates that fit every kind of thing named, by one of the things named."""

    model_config = ConfigDict(strict=True, extra="forbid")

    ids: Annotated[list[str], Field(fail_fast=True)] = []
    servers: Annotated[list[str], Field(fail_fast=True)] = []
    types: Annotated[list[CandidateType], Field(fail_fast=True)] = []
    tags: Annotated[list[str], Field(fail_fast=True)] = []

    def filter(self) -> Filter:
        """As the router takes it."""
        return Filter(tuple(self.ids), tuple(self.servers), tuple(self.types), tuple(self.tags))


class RouteBody(BaseModel):
    """A routing question: either `messages`, or `query` with optional `history`."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        json_schema_extra={
            "anyOf": [
                {"required": ["query"], "properties": {"query": {"type": "string"}, "messages": {"type": "null"}}},
                {
                    "required": ["messages"],
                    "properties": {
                        "messages": {"type": "array"},
                        "query": {"type": "null"},
                        "history": {"type": "null"},
                    },
                },
            ]
        },
    )

    query: Annotated[
        str | None,
        Field(
            min_length=1,
            description="What the person wants. It follows `history` as a user message, unless the latest user message "
            "there says the same: then the agent has acted on it since.",
        ),
    ] = None
    history: Annotated[
        list[MessageItem] | None, Field(fail_fast=True, description="Every message before the decision, oldest first.")
    ] = None
    messages: Annotated[
        list[MessageItem] | None,
        Field(fail_fast=True, min_length=1, description="The whole conversation, oldest first, the query included."),
    ] = None
    candidates: Annotated[
        SkipValidation[list[Shape] | None],  # by `candidates_from`, which remembers
        Field(
            description="What may be chosen: OpenAI, Anthropic or MCP tools, or catalogue lines. `id` defaults to "
            "`name`; ids must be unique. Of an empty list only none can be the answer.",
        ),
    ] = None
    catalog: Annotated[
        str | None, Field(description="The catalogue whose candidates may be chosen, in place of `candidates`.")
    ] = None
    include: Annotated[FilterBody | None, Field(description="Only these of the catalogue's candidates.")] = None
    exclude: Annotated[FilterBody | None, Field(description="None of these of the catalogue's candidates.")] = None
    methods: Annotated[
        list[str] | None,
        Field(fail_fast=True, description="How to rank: bm25, dense, fused, graph, regex. Several are fused."),
    ] = None
    subtasks: Annotated[
        list[str] | None,
        Field(fail_fast=True, max_length=32, description="Parts of the task; the graph method finds tools for each."),
    ] = None
    k: Annotated[
        int | None, Field(ge=1, description="At most this many candidates reach the model; by default the profile's.")
    ] = None
    top: Annotated[int | None, Field(ge=0, description="At most this many entries in `ranking`; by default all.")] = (
        None
    )
    allow_none: Annotated[bool, Field(description='Whether "none of these" may be the answer.')] = True
    coverage: Annotated[
        float | None,
        Field(gt=0, lt=1, description="Asks for the smallest set that holds a right candidate with this probability."),
    ] = None


class Chosen(BaseModel):
    """The winner."""

    id: str
    name: str
    server: str
    type: CandidateType
    probability: float


class RankedId(BaseModel):
    """A candidate that reached the model, and its probability."""

    id: str
    probability: float


class PrefilterAnswer(BaseModel):
    """What the prefilter did; its method is "none" where all candidates passed."""

    method: str
    considered: int
    kept: int


class RouteUsage(BaseModel):
    """Tokens of the prompt, a shared prefix counted once, and how many of them were not computed again."""

    prompt_tokens: int
    cached_tokens: int


class RouteAnswer(BaseModel):
    """A decision. The probabilities of `ranking` (uncut) and `none_probability` sum to 1."""

    id: str
    decision: Chosen | None
    none_probability: float
    ranking: list[RankedId]
    prediction_set: list[str] = []
    """Only where `coverage` asked for it."""
    prefilter: PrefilterAnswer
    truncated: list[TruncationAnswer]
    usage: RouteUsage
    timings_ms: dict[str, float]
    model: str
    degraded: bool = False
    """Only where the engine was down and the prefilter decided: probabilities are then shares of its scores."""


def messages_of(body: RouteBody) -> tuple[tuple[Message, ...], list[Truncation]]:
    """The conversation that the body holds, and its parts that are no text.

    Raises:
        InvalidRequestError: both `messages` and `query`, or neither.
    """
    if body.messages is not None:
        if body.query is not None or body.history is not None:
            raise InvalidRequestError(
                "send either `messages`, or `query` with optional `history`, not both", "messages"
            )
        return conversation(body.messages)
    if body.query is None:
        raise InvalidRequestError("there is nothing to route; send `messages`, or `query`", "query")
    history, truncated = conversation(body.history or [])
    position = query_position(history)
    if position is not None and history[position].content == body.query:
        return history, truncated
    return (*history, Message("user", body.query)), truncated


def offered(body: RouteBody, read: Callable[[Any], tuple[Candidate, ...]]) -> tuple[Candidate, ...]:
    """The candidates that the body brings, as `read` reads them; none where it names a catalogue.

    Raises:
        InvalidRequestError: both or neither, or what `read` raises.
    """
    if body.catalog is None:
        if "candidates" not in body.model_fields_set:
            raise InvalidRequestError("candidates is missing; send it, or `catalog`", "candidates")
        return read(body.candidates)
    if body.candidates is not None:
        raise InvalidRequestError("send either `candidates` or `catalog`, not both", "catalog")
    return ()


def request_of(
    body: RouteBody, messages: tuple[Message, ...], candidates: tuple[Candidate, ...], max_k: int | None
) -> RouteRequest:
    """The question that the body asks.

    Raises:
        InvalidRequestError: candidates or `k` are impossible.
    """
    if body.catalog is None and not candidates and not body.allow_none:
        raise InvalidRequestError("there is nothing to choose: send candidates, or allow none", "candidates")
    for name in ("include", "exclude"):
        if body.catalog is None and getattr(body, name) is not None:
            raise InvalidRequestError(f"{name} filters a catalogue; send `catalog`, or leave candidates out", name)
    k = body.k
    if k and body.catalog is None:
        k = min(k, max(len(candidates), 1))  # more than there are is as good as all
    if k and max_k and k > max_k:
        raise InvalidRequestError(
            f"k is {body.k}, but one question to this model holds at most {max_k} candidates", "k"
        )
    return RouteRequest(
        messages,
        candidates,
        allow_none=body.allow_none,
        k=k,
        coverage=body.coverage,
        catalog=body.catalog,
        include=body.include.filter() if body.include else None,
        exclude=body.exclude.filter() if body.exclude else None,
        methods=tuple(body.methods or ()),
        subtasks=tuple(body.subtasks or ()),
    )


def answer_of(decision: Decision, truncated: list[Truncation], top: int | None) -> RouteAnswer:
    """The decision in this surface's shape, its ranking cut to `top`."""
    chosen = decision.chosen
    answer = RouteAnswer(
        id=f"route-{uuid.uuid4().hex}",
        decision=chosen
        and Chosen(
            id=chosen.candidate.id,
            name=chosen.candidate.name,
            server=chosen.candidate.server,
            type=chosen.candidate.type,
            probability=chosen.probability,
        ),
        none_probability=decision.none_probability,
        ranking=[RankedId(id=ranked.candidate.id, probability=ranked.probability) for ranked in decision.ranking[:top]],
        prefilter=PrefilterAnswer(
            method=decision.prefilter.method, considered=decision.prefilter.considered, kept=decision.prefilter.kept
        ),
        truncated=[TruncationAnswer.of(truncation) for truncation in (*truncated, *decision.truncated)],
        usage=RouteUsage(prompt_tokens=decision.prompt_tokens, cached_tokens=decision.cached_tokens),
        timings_ms={stage: round(milliseconds, 3) for stage, milliseconds in decision.timings_ms.items()},
        model=decision.model,
    )
    if decision.prediction_set is not None:
        answer.prediction_set = list(decision.prediction_set)
    if decision.degraded:
        answer.degraded = True
    return answer


def routes(service: Service) -> APIRouter:
    """POST /v1/route."""
    candidates_of = Remembered(candidates_from, REMEMBERED_BYTES)
    surface = APIRouter(tags=["routing"], route_class=DocumentedRoute)
    errors = (InvalidRequestError, TooLargeError, BusyError, EngineError, EngineTimeoutError)

    @surface.post(
        PATH,
        response_model=RouteAnswer,
        responses=documented(*errors, path=PATH),
        openapi_extra=decision_body(RouteBody),
    )
    async def route(http: Request) -> Response:
        """Which of the candidates acts next, or none: the winner, and the probability of everything."""
        sent = await http.body()
        with service.place(http, sent):
            body = parse_object(RouteBody, sent)
            messages, truncated = messages_of(body)
            read = partial(candidates_of, salt=caller_of(http).salt)
            request = request_of(body, messages, offered(body, read), service.router.max_k)
            decision = await service.decide(http, request)
        answer = answer_of(decision, truncated, body.top)
        return Response(answer.model_dump_json(exclude_unset=True), media_type="application/json")

    return surface
