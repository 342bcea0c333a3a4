"""How a host's call goes on to an upstream and its result comes back, in the host's protocol revision.

Knows the SDK's request context and results. Does not know what is called.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.types import (
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    SERVER_INFO_META_KEY,
    CallToolRequestParams,
    CallToolResult,
    ClientCapabilities,
    InputRequiredResult,
    MissingRequiredClientCapabilityErrorData,
)
from mcp.types.version import MODERN_PROTOCOL_VERSIONS

from serving.agent.upstreams import Call, HostFaultError, Result
from serving.types import InvalidRequestError

Context = ServerRequestContext[Any, Any]

# The capability that a host declares to be asked by each method.
_ASKED_BY = {"elicitation/create": "elicitation", "sampling/createMessage": "sampling", "roots/list": "roots"}


def modern(context: Context) -> bool:
    """Whether the host speaks 2026-07-28 or later: without sessions, and asked for input by results."""
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS


def call_of(context: Context, params: CallToolRequestParams) -> Call:
    """What of the host's request goes on beside the arguments."""
    meta: Mapping[str, Any] = context.meta or {}
    asked = "progress_token" in meta or "progressToken" in meta
    return Call(
        progress=context.session.report_progress if asked else None,
        meta={key: value for key, value in meta.items() if key not in {"progress_token", "progressToken"}},
        capabilities=_capabilities(context),
        input_responses=params.input_responses,
        request_state=params.request_state,
    )


def passed(context: Context, result: Result) -> Result:
    """The upstream's result as this host's protocol revision can hold it. It is this server's name that it carries.

    Raises:
        HostFaultError: it asks for what the host has not said that it can be asked for.
        InvalidRequestError: it asks, and the host's protocol revision has no such question.
    """
    if isinstance(result, InputRequiredResult):
        _check_askable(context, result)
    if result.meta and SERVER_INFO_META_KEY in result.meta:
        result.meta = {key: value for key, value in result.meta.items() if key != SERVER_INFO_META_KEY} or None
    if isinstance(result, CallToolResult) and not modern(context):
        held = result.structured_content
        if held is not None and not isinstance(held, dict):
            result.structured_content = {"result": held}
    return result


def _check_askable(context: Context, result: InputRequiredResult) -> None:
    """Upstreams are told what the host can be asked for; one may ask for something else all the same."""
    if not modern(context):
        asked = json.dumps(result.model_dump(by_alias=True, mode="json", exclude_none=True).get("inputRequests"))
        raise InvalidRequestError(
            f"the call needs input that this host's protocol revision cannot ask for; it asks: {asked}"
        )
    declared = _capabilities(context)
    needed = {_ASKED_BY[request.method] for request in (result.input_requests or {}).values()}
    if missing := sorted(name for name in needed if getattr(declared, name) is None):
        required = MissingRequiredClientCapabilityErrorData(
            required_capabilities=ClientCapabilities.model_validate({name: {} for name in missing})
        )
        raise HostFaultError(
            f"the call needs capabilities that this client has not declared: {', '.join(missing)}",
            MISSING_REQUIRED_CLIENT_CAPABILITY,
            required.model_dump(by_alias=True, mode="json", exclude_none=True),
        )


def _capabilities(context: Context) -> ClientCapabilities:
    """What the host can be asked for by a result; before 2026-07-28 that is nothing."""
    return (context.session.client_capabilities if modern(context) else None) or ClientCapabilities()
