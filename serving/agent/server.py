"""The agent as an MCP server: `route`, `execute`, and whatever is pinned beside them.

Knows the SDK's server and how a decision or an error is worded for a model. Does not know transports. An error that a
model can mend is a result with `isError`, so that it reads what would be right; what only its host can mend is an error
of the protocol.

`execute` is one tool for whatever stands behind it, and annotations are read before anyone knows what it will call: so
it is marked destructive and open-world, always. What a candidate says of itself stands in the decision, under
`annotations`, and on the tool of its own that a pinned candidate has.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from mcp import MCPError
from mcp.server.caching import CacheHint
from mcp.server.lowlevel.server import Server
from mcp.types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)
from starlette.requests import Request

from serving.agent.agent import LightRoutingAgent, Routed
from serving.agent.arguments import Execution, as_object, read_execution, shown_schema
from serving.agent.description import summary
from serving.agent.errors import MisnamedError, Nearest, RedescribedError, UnfitArgumentsError
from serving.agent.passing import Context, call_of, modern, passed
from serving.agent.upstreams import HostFaultError, Result
from serving.api.auth import caller_of
from serving.api.messages import messages_from
from serving.api.models import VERSION
from serving.api.route import FilterBody
from serving.keys import ANYONE, Caller
from serving.types import Candidate, Filter, InvalidRequestError, LightRouterError, Ranked
from serving.validation import parse_json, validated

logger = logging.getLogger(__name__)

INSTRUCTIONS = (
    "Two tools stand for many. For each step call `route` with what is to be done, then `execute` with the "
    "candidate_id it returns and arguments that fit its input_schema. Pass the thread handle on."
)
# Hosts may keep the list for so long; what stands behind changes rarely.
_LIST_TTL_MS = 60_000
_MOST_ALTERNATIVES = 20
# Characters of a candidate's description that an answer shows, for the decision and for an alternative.
_DESCRIPTION = 2_000
_SHORT_DESCRIPTION = 160
_STRINGS = {"type": "array", "items": {"type": "string"}}
_THREAD = {"type": "string", "description": "Handle that route returned."}
ROUTE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "task": {"type": "string", "description": "What is to be done next, in plain words."},
        "thread": _THREAD,
        "history": {
            "type": "array",
            "items": {"type": "object"},
            "description": "Messages so far (role, content); not needed with thread.",
        },
        "k": {"type": "integer", "minimum": 0, "maximum": _MOST_ALTERNATIVES, "description": "Alternatives wanted."},
        "filters": {
            "type": "object",
            "properties": {"servers": _STRINGS, "types": _STRINGS, "tags": _STRINGS, "ids": _STRINGS},
        },
    },
    "required": ["task"],
}
EXECUTE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "candidate_id": {"type": "string", "description": "As route returned it."},
        "arguments": {"type": "object", "description": "As the candidate's input_schema says."},
        "thread": _THREAD,
    },
    "required": ["candidate_id", "arguments"],
}
_TASKS = ("task", "query", "goal")


def route_tool(behind: str) -> Tool:
    """`route`, whose description tells what can be found."""
    return Tool(
        name="route",
        title="Find a tool or agent",
        description=(
            f"Finds the right tool, agent or skill for the next step. {behind} Use it whenever no other tool at hand "
            "does the step, and again for every new step. Returns the best candidate with its input_schema, to be "
            "called through execute, or none with a reason."
        ),
        input_schema=ROUTE_SCHEMA,
        annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False),
    )


def execute_tool() -> Tool:
    """`execute`."""
    return Tool(
        name="execute",
        title="Call what was found",
        description=(
            "Calls a candidate that route returned and gives back its result unchanged. If the arguments do not fit, "
            "nothing is called and the answer says what would."
        ),
        input_schema=EXECUTE_SCHEMA,
        annotations=ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=True),
    )


def mcp_server(agent: LightRoutingAgent) -> Server[Any]:
    """The agent as a server, for any transport."""

    async def list_tools(context: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        caller = caller_in(context)
        rows = await agent.visible(caller)
        pinned = await agent.pinned(caller)
        return ListToolsResult(
            tools=[
                route_tool(summary(rows)),
                execute_tool(),
                *(_pinned_tool(name, candidate) for name, candidate in pinned.items()),
            ]
        )

    async def call_tool(context: Context, params: CallToolRequestParams) -> Result:
        try:
            return await answer(context, params)
        except LightRouterError as error:
            if isinstance(error, HostFaultError) and modern(context):
                raise MCPError(code=error.code, message=str(error), data=error.data) from None
            return _error(error)

    async def answer(context: Context, params: CallToolRequestParams) -> Result:
        given, caller = params.arguments or {}, caller_in(context)
        if params.name == "route":
            return await _route(agent, given, caller, _request_id(context))
        if params.name == "execute":
            execution = read_execution(given)
        else:
            pinned = await agent.pinned(caller)
            if params.name not in pinned:
                raise MCPError(
                    code=INVALID_PARAMS, message=f"Unknown tool: {params.name[:100]}; call route to find one"
                )
            execution = Execution(pinned[params.name].id, given, None)
        result = await agent.execute(execution, caller=caller, call=call_of(context, params))
        return passed(context, result)

    return Server(
        "light-router",
        version=VERSION,
        title="Light Routing Agent",
        instructions=INSTRUCTIONS,
        cache_hints={"tools/list": CacheHint(ttl_ms=_LIST_TTL_MS)},
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def caller_in(context: Context) -> Caller:
    """Whose key came with the request; anyone over stdio, and where no keys are asked for."""
    request = context.request
    return caller_of(request) if isinstance(request, Request) else ANYONE


# route


def _request_id(context: Context) -> str | None:
    """The HTTP request's; None over stdio."""
    return getattr(context.request.state, "request_id", None) if isinstance(context.request, Request) else None


