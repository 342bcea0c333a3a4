"""What a search found, in the shapes in which agents take it.

Knows its own shape, Anthropic's (Messages API, "Tool search tool", custom implementation: a `tool_result` with
`tool_reference` blocks) and OpenAI's (Responses API, "Tool search", client execution: a `tool_search_output`). Does not
know the request.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from prompts.question import CandidateType
from serving.api.answers import TruncationAnswer
from serving.catalog.shapes import NO_PARAMETERS
from serving.types import Candidate, Truncation

Detail = Literal["name", "description", "full"]


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found, with scores, and what is loaded, with scores where the model was asked."""

    found: Sequence[tuple[Candidate, float]]
    loaded: Sequence[tuple[Candidate, float | None]]
    method: str
    none_probability: float | None = None
    truncated: Sequence[Truncation] = ()


class Reference(BaseModel):
    """A candidate. `name` is one that every surface takes and no other candidate searched has."""

    id: str
    name: str
    server: str
    type: CandidateType
    score: Annotated[
        float | None,
        Field(description="Higher is better; the probability where the model was asked; null where nothing scored it."),
    ]
    description: str = ""
    input_schema: dict[str, Any] = {}
    output_schema: dict[str, Any] | None = None
    annotations: dict[str, Any] | None = None
    tools: list[str] = []
    tags: list[str] = []


class SearchAnswer(BaseModel):
    """What was found, best first, and what needs no search because it is always loaded."""

    references: list[Reference]
    loaded: list[Reference]
    method: str
    none_probability: Annotated[
        float | None, Field(description="That neither what was found nor what is loaded fits; only of the router.")
    ] = None
    truncated: list[TruncationAnswer]


class ToolReference(BaseModel):
    """Anthropic's reference to a tool that was sent with `defer_loading`."""

    type: Literal["tool_reference"] = "tool_reference"
    tool_name: str


class ToolResult(BaseModel):
    """Anthropic's result of a search tool of one's own."""

    type: Literal["tool_result"] = "tool_result"
    tool_use_id: str | None
    content: list[ToolReference]


class LoadedFunction(BaseModel):
    """OpenAI's function as the Responses API has it."""

    type: Literal["function"] = "function"
    name: str
    description: str
    parameters: dict[str, Any]
    strict: Literal[False] = False
    defer_loading: Literal[True] = True


class LoadedCustom(BaseModel):
    """OpenAI's tool that takes free text."""

    type: Literal["custom"] = "custom"
    name: str
    description: str
    defer_loading: Literal[True] = True


class ToolSearchOutput(BaseModel):
    """OpenAI's result of a search that the client executes."""

    type: Literal["tool_search_output"] = "tool_search_output"
    execution: Literal["client"] = "client"
    call_id: str | None
    status: Literal["completed"] = "completed"
    tools: list[LoadedFunction | LoadedCustom]


def _reference(candidate: Candidate, name: str, score: float | None, detail: Detail) -> Reference:
    told: dict[str, Any] = {}
    if detail != "name":
        told["description"] = candidate.description
    if detail == "full":
        told["input_schema"] = dict(candidate.input_schema)
        told["output_schema"] = candidate.output_schema and dict(candidate.output_schema)
        told["annotations"] = candidate.annotations and dict(candidate.annotations)
        told["tools"], told["tags"] = list(candidate.tools), list(candidate.tags)
    return Reference(id=candidate.id, name=name, server=candidate.server, type=candidate.type, score=score, **told)


def search_answer(found: Found, name_of: Callable[[Candidate], str], detail: Detail) -> SearchAnswer:
    """What was found in our own shape."""
    answer = SearchAnswer(
        references=[_reference(one, name_of(one), score, detail) for one, score in found.found],
        loaded=[_reference(one, name_of(one), score, detail) for one, score in found.loaded],
        method=found.method,
        truncated=[TruncationAnswer.of(truncation) for truncation in found.truncated],
    )
    if found.none_probability is not None:
        answer.none_probability = found.none_probability
    return answer


def tool_result(found: Found, name_of: Callable[[Candidate], str], call_id: str | None) -> ToolResult:
    """What was found in Anthropic's shape."""
    content = [ToolReference(tool_name=name_of(candidate)) for candidate, _ in found.found]
    return ToolResult(tool_use_id=call_id, content=content)


def tool_search_output(
    found: Found, name_of: Callable[[Candidate], str], call_id: str | None, custom: Collection[str]
) -> ToolSearchOutput:
    """What was found in OpenAI's shape; `custom` holds the ids of tools that take free text."""
    tools = [_loadable(candidate, name_of(candidate), candidate.id in custom) for candidate, _ in found.found]
    return ToolSearchOutput(call_id=call_id, tools=tools)


def _loadable(candidate: Candidate, name: str, custom: bool) -> LoadedFunction | LoadedCustom:
    if custom:
        return LoadedCustom(name=name, description=candidate.description)
    parameters = dict(candidate.input_schema) or NO_PARAMETERS
    return LoadedFunction(name=name, description=candidate.description, parameters=parameters)
