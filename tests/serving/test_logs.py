from __future__ import annotations

import json
import logging
import subprocess
import sys

from serving.logs import JsonFormatter

ROUTER = """
import asyncio, logging
from serving import logs
from starlette.requests import Request

async def app(scope, receive, send):
    logging.getLogger("inside").warning("line\\none %s", "two")
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("inside").exception("it failed")

logs.configure("json")
scope = {"type": "http", "state": {"request_id": "r-1"}}
asyncio.run(logs.RequestLogMiddleware(app)(scope, None, None))
logging.getLogger("after").info("done")
logging.getLogger("httpx").info("not shown")
"""


def test_lines_are_objects_that_name_their_request() -> None:
    ran = subprocess.run([sys.executable, "-c", ROUTER], capture_output=True, text=True, check=True)
    assert ran.stdout == ""
    first, second, after = (json.loads(line) for line in ran.stderr.splitlines())
    assert (first["level"], first["logger"], first["message"]) == ("WARNING", "inside", "line\none two")
    assert first["request_id"] == second["request_id"] == "r-1"
    assert "ValueError: broken" in second["error"]
    assert "request_id" not in after
    assert after["time"].endswith("+00:00")


def test_a_traced_line_names_its_trace() -> None:
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

    record = logging.LogRecord("x", logging.INFO, "", 1, "hello", None, None)
    span = NonRecordingSpan(SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=TraceFlags(1)))
    with use_span(span):
        entry = json.loads(JsonFormatter().format(record))
    assert entry["trace_id"] == "abc".rjust(32, "0")
    assert entry["span_id"] == "def".rjust(16, "0")
