"""POST /v1/tools/search: tool search as a service, for agents that load what they need when they need it.

Knows its request. How candidates are found is the prefilter's matter, or the router's; in which shape they are told is
`search_answer`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Discriminator, Field, SkipValidation, Tag, TypeAdapter
from starlette.requests import Request
from starlette.responses import Response

from serving.api.auth import caller_of
from serving.api.errors import documented
from serving.api.messages import MessageItem, conversation
from serving.api.openapi import DocumentedRoute, decision_body
from serving.api.route import FilterBody
from serving.api.search_answer import (
    Detail,
    Found,
    SearchAnswer,
    ToolResult,
    ToolSearchOutput,
    search_answer,
    tool_result,
    tool_search_output,
)
from serving.api.service import Service
from serving.catalog.names import surface_names
from serving.catalog.shapes import CustomTool, FlatTool, FunctionTool, candidates_of, shape_of
from serving.prefilter.base import QUERY_CHARACTERS
from serving.types import (
    BusyError,
    Candidate,
    EngineError,
    EngineTimeoutError,
    InvalidRequestError,
    Message,
    NotFoundError,
    RouteRequest,
    StoreError,
    TooLargeError,
)
from serving.validation import REMEMBERED_BYTES, Remembered, parse_object, validated

PATH = "/v1/tools/search"
_ERRORS = (
    InvalidRequestError,
    NotFoundError,
    TooLargeError,
    BusyError,
    EngineError,
    EngineTimeoutError,
    StoreError,
)

Method = Literal["bm25", "regex", "embedding", "hybrid", "router"]
# What the prefilter calls a method.
_RANKERS: dict[str, str] = {"bm25": "bm25", "regex": "regex", "embedding": "dense", "hybrid": "fused"}
_METHODS = {ranker: method for method, ranker in _RANKERS.items()}


class _Deferrable(BaseModel):
    """What marks a tool as one to be searched for."""

    defer_loading: Annotated[
        bool | None, Field(description="Whether it is loaded only once it is found; otherwise it is loaded already.")
    ] = None


class SearchedFunction(FunctionTool, _Deferrable):
    """OpenAI's nested tool."""


class SearchedCustom(CustomTool, _Deferrable):
    """OpenAI's nested tool that takes free text."""


class SearchedFlat(FlatTool, _Deferrable):
    """A catalogue line, or an MCP, Anthropic or Responses tool."""


class SearchTool(BaseModel):
    """A provider's own search tool, such as `tool_search_tool_bm25_20251119` or `tool_search`: always loaded."""

    model_config = ConfigDict(strict=True)

    type: Annotated[str, Field(pattern="^tool_search")]
    defer_loading: Literal[False] | None = None


def _searched_shape(item: Any) -> str:
    """A tag must not be a field's name too: in the location of a fault they could not be told apart."""
    kind = item.get("type") if isinstance(item, dict) else None
    return "search tool" if isinstance(kind, str) and kind.startswith("tool_search") else f"{shape_of(item)} tool"


SearchedShape = Annotated[
    Annotated[SearchedFunction, Tag("function tool")]
    | Annotated[SearchedCustom, Tag("custom tool")]
    | Annotated[SearchedFlat, Tag("flat tool")]
    | Annotated[SearchTool, Tag("search tool")],
    Discriminator(_searched_shape),
]
_SHAPES: TypeAdapter[list[SearchedShape]] = TypeAdapter(Annotated[list[SearchedShape], Field(fail_fast=True)])


