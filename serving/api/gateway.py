"""Gateway mode: a chat completion goes on to another model, with only the tools that may be right.

Knows OpenAI's shape as far as tools and messages go; everything else of a request passes as it came, and the answer
passes as it comes. An agent changes nothing but its base URL. What keeps the router from cutting (a shape that it does
not know, an engine that is down) keeps no request from being answered: it goes on whole, and the header
`x-light-router-tools` says why.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from serving.api.messages import messages_from
from serving.api.service import Service
from serving.catalog.shapes import function_tool
from serving.config import GatewayConfig
from serving.connections import CONNECT_S, LeavableTransport
from serving.types import (
    BusyError,
    Candidate,
    Decision,
    EngineError,
    EngineTimeoutError,
    EngineUnavailableError,
    InvalidRequestError,
    RouteRequest,
    TooLargeError,
)

logger = logging.getLogger(__name__)

HEADER = "x-light-router-tools"
# Headers of the upstream's answer that describe the connection, or a body that was decoded here.
_OWN_HEADERS = {"connection", "keep-alive", "transfer-encoding", "content-length", "content-encoding", "x-request-id"}
# What a request without tools may not say.
_OF_TOOLS = ("tools", "tool_choice", "parallel_tool_calls")


@dataclass(frozen=True, slots=True)
class Cut:
    """The tools that go on, and what the answer's header says of them."""

    tools: list[Any]
    said: str


class Gateway:
    """Forwards chat completions to `config.url`.

    Args:
        service: decides which tools may be right.
        config: where requests go, and how they are cut.
        transport: how the upstream is reached; by default TCP.
    """

    def __init__(
        self, service: Service, config: GatewayConfig, *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._service = service
        self._config = config
        self._url = f"{(config.url or '').rstrip('/')}/chat/completions"
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(config.timeout_s, connect=CONNECT_S),
            trust_env=False,
            transport=transport or LeavableTransport(),
        )

    async def close(self) -> None:
        """Give up the upstream's connections."""
        await self._client.aclose()

    def takes(self, body: Any) -> bool:
        """Whether a request is for the upstream: it names a model that does not decide here."""
        router = self._service.router
        return isinstance(body, dict) and body.get("model") not in {router.model, router.base_model}

    async def forward(self, http: Request, body: dict[str, Any]) -> Response:
        """The upstream's answer, whatever its status, streamed as it comes.

        Raises:
            InvalidRequestError: a catalogue is named together with tools.
            NotFoundError: there is no such catalogue.
            EngineUnavailableError: the upstream cannot be reached.
            EngineTimeoutError: it did not begin to answer in time.
        """
        if "catalog" in body and body.get("tools"):
            raise InvalidRequestError("send either `tools` or `catalog`, not both", "catalog")
        cut = await self._cut(http, body)
        sent = {key: value for key, value in body.items() if key not in {"catalog", *_OF_TOOLS}}
        if cut.tools:
            sent |= {key: body[key] for key in _OF_TOOLS if key in body} | {"tools": cut.tools}
        request = self._client.build_request("POST", self._url, content=to_json(sent), headers=self._headers(http))
        try:
            answer = await self._client.send(request, stream=True)
        except httpx.TimeoutException as error:
            raise EngineTimeoutError(f"the model at {self._url} did not answer in time") from error
        except httpx.TransportError as error:
            raise EngineUnavailableError(f"the model at {self._url} cannot be reached: {error}") from error
        headers = {key: value for key, value in answer.headers.items() if key.lower() not in _OWN_HEADERS}
        return StreamingResponse(_body(answer), answer.status_code, {**headers, HEADER: cut.said})

    def _headers(self, http: Request) -> dict[str, str]:
        """The profile's key; or the caller's own, where this server asks for none itself."""
        headers = {"content-type": "application/json"}
        if self._config.api_key is not None:
            headers["authorization"] = f"Bearer {self._config.api_key.get_secret_value()}"
        elif not self._service.keys and "authorization" in http.headers:
            headers["authorization"] = http.headers["authorization"]
        return headers

    async def _cut(self, http: Request, body: dict[str, Any]) -> Cut:
        if "catalog" in body:
            return await self._from_catalog(http, body)
        tools = body.get("tools")
        if not isinstance(tools, list) or not tools:
            return Cut([], "none were sent")
        functions = {number: function for number, tool in enumerate(tools) if (function := _function(tool))}
        if len(functions) <= self._config.least or body.get("tool_choice") == "none":
            return Cut(tools, f"{len(tools)} of {len(tools)}")
        candidates = tuple(
            Candidate(str(number), function["name"], function.get("description") or "",
                      input_schema=function.get("parameters") or {})
            for number, function in functions.items()
        )  # fmt: skip
        try:
            decision = await self._decide(http, body, RouteRequest((), candidates))
        except (InvalidRequestError, EngineError, BusyError, TooLargeError, TypeError, ValueError) as error:
            logger.warning("tools are not cut: %s", error)
            return Cut(tools, f"{len(tools)} of {len(tools)}: not cut, {type(error).__name__}")
        if decision.degraded:
            return Cut(tools, f"{len(tools)} of {len(tools)}: not cut, the engine is down")
        wanted = {candidate.id for candidate in self._exposed(decision)}
        named = _named(body.get("tool_choice"))
        kept = [
            tool
            for number, tool in enumerate(tools)
            if number not in functions or str(number) in wanted or functions[number]["name"] in named
        ]
        return Cut(kept, f"{len(kept)} of {len(tools)}")

    async def _from_catalog(self, http: Request, body: dict[str, Any]) -> Cut:
        decision = await self._decide(http, body, RouteRequest((), catalog=str(body["catalog"])))
        name_of = await self._service.names(http, str(body["catalog"]))
        tools = [function_tool(candidate, name_of(candidate)) for candidate in self._exposed(decision)]
        return Cut(tools, f"{len(tools)} of {decision.prefilter.considered}")

    async def _decide(self, http: Request, body: dict[str, Any], request: RouteRequest) -> Decision:
        messages, _ = messages_from(body.get("messages"))
        asked = RouteRequest(
            messages,
            request.candidates,
            catalog=request.catalog,
            allow_none=body.get("tool_choice") != "required",
            coverage=self._config.coverage,
        )
        with self._service.place(http, await http.body()):
            return await self._service.decide(http, asked)

    def _exposed(self, decision: Decision) -> list[Candidate]:
        """The prediction set, and at least the most probable ones."""
        wanted = set(decision.prediction_set or ())
        wanted |= {ranked.candidate.id for ranked in decision.ranking[: self._config.least]}
        return [ranked.candidate for ranked in decision.ranking if ranked.candidate.id in wanted]


async def _body(answer: httpx.Response) -> AsyncIterator[bytes]:
    """The answer's bytes; the upstream's connection is given up when nobody reads on."""
    try:
        async for part in answer.aiter_bytes():
            yield part
    finally:
        await answer.aclose()


def _function(tool: Any) -> dict[str, Any] | None:
    """The inside of a function tool; None of any other, which always passes."""
    function = tool.get("function") if isinstance(tool, dict) else None
    well_formed = isinstance(function, dict) and isinstance(function.get("name"), str) and function["name"]
    return function if well_formed else None


def _named(choice: Any) -> set[str]:
    """The functions that `tool_choice` names."""
    if not isinstance(choice, dict):
        return set()
    allowed = choice.get("allowed_tools")
    choices = allowed.get("tools", []) if isinstance(allowed, dict) else [choice]
    functions = (one.get("function") for one in choices if isinstance(one, dict))
    return {str(function.get("name")) for function in functions if isinstance(function, dict)}