async def _route(
    agent: LightRoutingAgent, given: Mapping[str, Any], caller: Caller, request_id: str | None
) -> CallToolResult:
    task = next((given[word] for word in _TASKS if isinstance(given.get(word), str)), None)
    if task is None:
        raise InvalidRequestError('there is no task; call route with {"task": "what is to be done next"}', "task")
    history = given.get("history")
    if isinstance(history, str) and history.strip():
        history = parse_json(history, "history")
    include = _filter(given.get("filters"))
    wanted = _alternatives(given.get("k"), agent.config.alternatives)
    thread = given.get("thread")
    if thread is not None and not isinstance(thread, str):
        raise InvalidRequestError("thread should be the string that route returned", "thread")
    routed = await agent.route(
        task,
        caller=caller,
        thread=thread or None,
        history=messages_from(history, "history")[0] if history else None,
        include=include,
        alternatives=wanted,
        request_id=request_id,
    )
    told = _told(routed, wanted)
    return CallToolResult(content=[TextContent(text=_worded(told))], structured_content=told)


def _filter(given: Any) -> Filter | None:
    fields = as_object(given, "filters")
    if not fields:
        return None
    # One name in place of a list of one is unambiguous.
    lists = {key: [value] if isinstance(value, str) else value for key, value in fields.items()}
    return validated(FilterBody.model_validate, lists, "filters").filter()


def _alternatives(given: Any, default: int) -> int:
    if isinstance(given, str) and given.strip().isdecimal():
        given = int(given)
    if given is None:
        return default
    if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given <= _MOST_ALTERNATIVES:
        raise InvalidRequestError(f"k should be a whole number from 0 to {_MOST_ALTERNATIVES}", "k")
    return given


