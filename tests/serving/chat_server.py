"""A real HTTP server that speaks the chat completions protocol with canned answers. It stands in for an LLM.

What it answers depends only on the question: it fills every property of the asked schema from the words of the
document in the user message, and as a verifier picks the candidate that shares most words with the message.
"""

from __future__ import annotations

import json
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WORD = re.compile(r"[a-z]{3,}")
USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 10,
    "total_tokens": 110,
    "prompt_tokens_details": {"cached_tokens": 40},
}


@dataclass
class Reply:
    """What goes over the wire. Status 0 closes the connection without a word."""

    content: str | None = None
    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)


def document(body: dict[str, Any]) -> dict[str, Any]:
    """The data of a question."""
    user = next(message["content"] for message in body["messages"] if message["role"] == "user")
    return json.loads(user.removeprefix("<data>\n").removesuffix("\n</data>"))


def words(*texts: str) -> list[str]:
    return WORD.findall(" ".join(texts).lower())


def answer(body: dict[str, Any]) -> str:
    """The canned answer."""
    asked = body["response_format"]["json_schema"]["schema"]["properties"]
    data = document(body)
    made: dict[str, Any] = {}
    if "choice" in asked:
        said = set(words(data["message"]))
        shared = [len(said.intersection(words(other["name"], other.get("description", "")))) for other in data["list"]]
        best = max(range(len(shared)), key=shared.__getitem__)
        return json.dumps({"choice": best + 1 if shared[best] else 0})
    for place, name in enumerate(asked):
        if name.startswith("step"):
            made[name] = place if place <= 2 else 0
        elif name == "query":
            made[name] = f"{data['message']} and then the next thing"
        else:
            known = data["candidate"]
            source = words(known["name"], known.get("description", ""))
            made[name] = f"{name.partition('_')[0]} {' '.join(source[place :: len(asked)])} {chr(97 + place) * 4}"
    return json.dumps(made)


class ChatServer:
    """See the module. `faults` are given first, one for each request; then `respond` answers."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        """Requests in the order in which they arrived."""
        self.faults: deque[Reply] = deque()
        self.respond: Callable[[dict[str, Any]], Reply] = lambda body: Reply(answer(body))
        self.arrived = threading.Semaphore(0)
        self.open = threading.Event()
        """Answers are given only while it is set."""
        self.open.set()
        self.most_at_once = 0
        self.url = ""
        self._at_once = 0
        self._lock = threading.Lock()

    def reply(self, body: dict[str, Any]) -> Reply:
        with self._lock:
            self.bodies.append(body)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            fault = self.faults.popleft() if self.faults else None
        self.arrived.release()
        self.open.wait()
        with self._lock:
            self._at_once -= 1
        return fault or self.respond(body)


@contextmanager
def serving() -> Iterator[ChatServer]:
    """A running server."""
    chat = ChatServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Not left to wait for a second packet.
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            reply = chat.reply(body)
            if not reply.status:
                self.close_connection = True
                return
            self._send(reply, body["model"])

        def _send(self, reply: Reply, model: str) -> None:
            value = reply.body
            if value is None:
                message = {"role": "assistant", "content": reply.content}
                value = {
                    "id": "chat", "object": "chat.completion", "created": 1, "model": model, "usage": USAGE,
                    "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
                }  # fmt: skip
            sent = value.encode() if isinstance(value, str) else json.dumps(value).encode()
            try:
                self.send_response(reply.status)
                self.send_header("Content-Type", "text/html" if isinstance(value, str) else "application/json")
                self.send_header("Content-Length", str(len(sent)))
                for name, text in reply.headers.items():
                    self.send_header(name, text)
                self.end_headers()
                self.wfile.write(sent)
            except ConnectionError:  # the caller is gone
                self.close_connection = True

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    chat.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield chat
    finally:
        chat.open.set()
        server.shutdown()
        thread.join()
        server.server_close()
