"""Any OpenAI-compatible chat model as a method: the kept candidates are its tools, its first call is the choice.

Knows the chat completions protocol. An answer without a call is "none of these".
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Sequence
from typing import Any

import httpx

from adapters.answers import Answer, Kind
from adapters.questions import Question
from adapters.retrieval import Retriever
from prompts import Message
from serving.catalog.names import NAME_CHARACTERS, surface_names
from serving.catalog.shapes import function_tool
from serving.types import Candidate, EngineError, RouteRequest

_INSTRUCTION = (
    "Choose which tool acts next in this conversation, and call it. Call exactly one tool; if none of them fits, or "
    "you would answer or ask the user yourself, answer without a call."
)
_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_-]")
# A model that writes may think for long.
_TIMEOUT_S = 300.0


class ChatModel:
    """A chat model behind `openai:MODEL@URL`, URL with its /v1.

    Raises:
        ValueError: the name has no model or no URL.
    """

    kind: Kind = "chat"

    def __init__(
        self,
        name: str,
        retriever: Retriever,
        *,
        api_key: str = "unused",
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        model, _, url = name.removeprefix("openai:").partition("@")
        if not model or not url.startswith(("http://", "https://")):
            raise ValueError(f"{name!r} must be openai:MODEL@URL, such as openai:qwen3-8b@http://127.0.0.1:8000/v1")
        self.name = name
        self.fingerprint = name
        self._model = model
        self._retriever = retriever
        self._url = f"{url.rstrip('/')}/chat/completions"
        self._headers = {"Authorization": f"Bearer {api_key}"}
        self._transport = transport

    async def answer(self, question: Question, key: str) -> Answer:
        """The model's choice, before what the prefilter kept.

        Raises:
            EngineError: the endpoint did not answer, or not in the protocol.
        """
        messages = question.case.messages
        request = RouteRequest(messages, question.pool.candidates, k=question.k, pinned=question.pinned)
        await self._retriever.warm(question)
        started = time.perf_counter()
        passed = await self._retriever.prefilter.select(request)
        kept = list(passed.candidates)
        names = surface_names(kept)
        body = {
            "model": self._model,
            "temperature": question.temperature,
            "messages": chat_messages(messages),
            "tools": [_tool(candidate, name) for candidate, name in zip(kept, names, strict=True)],
            "tool_choice": "auto",
        }
        called, tokens = _read(await self._post(body))
        chosen = next((c.id for c, name in zip(kept, names, strict=True) if name == called), None)
        ms = (time.perf_counter() - started) * 1e3
        ranking = sorted((candidate.id for candidate in kept), key=lambda id_: id_ != chosen)
        return Answer(
            key,
            await self._retriever.behind(ranking, messages, question),
            kept=len(kept),
            none_probability=float(chosen is None),
            chosen=chosen,
            score=float(chosen is not None),
            prompt_tokens=tokens,
            ms=ms,
        )

    async def _post(self, body: dict[str, Any]) -> Any:
        try:
            async with httpx.AsyncClient(timeout=_TIMEOUT_S, transport=self._transport) as client:
                response = await client.post(self._url, json=body, headers=self._headers)
            response.raise_for_status()
            return response.json()
        except httpx.HTTPStatusError as error:
            said = error.response.text[:300]
            raise EngineError(f"{self.name} answered {error.response.status_code}: {said}") from error
        except (httpx.HTTPError, ValueError) as error:
            raise EngineError(f"{self.name} did not answer: {error!r}") from error


def _read(answer: Any) -> tuple[str | None, int]:
    """Name of the first call, None where there is none, and the prompt's tokens."""
    try:
        calls = answer["choices"][0]["message"].get("tool_calls") or ()
        name = calls[0]["function"]["name"] if calls else None
        return name, int((answer.get("usage") or {}).get("prompt_tokens", 0))
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise EngineError(f"no chat completion: {str(answer)[:300]}") from error


def _tool(candidate: Candidate, name: str) -> dict[str, Any]:
    description = candidate.description
    if candidate.type != "tool":
        description = f"{candidate.type}: {description}"
    return function_tool(candidate, name, description)


def chat_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The conversation in the protocol: every call gets an id, and every id an answer before the next message."""
    sent: list[dict[str, Any]] = [{"role": "system", "content": _INSTRUCTION}]
    waiting: list[str] = []
    for position, message in enumerate(messages):
        if message.role == "tool" and waiting:
            sent.append({"role": "tool", "tool_call_id": waiting.pop(0), "content": message.content})
            continue
        sent += _unanswered(waiting)
        waiting = []
        if message.role == "tool":  # answers no call that we know of
            sent.append({"role": "user", "content": f"{message.name or 'tool'}: {message.content}"})
            continue
        entry: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.tool_calls:
            waiting = [f"call_{position}_{number}" for number in range(len(message.tool_calls))]
            entry["tool_calls"] = [
                {
                    "id": id_,
                    "type": "function",
                    "function": {"name": _name(call.name), "arguments": _arguments(call.arguments)},
                }
                for id_, call in zip(waiting, message.tool_calls, strict=True)
            ]
        sent.append(entry)
    return sent + _unanswered(waiting)


def _unanswered(waiting: Iterable[str]) -> list[dict[str, Any]]:
    return [{"role": "tool", "tool_call_id": id_, "content": ""} for id_ in waiting]


def _name(name: str) -> str:
    return _NOT_IN_A_NAME.sub("_", name)[:NAME_CHARACTERS] or "tool"


def _arguments(text: str) -> str:
    """The arguments as JSON: servers parse them, and some data sets hold them in another notation."""
    try:
        json.loads(text)
    except ValueError:
        return json.dumps({"arguments": text} if text else {})
    return text
