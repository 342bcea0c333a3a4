"""Tools of MCP servers, over stdio or Streamable HTTP, as the official SDK speaks both eras of the protocol.

Knows the SDK and one entry of a mcp.json. Does not know the store or when a server is read again. A server's answers
are untrusted: pages, tools, bytes and seconds are bounded, and an error's words are redacted before anyone sees them.
"""

from __future__ import annotations

import logging
import math
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any, TextIO

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp.client import Transport
from mcp.client.session import ElicitationFnT
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import SubscriptionLost
from mcp.types import Implementation, Tool, ToolListChangedNotification
from mcp.types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from serving.catalog.entry import Server
from serving.catalog.sources.base import (
    DEFAULT_LIMITS,
    Collector,
    Limits,
    Listing,
    Source,
    SourceError,
    Watch,
    candidate_id,
    first_cause,
    plain,
)
from serving.catalog.sources.environment import Environment
from serving.catalog.sources.mcp_config import Entry, StdioEntry, record
from serving.types import Candidate

# Instructions can be a manual; this much of it describes a server.
DESCRIPTION_CHARACTERS = 8_000
# The end of what a process wrote to its standard error, where a traceback says what was wrong.
_STDERR_BYTES = 300
_CLIENT = Implementation(name="light-router", version="1")

# These log whole URLs and what servers sent, in which secrets may stand. What matters of it reaches the catalogue
# as a redacted error.
logging.getLogger("mcp.client").setLevel(logging.CRITICAL)
logging.getLogger("httpx2").setLevel(logging.WARNING)


