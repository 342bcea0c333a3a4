"""POST /v1/chat/completions: OpenAI's shape, for every client that speaks it.

The router chooses and the agent fills in: a call's `arguments` are always "{}". What only steers how text is sampled
is accepted and has no effect; what would ask for something else than one choice is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from jsonschema_rs import Draft4Validator, Draft7Validator, Draft202012Validator
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SkipValidation, TypeAdapter
from starlette.requests import Request
from starlette.responses import Response

from serving.api.auth import caller_of
from serving.api.chat_answer import ChatAnswer, completion, events
from serving.api.errors import documented
from serving.api.gateway import Gateway
from serving.api.messages import MessageItem, conversation
from serving.api.models import check_model
from serving.api.openapi import DocumentedRoute, decision_body
from serving.api.route import FilterBody
from serving.api.service import Service
from serving.catalog.shapes import Custom, CustomTool, Function, FunctionTool, candidates_of
from serving.types import (
    BusyError,
    Candidate,
    EngineError,
    EngineTimeoutError,
    InvalidRequestError,
    Message,
    ModelNotFoundError,
    NotFoundError,
    RouteRequest,
    StoreError,
    TooLargeError,
)
from serving.validation import REMEMBERED_BYTES, Remembered, parse_json, parse_object, validated

PATH = "/v1/chat/completions"
_ERRORS = (
    InvalidRequestError,
    ModelNotFoundError,
    NotFoundError,
    TooLargeError,
    BusyError,
    EngineError,
    EngineTimeoutError,
    StoreError,
)

ToolName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
# Accepted whatever it is.
Ignored = Annotated[Any, Field(description="Accepted; has no effect.")]


def _nothing(value: Any) -> None:
    if value not in (None, False):
        raise ValueError("is not supported by this server; leave it out")


# Accepted where it asks for nothing.
Refused = Annotated[Literal[False] | None, BeforeValidator(_nothing), Field(description="Not supported.")]

# The drafts that tools are described in. Each reads a caller's schema as an instance, never as a schema: the
# library's own check of a schema would follow its `$schema` to any URL.
_DRAFTS = (
    Draft202012Validator({"$ref": "https://json-schema.org/draft/2020-12/schema"}),
    Draft7Validator({"$ref": "http://json-schema.org/draft-07/schema#"}),
    Draft4Validator({"$ref": "http://json-schema.org/draft-04/schema#"}),
)


class _Shape(BaseModel):
    model_config = ConfigDict(strict=True)


class ChatFunction(Function):
    """A function under a name that OpenAI would take."""

    name: ToolName


class ChatFunctionTool(FunctionTool):
    """A tool with a JSON Schema of its arguments."""

    type: Literal["function"]
    function: ChatFunction


class ChatCustom(Custom):
    """A tool for free text under a name that OpenAI would take."""

    name: ToolName


class ChatCustomTool(CustomTool):
    """A tool that takes free text."""

    type: Literal["custom"]
    custom: ChatCustom


Tool = Annotated[ChatFunctionTool | ChatCustomTool, Field(discriminator="type")]


class Named(_Shape):
    """The name of a tool."""

    name: str


class FunctionChoice(_Shape):
    """This function and no other."""

    type: Literal["function"]
    function: Named


class CustomChoice(_Shape):
    """This custom tool and no other."""

    type: Literal["custom"]
    custom: Named


NamedChoice = Annotated[FunctionChoice | CustomChoice, Field(discriminator="type")]


class AllowedTools(_Shape):
    """Some of the tools, one of which must be called where mode is "required"."""

    mode: Literal["auto", "required"]
    tools: list[NamedChoice] = Field(min_length=1, fail_fast=True)


class AllowedChoice(_Shape):
    """Only these tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


ToolChoice = (
    Literal["none", "auto", "required"]
    | Annotated[FunctionChoice | CustomChoice | AllowedChoice, Field(discriminator="type")]
)


class TextFormat(_Shape):
    """The only format there is."""

    type: Literal["text"]