def _told(routed: Routed, alternatives: int) -> dict[str, Any]:
    """The decision as JSON."""
    decision = routed.decision
    told: dict[str, Any] = {"decision": None, "none_probability": round(decision.none_probability, 4)}
    if decision.chosen is not None:
        candidate = decision.chosen.candidate
        told["decision"] = {
            "candidate_id": candidate.id,
            "name": candidate.name,
            "server": candidate.server,
            "type": candidate.type,
            "description": candidate.description[:_DESCRIPTION],
            "probability": round(decision.chosen.probability, 4),
            "input_schema": shown_schema(candidate.input_schema, candidate.type),
        }
        if candidate.annotations:
            told["decision"]["annotations"] = dict(candidate.annotations)
        if routed.redescribed is not None:
            told["decision"]["description_changed_from"] = routed.redescribed.before[:_DESCRIPTION]
    elif decision.prefilter.considered:
        told["reason"] = (
            f"none of {decision.prefilter.considered:,} candidates fits (probability "
            f"{decision.none_probability:.2f}): do it without a tool, or say the step in other words"
        )
    else:
        told["reason"] = "there is no candidate that the filters let pass and whose server can be called now"
    chosen = decision.chosen.candidate.id if decision.chosen else None
    others = [ranked for ranked in decision.ranking if ranked.candidate.id != chosen][:alternatives]
    told["alternatives"] = [_alternative(ranked) for ranked in others]
    if routed.unavailable:
        told["unavailable"] = [{"server": name, "error": error} for name, error in routed.unavailable.items()]
    told["thread"] = routed.thread
    return told


def _alternative(ranked: Ranked) -> dict[str, Any]:
    candidate = ranked.candidate
    return {
        "candidate_id": candidate.id,
        "probability": round(ranked.probability, 4),
        "description": candidate.description[:_SHORT_DESCRIPTION],
        # Required ones without a question mark; the whole schema comes with an error or another route.
        "parameters": [name if required else f"{name}?" for name, required in candidate.parameters],
    }


def _worded(told: dict[str, Any]) -> str:
    """The decision for a host that shows only text."""
    lines: list[str] = []
    decision = told["decision"]
    if decision is None:
        lines.append(f"none: {told['reason']}")
    else:
        lines.append(f"candidate_id: {decision['candidate_id']} ({decision['type']}, p={decision['probability']:.2f})")
        lines.append(decision["description"])
        if "description_changed_from" in decision:
            lines.append("Note: its server has changed this description since it was first read.")
        lines.append(f"input_schema: {_compact(decision['input_schema'])}")
    lines += [
        f"or: {other['candidate_id']}({', '.join(other['parameters'])}) p={other['probability']:.2f}: "
        f"{' '.join(other['description'].split())}"
        for other in told["alternatives"]
    ]
    lines += [f"unavailable: {one['server']}: {one['error']}" for one in told.get("unavailable", ())]
    lines.append(f"thread: {told['thread']}")
    return "\n".join(line for line in lines if line)


def _pinned_tool(name: str, candidate: Candidate) -> Tool:
    annotations = ToolAnnotations.model_validate(candidate.annotations) if candidate.annotations else None
    return Tool(
        name=name,
        description=candidate.description,
        input_schema=shown_schema(candidate.input_schema, candidate.type),
        annotations=annotations,
    )


# errors


def _error(error: LightRouterError) -> CallToolResult:
    """What was wrong, with the schemas that make the next call right."""
    told: dict[str, Any] = {"error": str(error)}
    expected: tuple[Nearest, ...] = ()
    match error:
        case UnfitArgumentsError() | RedescribedError():
            expected = (error.expected,)
        case MisnamedError():
            expected = error.nearest
    lines = [f"error: {error}"]
    if expected:
        told["expected"] = [{"candidate_id": one.id, "input_schema": dict(one.input_schema)} for one in expected]
        lines += [f"{one.id} takes: {_compact(one.input_schema)}" for one in expected]
    return CallToolResult(content=[TextContent(text="\n".join(lines))], structured_content=told, is_error=True)


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