class McpSource(Source):
    """One MCP server.

    Args:
        entry: how it is reached, from a mcp.json.
        variables: the environment that `${NAME}` refers to.
        description: what is known of it beforehand, such as from a registry; its own words come first.
    """

    def __init__(
        self,
        name: str,
        entry: Entry,
        variables: Mapping[str, str],
        *,
        description: str = "",
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.name = name
        self.record = record(entry)
        self._entry = entry
        self._variables = variables
        self._description = description
        self._limits = limits
        # Answers a server's questions to the user; here is none.
        self._elicitation: ElicitationFnT | None = None

    async def read(self) -> list[Listing]:
        """Connects, lists all tools and disconnects."""
        async with self._connected(listen=False) as watch:
            return await watch.read()

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[Watch]:
        """Keeps the connection, on which the server tells that its tools have changed where it can."""
        async with self._connected(listen=True) as watch:
            yield watch

    @asynccontextmanager
    async def _connected(self, *, listen: bool) -> AsyncIterator[Watch]:
        environment = Environment(self._variables, f"MCP server {self.name!r}")
        connected = False
        # One scope around all of it: the client's own scopes live until the end, so none may end in between.
        scope = anyio.CancelScope(deadline=anyio.current_time() + self._limits.timeout_s)
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as stderr:
            tell = partial(self._told, environment=environment, stderr=stderr)
            try:
                with scope:
                    async with AsyncExitStack() as stack:
                        notices, noticed = anyio.create_memory_object_stream[None](1)
                        stack.enter_context(notices)
                        stack.enter_context(noticed)
                        client = await self._client(stack, environment, stderr, notices)
                        changed = await self._changes(stack, client, noticed, tell) if listen else None
                        connected, scope.deadline = True, math.inf
                        yield Watch(partial(self._read, client, tell), changed)
            except Exception as error:
                cause = first_cause(error)
                # What the caller raised while the connection stood is the caller's.
                if isinstance(cause, SourceError) or (
                    connected and not isinstance(cause, (MCPError, httpx2.HTTPError))
                ):
                    raise cause from None
                raise tell(cause) from None
            if scope.cancelled_caught:
                raise tell(TimeoutError())

    async def _client(
        self, stack: AsyncExitStack, environment: Environment, stderr: TextIO, notices: MemoryObjectSendStream[None]
    ) -> Client:
        async def heard(message: Any) -> None:
            if isinstance(message, ToolListChangedNotification):
                with suppress(anyio.WouldBlock):  # one that waits to be read says the same
                    notices.send_nowait(None)

        client = Client(
            await self._transport(stack, environment, stderr),
            read_timeout_seconds=self._limits.timeout_s,
            message_handler=heard,
            elicitation_callback=self._elicitation,
            client_info=_CLIENT,
            cache=None,
        )
        return await stack.enter_async_context(client)

    async def _transport(self, stack: AsyncExitStack, environment: Environment, stderr: TextIO) -> Transport:
        entry, limits = self._entry, self._limits
        if isinstance(entry, StdioEntry):
            parameters = StdioServerParameters(
                command=environment.resolve(entry.command),
                args=[environment.resolve(argument) for argument in entry.args],
                env=_resolved(environment, entry.env),
                cwd=environment.resolve(entry.cwd) if entry.cwd else None,
                encoding_error_handler="replace",
            )
            return stdio_client(parameters, errlog=stderr)
        url, headers = environment.resolve(entry.url), _resolved(environment, entry.headers)
        if entry.type == "sse":
            return sse_client(url, headers=headers, timeout=limits.timeout_s)
        http = await stack.enter_async_context(_http_client(headers, limits))
        return streamable_http_client(url, http_client=http, max_sse_event_size=limits.total_size)

    async def _changes(
        self,
        stack: AsyncExitStack,
        client: Client,
        noticed: MemoryObjectReceiveStream[None],
        tell: Callable[[BaseException], SourceError],
    ) -> Callable[[], Awaitable[None]] | None:
        """Subscribes before the first listing, so that no change falls between the two."""
        tools = client.server_capabilities.tools
        if tools is None or not tools.list_changed:
            return None
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            return noticed.receive
        try:
            subscription = await stack.enter_async_context(client.listen(tools_list_changed=True))
        except (MCPError, SubscriptionLost):
            return None  # it said that it tells, but does not: it is read at the interval like any other

        async def changed() -> None:
            try:
                async for _ in subscription:
                    return
            except SubscriptionLost as error:
                raise tell(error) from None
            raise tell(SubscriptionLost("the server ended the subscription to its changes"))

        return changed

    async def _read(self, client: Client, tell: Callable[[BaseException], SourceError]) -> list[Listing]:
        try:
            with anyio.fail_after(self._limits.timeout_s):
                return [await self._listing(client)]
        except (MCPError, ValidationError, TimeoutError) as error:
            raise tell(error) from None

    async def _listing(self, client: Client) -> Listing:
        collector = Collector(self.name, self._limits)
        ttl_ms: int | None = None
        cursor: str | None = None
        seen: set[str] = set()
        for _ in range(self._limits.pages):
            page = await client.list_tools(cursor=cursor)
            for tool in page.tools:
                collector.add(_candidate(self.name, tool))
            ttl_ms = page.ttl_ms if ttl_ms is None else min(ttl_ms, page.ttl_ms)
            cursor = page.next_cursor
            if cursor is None:
                break
            if cursor in seen:
                raise SourceError(f"MCP server {self.name!r} gives the same page again and again; its list never ends")
            seen.add(cursor)
        else:
            raise SourceError(f"MCP server {self.name!r} lists more than {self._limits.pages:,} pages of tools")
        description = self._described(client)
        if len(description) > DESCRIPTION_CHARACTERS:
            collector.report(f"its description is cut to {DESCRIPTION_CHARACTERS:,} of {len(description):,} characters")
            description = description[:DESCRIPTION_CHARACTERS]
        # A server of before 2026-07-28, and one that says nothing, has 0: it may not be kept at all.
        return collector.listing(Server(self.name, description, self.record, ttl_ms=ttl_ms or None))

    def _described(self, client: Client) -> str:
        """The server in its own words: title, description, instructions."""
        info = client.server_info
        own = [info.title, info.description] if info else []
        parts = dict.fromkeys(plain(part.strip()) for part in [*own, client.instructions] if part and part.strip())
        return "\n".join(parts) or self._description

    def _told(self, error: BaseException, *, environment: Environment, stderr: TextIO) -> SourceError:
        """The failure in words that may be stored and shown."""
        match error:
            case SourceError():
                return error
            case TimeoutError():
                words = f"did not answer within {self._limits.timeout_s:g} s"
            case ValidationError():
                fault = error.errors(include_url=False, include_input=False)[0]
                words = f"sent an invalid answer: {'.'.join(map(str, fault['loc']))}: {fault['msg']}"
            case FileNotFoundError() | PermissionError():
                words = f"could not be started: {error.strerror}: {error.filename}"
            case MCPError():
                words = f"failed: {error.message}"
            case _:
                words = f"failed: {type(error).__name__}: {error}"
        if said := _end(stderr):
            words += f"; its standard error ends with: {said}"
        return SourceError(environment.redact(f"MCP server {self.name!r} {words}"))


def _candidate(server: str, tool: Tool) -> Candidate:
    title = tool.title or (tool.annotations.title if tool.annotations else None)
    annotations = tool.annotations.model_dump(by_alias=True, exclude_none=True) if tool.annotations else None
    return Candidate(
        id=candidate_id(server, tool.name),
        name=tool.name,
        description=tool.description or title or "",
        server=server,
        input_schema=tool.input_schema,
        output_schema=tool.output_schema,
        annotations=annotations,
    )


def _end(stderr: TextIO) -> str:
    """The end of what the process wrote. It writes at the file's one position, so that may not be moved."""
    descriptor = stderr.fileno()
    start = max(os.fstat(descriptor).st_size - _STDERR_BYTES, 0)
    return os.pread(descriptor, _STDERR_BYTES, start).decode(errors="replace").strip()


def _resolved(environment: Environment, values: Mapping[str, str]) -> dict[str, str]:
    resolved = {name: environment.resolve(value) for name, value in values.items()}
    for name, value in resolved.items():
        environment.hide(value, f"<{name}>")
    return resolved


def _http_client(headers: dict[str, str], limits: Limits) -> httpx2.AsyncClient:
    """A client whose answers end: events are bounded by the transport, everything else here."""

    async def bound(response: httpx2.Response) -> None:
        if response.headers.get("content-encoding", "identity") != "identity":
            raise httpx2.DecodingError("the answer is compressed, which was not asked for", request=response.request)
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            response.stream = _Bounded(response.stream, limits.total_size)

    return httpx2.AsyncClient(
        headers={"Accept-Encoding": "identity", **headers},
        timeout=httpx2.Timeout(limits.timeout_s, read=None),  # a subscription is silent for hours; requests are timed
        event_hooks={"response": [bound]},
    )


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: Any, limit: int) -> None:
        self._stream = stream
        self._limit = limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for part in self._stream:
            size += len(part)
            if size > self._limit:
                raise httpx2.StreamError(f"the answer has more than {self._limit:,} bytes")
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()
