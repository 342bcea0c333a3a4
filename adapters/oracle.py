"""The oracle: a scripted model that knows the recorded trajectory and calls whatever of it has become callable.

It stands where an executing model would and never errs in what it calls or fills in: what a run with it fails at is
the discovery's doing. So it tells methods apart and bounds what a model can do with one, asking as it does; it is no
measure of a model. It asks once for each recorded step that it cannot take, in the words that the recorded assistant
announced it with, which name no tool but by chance, or in the user's own where the assistant said nothing. A step that
was not found is taken later, if what it needs turns up.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from adapters.agent_replay import names
from adapters.agent_tasks import Call, Task
from prompts import PromptTokenizer
from prompts.agent import DISCOVER
from serving.agent.loop import function_name
from serving.llm import FunctionCall, Reply, Usage

Count = Callable[[Any], int]


def token_counter(tokenizer: PromptTokenizer) -> Count:
    """Tokens of a JSON value as text. Chat templates differ by a few for each message."""

    @lru_cache(maxsize=20_000)
    def count(text: str) -> int:
        return len(tokenizer.text(text))

    return lambda value: count(json.dumps(value, ensure_ascii=False))


class Oracle:
    """One run's model (`serving.agent.loop.ChatModel`).

    Args:
        count: its tokens, so that what a method puts into a context can be compared.
    """

    def __init__(self, task: Task, count: Count) -> None:
        surface = names(task.pool).surface
        self._names = {id_: function_name(surface[id_]) for id_ in task.gold}
        self._script = _script(task)
        self._skipped: list[Call] = []
        self._asked = False
        self._count = count

    async def chat(self, turns: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> Reply:
        """Its next action."""
        content, call = self._next({tool["function"]["name"] for tool in tools})
        written = self._count([content, call and call.arguments])
        read = sum(map(self._count, turns)) + sum(map(self._count, tools))
        return Reply(content, (call,) if call else (), Usage(1, read, 0, written))

    def _next(self, callable_now: set[str]) -> tuple[str, FunctionCall | None]:
        for call in self._skipped:
            if self._names[call.candidate] in callable_now:
                self._skipped.remove(call)
                return "", self._call(call)
        while self._script:
            step = self._script[0]
            if isinstance(step, str):
                self._script.pop(0)
                return step, None
            if self._names[step.candidate] in callable_now:
                self._script.pop(0)
                self._asked = False
                return "", self._call(step)
            if DISCOVER in callable_now and not self._asked:
                self._asked = True
                return "", FunctionCall("call", DISCOVER, json.dumps({"need": step.need}))
            self._script.pop(0)
            self._skipped.append(step)
            self._asked = False
        return "That is all.", None

    def _call(self, call: Call) -> FunctionCall:
        return FunctionCall("call", self._names[call.candidate], call.arguments)


def _script(task: Task) -> list[Call | str]:
    """The recorded calls, and what the assistant said where the user had the next word."""
    script: list[Call | str] = []
    calls = iter(task.calls)
    for message, after in zip(task.messages, [*task.messages[1:], None], strict=True):
        script += [next(calls) for _ in message.tool_calls]
        if message.role == "assistant" and not message.tool_calls and (after is None or after.role == "user"):
            script.append(message.content.strip() or "Go on.")
    return script
