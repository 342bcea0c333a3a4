"""One reader for the shapes in which the field describes a tool, an agent or a skill.

Knows OpenAI's tools (chat completions nest them, Responses does not), Anthropic's, MCP's and the lines of our own
catalogue. Does not know where they came from or what will be done with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, TypeAdapter

from serving.types import Candidate, InvalidRequestError
from serving.validation import validated

Schema = dict[str, Any]
Texts = Annotated[list[str], Field(fail_fast=True)]


# The schema of a tool that takes nothing.
NO_PARAMETERS: Schema = {"type": "object", "properties": {}}


def function_tool(candidate: Candidate, name: str, description: str | None = None) -> dict[str, Any]:
    """The candidate as OpenAI's chat completions take it, under a name that they take."""
    function = {
        "name": name,
        "description": candidate.description if description is None else description,
        "parameters": dict(candidate.input_schema) or NO_PARAMETERS,
    }
    return {"type": "function", "function": function}


class _Shape(BaseModel):
    """Fields that are not read, such as MCP's `_meta` or OpenAI's `strict`, may stand there."""

    model_config = ConfigDict(strict=True)


class Function(_Shape):
    """The inside of OpenAI's nested tool."""

    name: str = Field(min_length=1)
    description: str | None = None
    parameters: Schema | None = None


class FunctionTool(_Shape):
    """OpenAI, chat completions: `{"type": "function", "function": {...}}`."""

    type: Literal["function"] = "function"
    function: Function

    def candidate(self) -> Candidate:
        """The candidate this describes."""
        name, description = self.function.name, self.function.description or ""
        return Candidate(name, name, description, input_schema=self.function.parameters or {})


class Custom(_Shape):
    """The inside of OpenAI's tool that takes free text."""

    name: str = Field(min_length=1)
    description: str | None = None


class CustomTool(_Shape):
    """OpenAI, chat completions: `{"type": "custom", "custom": {...}}`."""

    type: Literal["custom"] = "custom"
    custom: Custom

    def candidate(self) -> Candidate:
        """The candidate this describes."""
        return Candidate(self.custom.name, self.custom.name, self.custom.description or "")


class FlatTool(_Shape):
    """Everything whose name stands at the top: catalogue lines, MCP, Anthropic, and OpenAI's Responses.

    The schema of the input is `input_schema` (catalogue, Anthropic), `inputSchema` (MCP) or `parameters` (OpenAI).
    """

    id: str | None = Field(default=None, min_length=1)
    type: Literal["tool", "agent", "skill", "server", "function", "custom"] = "tool"
    server: str | None = None
    name: str = Field(min_length=1)
    description: str | None = None
    input_schema: Schema | None = None
    mcp_input_schema: Schema | None = Field(default=None, alias="inputSchema")
    parameters: Schema | None = None
    output_schema: Schema | None = None
    mcp_output_schema: Schema | None = Field(default=None, alias="outputSchema")
    annotations: Schema | None = None
    tools: Texts | None = None
    tags: Texts | None = None

    def candidate(self) -> Candidate:
        """The candidate this describes."""
        return Candidate(
            id=self.id or self.name,
            name=self.name,
            description=self.description or "",
            type=self.type if self.type in {"agent", "skill"} else "tool",
            server=self.server or "",
            input_schema=self.input_schema or self.mcp_input_schema or self.parameters or {},
            output_schema=self.output_schema or self.mcp_output_schema,
            annotations=self.annotations,
            tools=tuple(self.tools or ()),
            tags=tuple(self.tags or ()),
        )


def shape_of(item: Any) -> str:
    """Tells the shapes apart. A flat one may have a field of the nested ones' names, but then also a name."""
    if isinstance(item, dict) and "name" not in item:
        return next((nested for nested in ("function", "custom") if nested in item), "flat")
    return "flat"


Shape = Annotated[
    Annotated[FunctionTool, Tag("function")] | Annotated[CustomTool, Tag("custom")] | Annotated[FlatTool, Tag("flat")],
    Discriminator(shape_of),
]
_SHAPES: TypeAdapter[list[Shape]] = TypeAdapter(Annotated[list[Shape], Field(fail_fast=True)])


def candidates_from(items: Any, where: str = "candidates") -> tuple[Candidate, ...]:
    """The candidates that a parsed JSON list describes, in its order.

    An id that is absent is the name. Lines of type "server" describe a server and are no candidates. `where` is the
    list's path in the request, for messages.

    Raises:
        InvalidRequestError: not a list of known shapes, or two candidates with one id.
    """
    return candidates_of(validated(_SHAPES.validate_python, items, where), where)


def candidates_of(shapes: Sequence[Shape], where: str = "candidates") -> tuple[Candidate, ...]:
    """The candidates of shapes already read, in their order. Raises as `candidates_from` where two share an id."""
    first: dict[str, int] = {}
    candidates: list[Candidate] = []
    for position, shape in enumerate(shapes):
        if shape.type == "server":
            continue
        candidate = shape.candidate()
        if first.setdefault(candidate.id, position) != position:
            raise InvalidRequestError(
                f"{where}[{first[candidate.id]}] and {where}[{position}] have the same id "
                f"{candidate.id[:100]!r}; give each an id of its own",
                f"{where}[{position}].id",
            )
        candidates.append(candidate)
    return tuple(candidates)
