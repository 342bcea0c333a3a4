"""Threads: what was asked, routed, executed and returned, so that the next decision reads it as history.

Knows the catalogue's database and messages. Does not know MCP or who its callers are beyond a name. A handle is a
secret of its caller: the database holds only its hash, and no other caller's handle works.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from mcp.types import CallToolResult
from pydantic_core import from_json, to_json
from sqlalchemy import Column, Float, Index, Table, Text
from sqlalchemy.ext.asyncio import AsyncConnection

from serving.catalog.database import Database
from serving.catalog.sources.base import plain
from serving.catalog.tables import METADATA
from serving.types import ForbiddenError, Message, ToolCall

THREADS = Table(
    "agent_threads",
    METADATA,
    Column("digest", Text, primary_key=True),
    Column("principal", Text, nullable=False),
    Column("expires", Float, nullable=False),
    # JSON: [[role, content, name, [[called name, arguments], ...]], ...]
    Column("messages", Text, nullable=False),
    # JSON: {id: content hash when it was routed}
    Column("routed", Text, nullable=False),
)
Index("agent_threads_expires", THREADS.c.expires)

_HANDLE_BYTES = 24
# Decisions of a thread that are remembered.
_ROUTED = 100
# Expired threads are swept at most this often.
_SWEEP_S = 60.0


@dataclass(slots=True)
class Thread:
    """What is remembered. `routed` holds the content hash that each candidate had when it was last shown."""

    messages: list[Message] = field(default_factory=list)
    routed: dict[str, str] = field(default_factory=dict)

    def ask(self, task: str) -> None:
        """The user wants this now. Said again, it stays the question to which what happened since belongs."""
        if next((message.content for message in reversed(self.messages) if message.role == "user"), None) != task:
            self.messages.append(Message("user", task))

    def show(self, id_: str, content_hash: str) -> None:
        """A candidate was shown as it is now."""
        self.routed.pop(id_, None)
        self.routed[id_] = content_hash


class Threads(Database):
    """Threads in the catalogue's database.

    Args:
        url: the database's.
        ttl_s: how long a thread is kept that nobody uses.
        characters: of one thread that are kept; the oldest steps go first, the current question last.

    Every method but `close` raises StoreError where the database cannot be used.
    """

    def __init__(self, url: str, *, ttl_s: float = 86_400.0, characters: int = 24_000) -> None:
        super().__init__(url)
        self._ttl_s = ttl_s
        self._characters = characters
        self._swept = 0.0

    async def create(self, principal: str, thread: Thread) -> str:
        """A new thread's handle."""
        handle = secrets.token_urlsafe(_HANDLE_BYTES)
        now = time.time()
        row = {"digest": _digest(handle), "principal": principal, **self._row(thread, now)}
        with self._available():
            async with self._writers.begin() as connection:
                if now - self._swept > _SWEEP_S:
                    await connection.execute(sa.delete(THREADS).where(THREADS.c.expires < now))
                    self._swept = now
                await connection.execute(sa.insert(THREADS).values(row))
        return handle

    async def get(self, handle: str, principal: str) -> Thread:
        """The caller's thread.

        Raises:
            ForbiddenError: there is none of this handle, or it is another caller's; which of the two is not told.
        """
        async with self._reading() as connection:
            return await self._thread(connection, handle, principal)

    @asynccontextmanager
    async def change(self, handle: str, principal: str) -> AsyncIterator[Thread]:
        """The caller's thread, to be changed while no one else can. Raises as `get`."""
        with self._available():
            async with self._writers.begin() as connection:
                thread = await self._thread(connection, handle, principal, lock=True)
                yield thread
                changed = sa.update(THREADS).where(THREADS.c.digest == _digest(handle))
                await connection.execute(changed.values(self._row(thread, time.time())))

    async def delete(self, handle: str, principal: str) -> None:
        """Forget the caller's thread. Raises as `get`."""
        own = (THREADS.c.digest == _digest(handle)) & (THREADS.c.principal == principal)
        with self._available():
            async with self._writers.begin() as connection:
                if not (await connection.execute(sa.delete(THREADS).where(own))).rowcount:
                    raise _refused()

    @staticmethod
    async def _thread(connection: AsyncConnection, handle: str, principal: str, *, lock: bool = False) -> Thread:
        statement = sa.select(THREADS).where(
            THREADS.c.digest == _digest(handle), THREADS.c.principal == principal, THREADS.c.expires > time.time()
        )
        row = (await connection.execute(statement.with_for_update() if lock else statement)).first()
        if row is None:
            raise _refused()
        messages = [
            Message(role, content, tuple(ToolCall(*call) for call in calls), name)
            for role, content, name, calls in from_json(row.messages)
        ]
        return Thread(messages, from_json(row.routed))

    def _row(self, thread: Thread, now: float) -> dict[str, Any]:
        messages = [
            [message.role, message.content, message.name, [[call.name, call.arguments] for call in message.tool_calls]]
            for message in _bounded(thread.messages, self._characters)
        ]
        return {
            "expires": now + self._ttl_s,
            "messages": plain(to_json(messages).decode()),
            "routed": to_json(dict(list(thread.routed.items())[-_ROUTED:])).decode(),
        }


