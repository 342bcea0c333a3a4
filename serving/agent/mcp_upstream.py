"""MCP servers that are called over the connection that their lists are read from.

Knows the SDK's client. A result is passed on as it came: nothing of it is checked against the tool's output schema,
which is the host's to do.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Any, TextIO

import anyio
from mcp import Client, MCPError
from mcp.client import Transport
from mcp.client.session import ClientRequestContext
from mcp.shared.message import SessionMessage
from mcp.types import (
    CLIENT_CAPABILITIES_META_KEY,
    INVALID_PARAMS,
    INVALID_REQUEST,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    REQUEST_TIMEOUT,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    ElicitRequestParams,
    ErrorData,
    InputRequiredResult,
    JSONRPCRequest,
    MissingRequiredClientCapabilityErrorData,
)
from pydantic import TypeAdapter, ValidationError

from serving.agent.upstreams import Call, HostFaultError, Result, Upstream, UpstreamError
from serving.catalog.sources.base import Watch
from serving.catalog.sources.environment import Environment
from serving.catalog.sources.mcp import McpSource
from serving.types import Candidate

_RESULT: TypeAdapter[CallToolResult | InputRequiredResult] = TypeAdapter(InputRequiredResult | CallToolResult)
# How the SDK begins to say that no answer can come any more.
_LOST = ("Connection closed", "SSE stream", "Session terminated")
# What the specification keeps for client and server themselves; everything else of `_meta` is the host's to say.
_RESERVED = "io.modelcontextprotocol/"
# Under which a call's host capabilities go from `_call` to the transport, never further.
_HOST_CAPABILITIES = "light-router/hostCapabilities"


class McpUpstream(McpSource, Upstream):
    """A MCP server, connected while it is watched."""

    _client_now: Client | None = None
    _connected_now: anyio.Event
    _redacting: Environment

    @classmethod
    def of(cls, source: McpSource) -> McpUpstream:
        """The same server."""
        upstream = cls(
            source.name,
            source._entry,
            source._variables,
            description=source._description,
            limits=source._limits,
        )
        # So that it says what it lacks; the host, which has the user, is asked by what the call returns.
        upstream._elicitation = _no_user
        upstream._connected_now = anyio.Event()
        return upstream

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[Watch]:
        """Keeps the connection, over which it can be called."""
        try:
            async with self._noted(), McpSource.watch(self) as watch, self._watched(watch) as lasting:
                yield lasting
        finally:
            self._client_now = None
            self._connected_now = anyio.Event()
            self.error = self.error or f"{self.name!r} is not connected"

    async def _client(self, stack: AsyncExitStack, environment: Environment, *arguments: Any) -> Client:
        client = await super()._client(stack, environment, *arguments)
        self._redacting = environment
        self._client_now, self.error = client, None
        self._connected_now.set()
        return client

    async def _transport(self, stack: AsyncExitStack, environment: Environment, stderr: TextIO) -> Transport:
        return _Noticed(await super()._transport(stack, environment, stderr), self)

    async def _call(self, candidate: Candidate, arguments: dict[str, Any], call: Call) -> Result:
        if self.error:
            raise UpstreamError(f"{self.error}; it is tried again by itself")
        await self._connected_now.wait()
        client = self._client_now
        if client is None:
            raise UpstreamError(f"{self.name!r} is not connected; it is tried again by itself")
        meta = {key: value for key, value in call.meta.items() if not key.startswith(_RESERVED)}
        meta.pop("progressToken", None)
        meta[_HOST_CAPABILITIES] = call.capabilities.model_dump(by_alias=True, mode="json", exclude_none=True)
        request = CallToolRequest(
            params=CallToolRequestParams(
                name=candidate.name,
                arguments=arguments,
                input_responses=call.input_responses,
                request_state=call.request_state,
                _meta=meta,
            )
        )
        try:
            # Not `call_tool`, which answers a result that does not fit the output schema with an error.
            return await client.session.send_request(
                request,
                _RESULT,
                request_read_timeout_seconds=self._timeout_s,
                progress_callback=call.progress,
            )
        except MCPError as error:
            raise self._failed(error, call) from None
        except ValidationError as error:
            raise UpstreamError(
                f"{self.name!r} answered something that is no result: {error.error_count()} faults"
            ) from None

    def _failed(self, error: MCPError, call: Call) -> Exception:
        if error.code == REQUEST_TIMEOUT:
            return TimeoutError()
        words = self._redacting.redact(error.message)
        if error.code == MISSING_REQUIRED_CLIENT_CAPABILITY:
            return HostFaultError(f"{self.name!r} refused the call: {words}", error.code, _required(error.data))
        if error.code == INVALID_PARAMS and call.request_state:  # which the host hands back, and no model sees
            return HostFaultError(f"{self.name!r} refused the call: {words}", error.code)
        # Servers use the code that the SDK has for a closed connection for errors of their own too.
        if not self._lost.is_set() and not error.message.startswith(_LOST):
            return UpstreamError(f"{self.name!r} refused the call: {words} (MCP error {error.code})")
        if not self._lost.is_set():
            self.lose(f"{self.name!r} has closed the connection")
        return UpstreamError(
            f"{self.name!r} has closed the connection during the call; whether it had an effect is not known. It is "
            "being connected to again"
        )


def _required(data: Any) -> dict[str, Any] | None:
    """The capabilities that an upstream asks for, and nothing else that it may have written there."""
    try:
        required = MissingRequiredClientCapabilityErrorData.model_validate(data)
    except ValidationError:
        return None
    return required.model_dump(by_alias=True, mode="json", exclude_none=True)


class _Noticed:
    """A transport that tells when its other side has closed."""

    def __init__(self, transport: Transport, upstream: McpUpstream) -> None:
        self._transport = transport
        self._upstream = upstream

    async def __aenter__(self) -> Any:
        read, write = await self._transport.__aenter__()
        return _Read(read, self._upstream), _Write(write)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._transport.__aexit__(kind, error, trace)


class _Read:
    def __init__(self, stream: Any, upstream: McpUpstream) -> None:
        self._stream = stream
        self._upstream = upstream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> _Read:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self._stream.__anext__()  # type: ignore[no-any-return]
        except StopAsyncIteration:
            self._upstream.lose(f"{self._upstream.name!r} has closed the connection")
            raise

    async def __aenter__(self) -> _Read:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *arguments: Any) -> bool | None:
        return await self._stream.__aexit__(*arguments)  # type: ignore[no-any-return]


class _Write:
    """From 2026-07-28 on, capabilities are told with each request: those of the host, for which it is called."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def send(self, item: SessionMessage) -> None:
        if isinstance(item.message, JSONRPCRequest):
            meta = (item.message.params or {}).get("_meta") or {}
            capabilities = meta.pop(_HOST_CAPABILITIES, None)
            if capabilities is not None and CLIENT_CAPABILITIES_META_KEY in meta:
                meta[CLIENT_CAPABILITIES_META_KEY] = capabilities
        await self._stream.send(item)

    async def __aenter__(self) -> _Write:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *arguments: Any) -> bool | None:
        return await self._stream.__aexit__(*arguments)  # type: ignore[no-any-return]


async def _no_user(context: ClientRequestContext, params: ElicitRequestParams) -> ErrorData:
    """Answers a server of before 2026-07-28, which asks in the middle of a call: whom it asks for is not told."""
    return ErrorData(code=INVALID_REQUEST, message="the user cannot be asked over this protocol revision")
