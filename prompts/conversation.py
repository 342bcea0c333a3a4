"""The conversation part of a prompt: messages to token ids, within budget.

Every message is rendered the same whatever its age, so that a conversation which grows by appending keeps its
prefix; the oldest go in large steps. Query and observation always stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from prompts.budget import Budget, Truncation, cut_end, cut_middle, window_start
from prompts.chat import ChatFormat
from prompts.question import Message, query_position
from prompts.tokenizer import PromptTokenizer

# A message that calls more tools at once shows this many; the rest are reported as cut.
MAX_CALLS = 8
# A tool's name in a message: 64 characters are rarely more than half of this.
NAME_TOKENS = 32


@dataclass(slots=True)
class Conversation:
    """Token ids of the kept messages, oldest first, and what was cut."""

    ids: list[int]
    truncated: list[Truncation] = field(default_factory=list)


class ConversationRenderer:
    """Renders messages for one chat format, tokenizer and budget."""

    def __init__(self, tokenizer: PromptTokenizer, chat: ChatFormat, budget: Budget) -> None:
        self._tokenizer = tokenizer
        self._chat = chat
        self._budget = budget
        structure = tokenizer.structure
        self._turn = {role: structure(chat.turn(role)) for role in ("system", "user", "assistant", chat.result_role)}
        self._close = structure(chat.close)
        self._call = [structure(markup) if markup else [] for markup in chat.call]
        self._result = [structure(markup) if markup else [] for markup in chat.result]

    def render(self, messages: Sequence[Message]) -> Conversation:
        """All messages that fit, in order. Query and observation are never dropped, only cut in their middle."""
        rendered = [self._message(message, position) for position, message in enumerate(messages)]
        start = window_start([len(ids) for ids, _ in rendered], self._budget.history)
        kept = list(range(start, len(messages)))
        query = query_position(messages)
        if query is not None and query < start:
            kept.insert(0, query)
        truncated = [
            Truncation(f"messages[{position}]", len(rendered[position][0]), 0)
            for position in range(start)
            if position != query
        ]
        ids: list[int] = []
        for position in kept:
            ids += rendered[position][0]
            truncated += rendered[position][1]
        return Conversation(ids, truncated)

    def _message(self, message: Message, position: int) -> tuple[list[int], list[Truncation]]:
        truncated: list[Truncation] = []

        def shortened(text: str, limit: int, where: str) -> list[int]:
            cut = cut_middle(self._tokenizer, text, limit)
            if cut.original:
                truncated.append(Truncation(f"messages[{position}].{where}", cut.original, len(cut.ids)))
            return cut.ids

        content = shortened(message.content, self._budget.message, "content") if message.content else []
        if message.role == "tool":
            before, between, after = self._result
            name = cut_end(self._tokenizer, message.name, NAME_TOKENS).ids if message.name else []
            body = [*before, *name, *(between if name else []), *content, *after]
            return [*self._turn[self._chat.result_role], *body, *self._close], truncated
        body = content
        calls = message.tool_calls[:MAX_CALLS]
        for number, call in enumerate(calls):
            before, between, after = self._call
            name = cut_end(self._tokenizer, call.name, NAME_TOKENS).ids
            limit = max(self._budget.message // len(calls), 8)
            arguments = shortened(call.arguments, limit, f"tool_calls[{number}].arguments") if call.arguments else []
            body = [*body, *before, *name, *between, *arguments, *after]
        if len(message.tool_calls) > MAX_CALLS:
            truncated.append(Truncation(f"messages[{position}].tool_calls", len(message.tool_calls), MAX_CALLS))
        return [*self._turn[message.role], *body, *self._close], truncated