def step(candidate_id: str, arguments: Mapping[str, Any], result: CallToolResult, characters: int) -> list[Message]:
    """An execution as the conversation that a router was trained on: the assistant's call and the tool's answer."""
    call = ToolCall(candidate_id, digest(json.dumps(arguments, ensure_ascii=False), characters))
    failed = "error: " if result.is_error else ""
    return [
        Message("assistant", "", (call,)),
        Message("tool", failed + digest(result_text(result), characters), (), candidate_id),
    ]


def digest(text: str, characters: int) -> str:
    """The text's beginning and end where it is longer, with what was left out told in between."""
    text = plain(text)
    if len(text) <= characters:
        return text
    tail = characters // 4
    return f"{text[: characters - tail]}[... {len(text) - characters:,} characters ...]{text[len(text) - tail :]}"


def result_text(result: CallToolResult) -> str:
    """What a result says, and of what it shows the kind."""
    lines: list[str] = []
    for block in result.content:
        match block.type:
            case "text":
                lines.append(block.text)
            case "image" | "audio":
                lines.append(f"[{block.type} {block.mime_type}]")
            case "resource_link":
                lines.append(f"[link to {block.uri}]")
            case "resource":
                text = getattr(block.resource, "text", None)
                lines.append(text if text is not None else f"[resource {block.resource.uri}]")
    if not lines and result.structured_content is not None:
        lines.append(json.dumps(result.structured_content, ensure_ascii=False))
    return "\n".join(lines)


def _bounded(messages: Sequence[Message], characters: int) -> list[Message]:
    """The newest messages that fit, and the question they belong to."""
    size = 0
    start = len(messages)
    while start and (size + _size(messages[start - 1])) <= characters:
        start -= 1
        size += _size(messages[start])
    # A tool's answer without its call says nothing.
    while start < len(messages) and messages[start].role == "tool":
        start += 1
    kept = list(messages[start:])
    question = next((at for at in range(len(messages) - 1, -1, -1) if messages[at].role == "user"), None)
    if question is not None and question < start:
        asked = messages[question]
        kept.insert(0, Message("user", digest(asked.content, characters // 2)))
    return kept


def _size(message: Message) -> int:
    return len(message.content) + sum(len(call.name) + len(call.arguments) for call in message.tool_calls)


def _digest(handle: str) -> str:
    return hashlib.blake2b(handle.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()


def _refused() -> ForbiddenError:
    return ForbiddenError(
        "this thread is not one of yours, has expired or was deleted; leave `thread` out for an answer without "
        "history, or take the new handle that `route` returns"
    )