class StreamOptions(_Shape):
    """`include_usage` asks for a last chunk with the tokens used."""

    include_usage: bool | None = None
    include_obfuscation: Ignored = None


class ChatBody(_Shape):
    """A chat completion request."""

    model_config = ConfigDict(strict=True, extra="forbid")

    model: str
    messages: list[MessageItem] = Field(min_length=1, fail_fast=True)
    tools: SkipValidation[list[Tool] | None] = None  # by `tools_from`, which remembers
    tool_choice: ToolChoice | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)

    # Ours, for clients that send fields of their own (`extra_body` in OpenAI's).
    catalog: Annotated[
        str | None,
        Field(
            description="The catalogue whose candidates may be called, in place of `tools`. A function's name is then "
            "one that nothing else in the catalogue has, and `candidate` of the answer tells the id."
        ),
    ] = None
    include: Annotated[FilterBody | None, Field(description="Only these of the catalogue's candidates.")] = None
    exclude: Annotated[FilterBody | None, Field(description="None of these of the catalogue's candidates.")] = None

    frequency_penalty: Ignored = None
    max_completion_tokens: Ignored = None
    max_tokens: Ignored = None
    metadata: Ignored = None
    parallel_tool_calls: Ignored = None
    prediction: Ignored = None
    presence_penalty: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_options: Ignored = None
    prompt_cache_retention: Ignored = None
    reasoning_effort: Ignored = None
    safety_identifier: Ignored = None
    seed: Ignored = None
    service_tier: Ignored = None
    stop: Ignored = None
    temperature: Ignored = None
    top_p: Ignored = None
    user: Ignored = None
    verbosity: Ignored = None

    n: Literal[1] | None = None
    response_format: TextFormat | None = None
    modalities: list[Literal["text"]] | None = Field(default=None, fail_fast=True)
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] | None = None
    store: Refused = None
    audio: Refused = None
    functions: Refused = None
    function_call: Refused = None
    moderation: Refused = None
    web_search_options: Refused = None


def _check(body: ChatBody) -> None:
    if body.stream_options is not None and not body.stream:
        raise InvalidRequestError("stream_options needs stream: true", "stream_options")
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequestError("top_logprobs needs logprobs: true", "top_logprobs")
    if body.catalog is not None and body.tools is not None:
        raise InvalidRequestError("send either `tools` or `catalog`, not both", "catalog")
    if body.catalog is not None and body.tool_choice is not None and not isinstance(body.tool_choice, str):
        raise InvalidRequestError(
            'tool_choice with `catalog` is "none", "auto" or "required"; `include` allows only some', "tool_choice"
        )
    for name in ("include", "exclude"):
        if body.catalog is None and getattr(body, name) is not None:
            raise InvalidRequestError(f"{name} filters a catalogue; send `catalog`, or leave tools out", name)


def _check_parameters(schema: dict[str, Any], where: str) -> None:
    if schema.get("type", "object") != "object":
        raise InvalidRequestError(f'{where} must describe an object: its "type" must be "object" or be left out', where)
    if not any(draft.is_valid(schema) for draft in _DRAFTS):
        error = next(_DRAFTS[0].iter_errors(schema))
        path = "".join(f"[{part!r}]" for part in error.instance_path)
        raise InvalidRequestError(f"{where}{path} is not valid JSON Schema: {error.message[:200]}", where)


@dataclass(frozen=True, slots=True)
class Tools:
    """A request's tools: the candidate of each, and the kind that OpenAI calls its type."""

    candidates: tuple[Candidate, ...]
    kinds: tuple[str, ...]


_TOOLS: TypeAdapter[list[Tool]] = TypeAdapter(Annotated[list[Tool], Field(fail_fast=True)])