class SearchBody(BaseModel):
    """A search, either in a `catalog` or among `tools`."""

    model_config = ConfigDict(strict=True, extra="forbid")

    query: Annotated[str, Field(min_length=1, description="What is needed; a regular expression under `regex`.")]
    messages: Annotated[
        list[MessageItem] | None,
        Field(fail_fast=True, description="The conversation before the search, oldest first: it is searched for too."),
    ] = None
    catalog: Annotated[
        str | None,
        Field(description="The catalogue that is searched. Its pinned candidates are those that are always loaded."),
    ] = None
    include: Annotated[FilterBody | None, Field(description="Only these of the catalogue's candidates.")] = None
    exclude: Annotated[FilterBody | None, Field(description="None of these of the catalogue's candidates.")] = None
    tools: Annotated[
        SkipValidation[list[SearchedShape] | None],  # by `tools_from`, which remembers
        Field(
            description="What is searched, in place of `catalog`: OpenAI, Anthropic or MCP tools, or catalogue lines. "
            "Those with `defer_loading` are found, the others are loaded. At least one must be loaded; a provider's "
            "own search tool is."
        ),
    ] = None
    method: Annotated[
        Method | None,
        Field(
            description="How is searched: by shared words, a regular expression (RE2's syntax), embeddings, words and "
            "embeddings together (hybrid), or by asking the model (router). By default as this server does for "
            "decisions: hybrid, where it has an embedder."
        ),
    ] = None
    limit: Annotated[int, Field(ge=1, le=20, description="At most this many are found.")] = 5
    detail: Annotated[
        Detail,
        Field(description="What is told of each; full includes the schemas. Only where `format` is light_router."),
    ] = "description"
    format: Annotated[
        Literal["light_router", "anthropic", "openai"],
        Field(description="Anthropic's `tool_result` of references, or OpenAI's `tool_search_output` of tools."),
    ] = "light_router"
    call_id: Annotated[
        str | None, Field(description="The id of the model's call that is answered, for a provider's format.")
    ] = None


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a request: all of them, names by id, ids of those loaded and of those that take free text."""

    candidates: tuple[Candidate, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    loaded: frozenset[str] = frozenset()
    custom: frozenset[str] = frozenset()

    def name_of(self, candidate: Candidate) -> str:
        """What the candidate is called."""
        return self.names[candidate.id]


def tools_from(items: Any) -> Tools:
    """What `tools`, a parsed JSON value, describes.

    Raises:
        InvalidRequestError: not a list of known shapes, two tools of one id, or all of them deferred.
    """
    read = validated(_SHAPES.validate_python, items, "tools")
    if all(shape.defer_loading for shape in read):
        raise InvalidRequestError(
            "every tool is deferred, but at least one must be loaded, such as the search tool itself: leave its "
            "defer_loading out",
            "tools",
        )
    shapes = [shape for shape in read if not isinstance(shape, SearchTool)]
    candidates = candidates_of(shapes, "tools")
    own = [shape for shape in shapes if shape.type != "server"]
    # The caller's own names, which its provider knows them by; where two are alike no name of theirs would do.
    names = [candidate.name for candidate in candidates]
    if len(set(names)) < len(names):
        names = list(surface_names(candidates))
    pairs = list(zip(own, candidates, strict=True))
    return Tools(
        candidates,
        {candidate.id: name for candidate, name in zip(candidates, names, strict=True)},
        frozenset(candidate.id for shape, candidate in pairs if not shape.defer_loading),
        frozenset(candidate.id for shape, candidate in pairs if shape.type == "custom" and not candidate.input_schema),
    )


def request_of(body: SearchBody, history: tuple[Message, ...], tools: Tools) -> RouteRequest:
    """The question that the body asks.

    Raises:
        InvalidRequestError: filters without a catalogue, or an expression too long to be searched for whole.
    """
    for name in ("include", "exclude"):
        if body.catalog is None and getattr(body, name) is not None:
            raise InvalidRequestError(f"{name} filters a catalogue; send `catalog`, or leave tools out", name)
    if body.method == "regex" and len(body.query) > QUERY_CHARACTERS:
        raise InvalidRequestError(
            f"the pattern has {len(body.query)} characters; at most {QUERY_CHARACTERS} are taken", "query"
        )
    return RouteRequest(
        (*history, Message("user", body.query)),
        tools.candidates,
        k=body.limit,
        pinned=tools.loaded,
        catalog=body.catalog,
        include=body.include.filter() if body.include else None,
        exclude=body.exclude.filter() if body.exclude else None,
        methods=(_RANKERS[body.method],) if body.method in _RANKERS else (),
    )


async def _ranked(service: Service, http: Request, request: RouteRequest) -> Found:
    """What the prefilter finds."""
    loaded = await service.pinned(http, request)
    kept = await service.search(http, request)
    return Found(
        found=list(zip(kept.candidates, kept.scores, strict=True)),
        loaded=[(candidate, None) for candidate in loaded],
        method=_METHODS.get(kept.report.method, kept.report.method),
    )


async def _routed(service: Service, http: Request, request: RouteRequest) -> Found:
    """What the model chooses. What is loaded competes, so that `none` and all probabilities sum to 1."""
    loaded = await service.pinned(http, request)
    usual, most = service.config.prefilter.k, service.router.max_k
    wanted = max(usual, request.k or 0) + len(loaded)
    decision = await service.decide(http, replace(request, k=min(wanted, most or wanted)))
    probabilities = {ranked.candidate.id: ranked.probability for ranked in decision.ranking}
    ids = {candidate.id for candidate in loaded}
    found = [(one.candidate, one.probability) for one in decision.ranking if one.candidate.id not in ids]
    return Found(
        found=found[: request.k],
        loaded=[(candidate, probabilities.get(candidate.id)) for candidate in loaded],
        method=decision.model if decision.degraded else "router",
        none_probability=None if decision.degraded else decision.none_probability,
        truncated=decision.truncated,
    )


def _json(answer: BaseModel, *, exclude_unset: bool = False) -> Response:
    return Response(answer.model_dump_json(exclude_unset=exclude_unset), media_type="application/json")


def routes(service: Service) -> APIRouter:
    """POST /v1/tools/search."""
    read_tools = Remembered(tools_from, REMEMBERED_BYTES)
    surface = APIRouter(tags=["routing"], route_class=DocumentedRoute)

    def searched(body: SearchBody, salt: str) -> Tools:
        if (body.tools is None) == (body.catalog is None):
            wrong = "there is nothing to search; send" if body.tools is None else "send only one of"
            raise InvalidRequestError(f"{wrong} `catalog` or `tools`", "catalog")
        return Tools() if body.tools is None else read_tools(body.tools, salt)

    @surface.post(
        PATH,
        response_model=SearchAnswer | ToolResult | ToolSearchOutput,
        responses=documented(*_ERRORS, path=PATH),
        openapi_extra=decision_body(SearchBody),
    )
    async def search(http: Request) -> Response:
        """The tools, agents or skills to load for what is needed now."""
        sent = await http.body()
        with service.place(http, sent):
            body = parse_object(SearchBody, sent)
            ranker = _RANKERS.get(body.method or "")
            if ranker is not None and ranker not in service.router.prefilter.methods:
                raise InvalidRequestError(f"method: this server has no embedder, which {body.method} needs", "method")
            tools = searched(body, caller_of(http).salt)
            history, truncated = conversation(body.messages or [])
            request = request_of(body, history, tools)
            found = await (_routed if body.method == "router" else _ranked)(service, http, request)
            name_of = tools.name_of if body.catalog is None else await service.names(http, body.catalog)
        if body.format == "anthropic":
            return _json(tool_result(found, name_of, body.call_id))
        if body.format == "openai":
            return _json(tool_search_output(found, name_of, body.call_id, tools.custom))
        found = replace(found, truncated=(*truncated, *found.truncated))
        return _json(search_answer(found, name_of, body.detail), exclude_unset=True)

    return surface
