"""A2A agents that are called as their cards say, and what they answer as a tool's result.

Knows the A2A SDK's client (protocol 0.3 and 1.0, JSON-RPC and HTTP+JSON). What an agent streams is passed on as
progress while it works, and as content when it has ended.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx
from a2a.client import Client, ClientConfig, ClientFactory
from a2a.types.a2a_pb2 import (
    AgentCard,
    Artifact,
    CancelTaskRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    StreamResponse,
    TaskState,
)
from a2a.utils.constants import TransportProtocol
from a2a.utils.errors import A2AError
from google.protobuf.json_format import MessageToDict
from mcp.types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
)

from serving.agent.upstreams import Call, Progress, Upstream, UpstreamError
from serving.catalog.sources.a2a import A2ASource
from serving.catalog.sources.base import SourceError, Watch
from serving.catalog.sources.environment import Environment
from serving.types import Candidate

_FAILED = {TaskState.TASK_STATE_FAILED, TaskState.TASK_STATE_REJECTED, TaskState.TASK_STATE_CANCELED}
_ASKS = {TaskState.TASK_STATE_INPUT_REQUIRED, TaskState.TASK_STATE_AUTH_REQUIRED}
_ENDED = _FAILED | _ASKS | {TaskState.TASK_STATE_COMPLETED}
# How long an agent is given to hear that nobody waits for it any more.
_CANCEL_S = 2.0


class A2AUpstream(A2ASource, Upstream):
    """An agent. It holds no connection of its own between calls; its card is read while it is watched."""

    _agent: Client | None = None
    _http: httpx.AsyncClient | None = None
    _ready: anyio.Event
    _redacting: Environment

    @classmethod
    def of(cls, source: A2ASource) -> A2AUpstream:
        """The same agent."""
        upstream = cls(
            source._entry.url, source._variables, name=source.name, headers=source._entry.headers, limits=source._limits
        )
        upstream._ready = anyio.Event()
        return upstream

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[Watch]:
        """Reads the card, and again when a call has found the agent gone."""
        try:
            async with self._noted(), A2ASource.watch(self) as watch, self._watched(watch) as lasting:
                yield lasting
        finally:
            self._agent = None
            if self._http is not None:
                with anyio.CancelScope(shield=True):
                    await self._http.aclose()
            self.error = self.error or f"{self.name!r} is not connected"

    async def _card(self, environment: Environment) -> tuple[AgentCard, int | None]:
        card, ttl_ms = await super()._card(environment)
        origin = _origin(environment.resolve(self._entry.url))
        # A card may name any place; what the headers hold is for the place that was configured.
        trusted = all(_origin(interface.url) == origin for interface in card.supported_interfaces)
        headers = {name: environment.resolve(value) for name, value in self._entry.headers.items()} if trusted else {}
        http = httpx.AsyncClient(headers=headers, timeout=httpx.Timeout(self._timeout_s, read=None))
        config = ClientConfig(
            httpx_client=http,
            supported_protocol_bindings=[TransportProtocol.JSONRPC, TransportProtocol.HTTP_JSON],
        )
        try:
            agent = ClientFactory(config).create(card)
        except ValueError as error:
            await http.aclose()
            raise SourceError(f"A2A agent {self.name!r} cannot be called: {error}") from None
        before, self._http = self._http, http
        self._redacting, self._agent, self.error = environment, agent, None
        if before is not None:
            await before.aclose()
        self._ready.set()
        return card, ttl_ms

    async def _call(self, candidate: Candidate, arguments: dict[str, Any], call: Call) -> CallToolResult:
        if self.error:
            raise UpstreamError(f"{self.error}; it is tried again by itself")
        await self._ready.wait()
        agent = self._agent
        if agent is None:
            raise UpstreamError(f"{self.name!r} is not connected; it is tried again by itself")
        message = Message(
            message_id=uuid.uuid4().hex,
            role=Role.ROLE_USER,
            parts=[Part(text=arguments["message"])],
            task_id=arguments.get("task_id"),
            context_id=arguments.get("context_id"),
        )
        answer = _Answer()
        try:
            async with aclosing(agent.send_message(SendMessageRequest(message=message))) as events:  # type: ignore[type-var]
                async for event in events:
                    await answer.take(event, call.progress)
        except httpx.TransportError as error:
            self.lose(f"{self.name!r} cannot be reached: {self._redacting.redact(str(error) or type(error).__name__)}")
            raise UpstreamError(f"{self.error}; it is tried again by itself") from None
        except (A2AError, httpx.HTTPError, ValueError) as error:
            words = self._redacting.redact(str(error) or type(error).__name__)
            raise UpstreamError(f"the agent {self.name!r} failed: {words}") from None
        except anyio.get_cancelled_exc_class():
            if answer.task_id and answer.state not in _ENDED:
                with anyio.move_on_after(_CANCEL_S, shield=True):
                    await _cancelled(agent, answer.task_id)
            raise
        return answer.result()


async def _cancelled(agent: Client, task_id: str) -> None:
    # It may have ended, or be one that cannot be cancelled; nobody waits for it either way.
    with suppress(A2AError, httpx.HTTPError):
        await agent.cancel_task(CancelTaskRequest(id=task_id))


class _Answer:
    """What an agent has said so far."""

    def __init__(self) -> None:
        self.task_id = self.context_id = ""
        self.state: int = TaskState.TASK_STATE_UNSPECIFIED
        self._artifacts: dict[str, Artifact] = {}
        self._said: list[Part] = []
        self._told = 0

    async def take(self, event: StreamResponse, progress: Progress | None) -> None:
        """One more event of the stream."""
        news: Iterable[Part] = ()
        match event.WhichOneof("payload"):
            case "message":
                self.context_id = event.message.context_id
                self._said = list(event.message.parts)
                self.state = TaskState.TASK_STATE_COMPLETED
            case "task":
                self.task_id, self.context_id = event.task.id, event.task.context_id
                self.state = event.task.status.state
                self._artifacts |= {artifact.artifact_id: artifact for artifact in event.task.artifacts}
                self._said = list(event.task.status.message.parts)
            case "status_update":
                update = event.status_update
                self.task_id, self.context_id = update.task_id, update.context_id
                self.state = update.status.state
                self._said = list(update.status.message.parts)
                news = self._said
            case "artifact_update":
                artifact = event.artifact_update.artifact
                known = self._artifacts.get(artifact.artifact_id)
                if known is not None and event.artifact_update.append:
                    known.parts.extend(artifact.parts)
                else:
                    self._artifacts[artifact.artifact_id] = artifact
                news = artifact.parts
        text = "".join(part.text for part in news)
        if progress is not None and text:
            self._told += 1
            await progress(self._told, None, text)

    def result(self) -> CallToolResult:
        """All of it as a tool's result. An agent that asks tells its task, for the answer to name."""
        parts = [part for artifact in self._artifacts.values() for part in artifact.parts]
        if not parts or self.state != TaskState.TASK_STATE_COMPLETED:
            parts = [*parts, *self._said]
        content = _joined(parts)
        state = TaskState.Name(self.state).removeprefix("TASK_STATE_").lower().replace("_", "-")
        structured: dict[str, Any] = {"state": state}
        structured |= {"task_id": self.task_id} if self.task_id else {}
        structured |= {"context_id": self.context_id} if self.context_id else {}
        if data := [MessageToDict(part.data) for part in parts if part.WhichOneof("content") == "data"]:
            structured["data"] = data
        if self.state in _ASKS:
            content.append(
                TextContent(text=f"The agent asks for more ({state}); answer it with task_id {self.task_id!r}.")
            )
        return CallToolResult(content=content, structured_content=structured, is_error=self.state in _FAILED)


def _joined(parts: Iterable[Part]) -> list[ContentBlock]:
    """Parts as content; pieces of text that were streamed one after the other are one text."""
    content: list[ContentBlock] = []
    for part in parts:
        block = _block(part)
        if isinstance(block, TextContent) and content and isinstance(content[-1], TextContent):
            content[-1] = TextContent(text=content[-1].text + block.text)
        else:
            content.append(block)
    return content


def _block(part: Part) -> ContentBlock:
    media = part.media_type or "application/octet-stream"
    match part.WhichOneof("content"):
        case "raw":
            data = base64.b64encode(part.raw).decode()
            if media.startswith("image/"):
                return ImageContent(data=data, mime_type=media)
            if media.startswith("audio/"):
                return AudioContent(data=data, mime_type=media)
            uri = f"attachment:{part.filename or uuid.uuid4().hex}"
            return EmbeddedResource(resource=BlobResourceContents(uri=uri, mime_type=media, blob=data))
        case "url":
            return ResourceLink(uri=part.url, name=part.filename or part.url, mime_type=part.media_type or None)
        case "data":
            return TextContent(text=json.dumps(MessageToDict(part.data), ensure_ascii=False))
        case _:
            return TextContent(text=part.text)


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.rpartition("@")[2].lower()