def tools_from(items: Any) -> Tools:
    """What `tools`, a parsed JSON value or None, describes.

    Raises:
        InvalidRequestError: not a list of OpenAI's tools, parameters that are no JSON Schema of an object, or two
            tools of one name.
    """
    tools = validated(_TOOLS.validate_python, [] if items is None else items, "tools")
    for position, tool in enumerate(tools):
        if isinstance(tool, FunctionTool) and tool.function.parameters is not None:
            _check_parameters(tool.function.parameters, f"tools[{position}].function.parameters")
    return Tools(candidates_of(tools, "tools"), tuple(tool.type for tool in tools))


def _question(choice: ToolChoice | None, tools: Tools) -> tuple[tuple[Candidate, ...], bool]:
    """What may be called, and whether none may be the answer. One that must be called needs no model."""
    candidates = tools.candidates
    if choice is None or choice == "auto":
        return candidates, True
    if choice == "none":
        return (), True
    if choice == "required":
        if not candidates:
            raise InvalidRequestError("tool_choice is required, but there are no tools; send `tools`", "tool_choice")
        return candidates, False
    named = choice.allowed_tools.tools if isinstance(choice, AllowedChoice) else [choice]
    wanted = {(one.type, one.function.name if isinstance(one, FunctionChoice) else one.custom.name) for one in named}
    known = {(kind, candidate.name): candidate for kind, candidate in zip(tools.kinds, candidates, strict=True)}
    for kind, name in sorted(wanted - known.keys()):
        raise InvalidRequestError(
            f"tool_choice names the {kind} {name[:100]!r}, which is not in `tools`", "tool_choice"
        )
    allowed = tuple(candidate for key, candidate in known.items() if key in wanted)
    return allowed, isinstance(choice, AllowedChoice) and choice.allowed_tools.mode == "auto"


def _request(body: ChatBody, messages: tuple[Message, ...], tools: Tools) -> RouteRequest:
    """The question that the body asks."""
    request = RouteRequest(messages, ranking=bool(body.logprobs))
    if body.catalog is None:
        candidates, allow_none = _question(body.tool_choice, tools)
        return replace(request, candidates=candidates, allow_none=allow_none)
    if body.tool_choice == "none":
        return request
    return replace(
        request,
        allow_none=body.tool_choice != "required",
        catalog=body.catalog,
        include=body.include.filter() if body.include else None,
        exclude=body.exclude.filter() if body.exclude else None,
    )


def routes(service: Service, gateway: Gateway | None = None) -> APIRouter:
    """POST /v1/chat/completions. What names another model than the router goes to the gateway, where there is one."""
    read_tools = Remembered(tools_from, REMEMBERED_BYTES)
    surface = APIRouter(tags=["openai"], route_class=DocumentedRoute)
    streamed = {"text/event-stream": {"schema": {"type": "string"}}}

    @surface.post(
        PATH,
        response_model=ChatAnswer,
        responses={200: {"content": streamed}, **documented(*_ERRORS, path=PATH)},
        openapi_extra=decision_body(ChatBody),
    )
    async def chat(http: Request) -> Response:
        """The tool to call next, or none, in the shape of a chat completion."""
        sent = await http.body()
        if gateway is not None and gateway.takes(value := parse_json(sent)):
            return await gateway.forward(http, value)
        with service.place(http, sent):
            body = parse_object(ChatBody, sent)
            check_model(service.router, body.model)
            _check(body)
            messages, truncated = conversation(body.messages)
            tools = read_tools(body.tools, caller_of(http).salt)
            request = _request(body, messages, tools)
            decision = await service.decide(http, request)
            name_of = await service.names(http, request.catalog)
        answer = completion(
            decision,
            name_of=name_of,
            custom={tool.name for kind, tool in zip(tools.kinds, tools.candidates, strict=True) if kind == "custom"},
            top_logprobs=(body.top_logprobs or 0) if body.logprobs else None,
            truncated=truncated,
        )
        if not body.stream:
            return Response(answer.model_dump_json(), media_type="application/json")
        include_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        return Response("".join(events(answer, include_usage=include_usage)), media_type="text/event-stream")

    return surface
