"""The tools that the MCP conformance suite calls, as a server that stands behind the agent.

Their names, arguments and answers are given by the suite's scenarios.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

import anyio
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.types import (
    INVALID_PARAMS,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    AudioContent,
    CallToolRequestParams,
    CallToolResult,
    ContentBlock,
    CreateMessageRequest,
    CreateMessageRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    EmbeddedResource,
    ImageContent,
    InputRequest,
    InputRequiredResult,
    ListRootsRequest,
    ListToolsResult,
    PaginatedRequestParams,
    SamplingMessage,
    TextContent,
    TextResourceContents,
    Tool,
)

from tests.serving.agent.upstreams import PIXEL

EMPTY: dict[str, Any] = {"type": "object", "properties": {}}
# Every keyword of JSON Schema 2020-12 that must come through a listing as it was written (SEP-1613, SEP-2106).
ADDRESS: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
SCHEMAS = {
    "test_simple_text": EMPTY,
    "test_image_content": EMPTY,
    "test_audio_content": EMPTY,
    "test_embedded_resource": EMPTY,
    "test_multiple_content_types": EMPTY,
    "test_error_handling": EMPTY,
    "test_tool_with_progress": EMPTY,
    "test_missing_capability": EMPTY,
    "test_streaming_elicitation": EMPTY,
    "test_logging_tool": EMPTY,
    "test_input_required_result_elicitation": EMPTY,
    "test_input_required_result_sampling": EMPTY,
    "test_input_required_result_list_roots": EMPTY,
    "test_input_required_result_multiple_inputs": EMPTY,
    "test_input_required_result_request_state": EMPTY,
    "test_input_required_result_multi_round": EMPTY,
    "test_input_required_result_tampered_state": EMPTY,
    "test_input_required_result_capabilities": EMPTY,
    "json_schema_2020_12_tool": ADDRESS,
}
SAMPLE = CreateMessageRequest(
    params=CreateMessageRequestParams(
        messages=[SamplingMessage(role="user", content=TextContent(text="What is the capital of France?"))],
        max_tokens=100,
    )
)
ROOTS = ListRootsRequest()
_KEY = b"a key of this process"


def conformance_tools() -> Server[Any]:
    return Server("conformance-tools", version="1", on_list_tools=_list_tools, on_call_tool=_call_tool)


async def _list_tools(context: Any, params: PaginatedRequestParams | None) -> ListToolsResult:
    return ListToolsResult(
        tools=[Tool(name=name, description=name, input_schema=schema) for name, schema in SCHEMAS.items()]
    )


async def _call_tool(
    context: ServerRequestContext[Any], params: CallToolRequestParams
) -> CallToolResult | InputRequiredResult:
    text = TextContent(text="This is a simple text response for testing.")
    image = ImageContent(data=PIXEL, mime_type="image/png")
    held = TextResourceContents(uri="test://held", mime_type="text/plain", text="held")
    match params.name:
        case "test_simple_text":
            return _said(text)
        case "test_image_content":
            return _said(image)
        case "test_audio_content":
            return _said(AudioContent(data=PIXEL, mime_type="audio/wav"))
        case "test_embedded_resource":
            return _said(EmbeddedResource(resource=held))
        case "test_multiple_content_types":
            return _said(text, image, EmbeddedResource(resource=held))
        case "test_error_handling":
            failed = TextContent(text="This tool intentionally returns an error for testing")
            return CallToolResult(content=[failed], is_error=True)
        case "test_tool_with_progress":
            for done in (0, 50, 100):
                await context.session.report_progress(done, 100)
                await anyio.sleep(0.05)  # the scenario's own pace
            return _said(text)
        case "test_missing_capability":
            if not _declares_sampling(context):
                raise MCPError(
                    code=MISSING_REQUIRED_CLIENT_CAPABILITY,
                    message="this tool needs sampling",
                    data={"requiredCapabilities": {"sampling": {}}},
                )
            return _said(text)
        case "test_logging_tool":
            await context.session.send_log_message("info", "not asked for")
            return _said(text)
        case _:
            return _asking(context, params)


def _asking(context: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult | InputRequiredResult:
    given, state = params.input_responses or {}, params.request_state
    name = params.name.removeprefix("test_input_required_result_")
    match name:
        case "elicitation" | "test_streaming_elicitation":
            who = _accepted(given.get("user_name"), "name")
            return _said(f"Hello, {who}!") if who else _ask(user_name=_form(name="string"))
        case "sampling":
            return _said("sampled") if "capital_question" in given else _ask(capital_question=SAMPLE)
        case "list_roots":
            return _said("rooted") if "client_roots" in given else _ask(client_roots=ROOTS)
        case "multiple_inputs":
            asked = {"user_name": _form(name="string"), "greeting": SAMPLE, "client_roots": ROOTS}
            return _said("all given") if asked.keys() <= given.keys() else _ask("all", **asked)
        case "multi_round":
            if "step2" in given:
                return _said("done")
            return _ask("2", step2=_form(color="string")) if "step1" in given else _ask("1", step1=_form(name="string"))
        case "capabilities":
            return _ask(**({"sampled": SAMPLE} if _declares_sampling(context) else {"user_name": _form(name="string")}))
        case "request_state" | "tampered_state":
            if state is None:
                return _ask(f"kept.{_signed('kept')}", confirm=_form(ok="boolean"))
            value, _, signature = state.partition(".")
            if not hmac.compare_digest(signature, _signed(value)):
                raise MCPError(code=INVALID_PARAMS, message="requestState was not made by this server")
            return _said("state-ok")
    raise MCPError(code=INVALID_PARAMS, message=f"Unknown tool: {params.name}")


def _said(*content: ContentBlock | str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=part) if isinstance(part, str) else part for part in content])


def _ask(state: str | None = None, **requests: InputRequest) -> InputRequiredResult:
    return InputRequiredResult(input_requests=requests, request_state=state)


def _form(**fields: str) -> ElicitRequest:
    schema = {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in fields.items()},
        "required": list(fields),
    }
    return ElicitRequest(params=ElicitRequestFormParams(message="Please say", requested_schema=schema))


def _accepted(response: Any, field: str) -> Any:
    content = getattr(response, "content", None)
    return content.get(field) if isinstance(content, dict) else None


def _declares_sampling(context: ServerRequestContext[Any]) -> bool:
    declared = context.session.client_capabilities
    return declared is not None and declared.sampling is not None


def _signed(value: str) -> str:
    return hmac.new(_KEY, value.encode(), hashlib.sha256).hexdigest()
