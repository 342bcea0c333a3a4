"""One reader for conversations: OpenAI's message shape, and the shorter one of our own histories.

Knows roles, content parts and tool calls. Does not know what is done with them. What a message carries besides text
(images, audio, files) is replaced by a short marker and reported, never silently dropped.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, TypeAdapter

from prompts.question import Role
from serving.types import Message, ToolCall, Truncation
from serving.validation import validated

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


class _Shape(BaseModel):
    """Fields that are not read may stand there."""

    model_config = ConfigDict(strict=True)


class Part(_Shape):
    """A part of a message's content. `text` is what a text part says, `refusal` what a refusal says."""

    type: str = Field(max_length=64)
    text: str | None = None
    refusal: str | None = None


class Call(_Shape):
    """Our call, and the inside of OpenAI's. Arguments are JSON text, or an object as some frameworks keep it."""

    name: str
    arguments: str | dict[str, Any] | None = None

    def tool_call(self) -> ToolCall:
        """The call as the prompt shows it."""
        if isinstance(self.arguments, dict):
            return ToolCall(self.name, json.dumps(self.arguments, ensure_ascii=False))
        return ToolCall(self.name, self.arguments or "")


class FunctionCallItem(_Shape):
    """OpenAI's call of a function."""

    id: str | None = None
    function: Call

    def tool_call(self) -> ToolCall:
        """The call as the prompt shows it."""
        return self.function.tool_call()


class FreeText(_Shape):
    """The inside of OpenAI's call of a tool that takes free text."""

    name: str
    input: str = ""


class CustomCallItem(_Shape):
    """OpenAI's call of a tool that takes free text."""

    id: str | None = None
    custom: FreeText

    def tool_call(self) -> ToolCall:
        """The call as the prompt shows it."""
        return ToolCall(self.custom.name, self.custom.input)


class PlainCallItem(Call):
    """Our call, with the id that a result may refer to."""

    id: str | None = None


def _call_shape(item: Any) -> str:
    return next((key for key in ("function", "custom") if isinstance(item, dict) and key in item), "plain")


CallItem = Annotated[
    Annotated[FunctionCallItem, Tag("function")]
    | Annotated[CustomCallItem, Tag("custom")]
    | Annotated[PlainCallItem, Tag("plain")],
    Discriminator(_call_shape),
]


class MessageItem(_Shape):
    """One message. A tool message's `name` may be left out where its `tool_call_id` tells which call it answers."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Annotated[list[Part], Field(fail_fast=True)] | None = None
    refusal: str | None = None
    name: str | None = None
    tool_calls: list[CallItem] | None = Field(default=None, fail_fast=True)
    function_call: Call | None = None
    tool_call_id: str | None = None


_MESSAGES: TypeAdapter[list[MessageItem]] = TypeAdapter(Annotated[list[MessageItem], Field(fail_fast=True)])


def messages_from(items: Any, where: str = "messages") -> tuple[tuple[Message, ...], list[Truncation]]:
    """The conversation that a parsed JSON list describes, and what of it is not text.

    `where` is the list's path in the request, for messages.

    Raises:
        InvalidRequestError: the list has another shape.
    """
    return conversation(validated(_MESSAGES.validate_python, items, where))


def conversation(items: Sequence[MessageItem]) -> tuple[tuple[Message, ...], list[Truncation]]:
    """As `messages_from`, of messages already read."""
    truncated: list[Truncation] = []
    messages: list[Message] = []
    called: dict[str, str] = {}
    for position, item in enumerate(items):
        calls = [call.tool_call() for call in item.tool_calls or ()]
        called |= {call.id: made.name for call, made in zip(item.tool_calls or (), calls, strict=True) if call.id}
        if item.function_call:
            calls.append(item.function_call.tool_call())
        role = _ROLES[item.role]
        content = _text(item.content, f"messages[{position}].content", truncated) or item.refusal or ""
        # A name on any other message is the participant's, not a tool's.
        name = item.name or called.get(item.tool_call_id or "") if role == "tool" else None
        messages.append(Message(role, content, tuple(calls), name))
    return tuple(messages), truncated


def _text(content: str | list[Part] | None, where: str, truncated: list[Truncation]) -> str:
    """The text of a content, its parts on lines of their own."""
    if content is None or isinstance(content, str):
        return content or ""
    lines: list[str] = []
    for number, part in enumerate(content):
        text = part.text if part.text is not None else part.refusal
        if text is None:
            # Its size in tokens is unknown: 0 of 0.
            truncated.append(Truncation(f"{where}[{number}]", 0, 0))
        lines.append(text if text is not None else f"[{part.type}]")
    return "\n".join(lines)
