"""A process that speaks vLLM's protocol, and can be killed, stopped, slowed down and made to talk nonsense.

`python -m tests.faults.vllm_process PORT` serves the model `base`. A POST to /mode with a name of MODES, `seconds` and
`version` changes how it answers from then on.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

from tests.serving.engine.vllm_server import completions

ROOT = Path(__file__).parent.parent.parent
MODELS = {"data": [{"id": "base", "max_model_len": 100_000}]}
START_SECONDS = 60


def changed(change: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], bytes]:
    """A right answer with something wrong in it."""

    def answer(asked: dict[str, Any]) -> bytes:
        value = completions(asked)
        change(value)
        return json.dumps(value).encode()

    return answer


def _other_labels(answer: dict[str, Any]) -> None:
    answer["choices"][0]["logprobs"]["top_logprobs"] = [{"token_id:1": -0.1}]


def _not_a_number(answer: dict[str, Any]) -> None:
    top = answer["choices"][0]["logprobs"]["top_logprobs"][0]
    top.update(dict.fromkeys(top, float("nan")))


GARBAGE: dict[str, Callable[[dict[str, Any]], bytes]] = {
    "page": lambda _: b"<html>gateway</html>",
    "empty": lambda _: b"",
    "binary": lambda _: b"\xff\xfe\x00\x00",
    "other": lambda _: b'{"object": "list", "data": []}',
    "no_choices": changed(lambda answer: answer["choices"].clear()),
    "other_labels": changed(_other_labels),
    "not_a_number": changed(_not_a_number),
}
MODES = {"well", "cut", "error", *GARBAGE}


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    mode, seconds, version = "well", 0.0, "0.32.0"

    def do_GET(self) -> None:
        """/health, /v1/models and /version."""
        told = {"/v1/models": MODELS, "/version": {"version": self.version}}
        self._answer(json.dumps(told.get(self.path, {})).encode())

    def do_POST(self) -> None:
        """/mode, and /v1/completions."""
        body = self.rfile.read(int(self.headers["content-length"]))
        if not body:  # the caller has left
            return
        asked = json.loads(body)
        if self.path == "/mode":
            Handler.mode, Handler.seconds, Handler.version = asked["mode"], asked["seconds"], asked["version"]
            self._answer(b"{}")
            return
        time.sleep(self.seconds)
        right = json.dumps(completions(asked)).encode()
        if self.mode == "cut":  # half of what was announced
            self.send_response(200)
            self.send_header("content-length", str(len(right)))
            self.end_headers()
            self.wfile.write(right[: len(right) // 2])
            self.close_connection = True
        elif self.mode == "error":
            self._answer(b'{"message": "CUDA error"}', 500)
        else:
            self._answer(GARBAGE[self.mode](asked) if self.mode in GARBAGE else right)

    def _answer(self, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def handle(self) -> None:
        """A caller may leave at any moment."""
        with contextlib.suppress(ConnectionError):
            super().handle()

    def log_message(self, *_: Any) -> None:
        """Nothing is logged."""


class Server(ThreadingHTTPServer):
    """Many connections."""

    daemon_threads = True
    request_queue_size = 1024


class VllmProcess:
    """The process, from outside."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port: int = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        """Start it, again on the same port, and wait until it answers."""
        command = [sys.executable, "-m", "tests.faults.vllm_process", str(self.port)]
        self.process = subprocess.Popen(command, cwd=ROOT)
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                httpx.get(f"{self.url}/health", timeout=60)
                return
            except httpx.TransportError:
                assert self.process.poll() is None, "it ended"
                assert time.monotonic() < until, "it does not answer"
                time.sleep(0.02)

    def answer(self, mode: str, seconds: float = 0.0, version: str = "0.32.0") -> None:
        """How questions are answered from now on."""
        wanted = {"mode": mode, "seconds": seconds, "version": version}
        httpx.post(f"{self.url}/mode", json=wanted, timeout=60).raise_for_status()

    def kill(self) -> None:
        """At once, as by the kernel when memory runs out."""
        self.process.kill()
        self.process.wait()

    def hang(self) -> None:
        """It still takes connections (the kernel does), and never answers."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """After `hang`."""
        os.kill(self.process.pid, signal.SIGCONT)


if __name__ == "__main__":
    Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
