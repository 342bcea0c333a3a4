"""What a routing question is made of: messages and candidates.

Plain values, already validated by the surface that parsed them. Nothing here knows how they are worded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]
CandidateType = Literal["tool", "agent", "skill"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the assistant made: the candidate's name or id, and its arguments as JSON text."""

    name: str
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the conversation. A tool message may carry the name of the tool that answered."""

    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    name: str | None = None


@dataclass(frozen=True)
class Candidate:
    """A tool, agent or skill that may be chosen. `id` is opaque: never parsed, never shown to the model.

    `tools` names an agent's own tools or skills. Hash and equality go by content, so a candidate may key a cache.
    """

    id: str
    name: str
    description: str = ""
    type: CandidateType = "tool"
    server: str = ""
    input_schema: Mapping[str, Any] = field(default_factory=dict, hash=False)
    output_schema: Mapping[str, Any] | None = field(default=None, hash=False)
    annotations: Mapping[str, Any] | None = field(default=None, hash=False)
    tools: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()

    @property
    def parameters(self) -> list[tuple[str, bool]]:
        """Top-level parameter names in the schema's order, each with whether it is required."""
        properties = self.input_schema.get("properties")
        if not isinstance(properties, Mapping):
            return []
        required = self.input_schema.get("required")
        names = set(map(str, required)) if isinstance(required, Sequence) and not isinstance(required, str) else set()
        return [(str(name), str(name) in names) for name in properties]

    @cached_property
    def content_hash(self) -> str:
        """Hex digest of what a model or index can read of this candidate; the id is not part of it."""
        # repr keeps the parts apart whatever characters they hold, in three quarters of json.dumps' time.
        text = repr((self.type, self.server, self.name, self.description, self.parameters, self.tools))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def query_position(messages: Sequence[Message]) -> int | None:
    """Position of the query, the latest user message; None where no user has spoken."""
    return next((i for i in range(len(messages) - 1, -1, -1) if messages[i].role == "user"), None)
