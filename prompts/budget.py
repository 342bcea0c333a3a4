"""Token budgets: what may be cut, how, and how a cut is reported.

Knows lists of token ids. Does not know what they say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prompts.tokenizer import CHARACTERS_PER_TOKEN, PromptTokenizer

ELLIPSIS = " ... "


@dataclass(frozen=True, slots=True)
class Budget:
    """Upper bounds in tokens. They belong to an adapter: it was trained under them.

    Attributes:
        candidate: one candidate's text.
        message: one message's text, and one tool call's arguments.
        history: all messages together, query and observation included.
        total: the whole question, one continuation for each candidate included.
    """

    candidate: int = 64
    message: int = 128
    history: int = 512
    total: int = 4096

    def __post_init__(self) -> None:
        smallest = {"candidate": 8, "message": 16, "history": 64, "total": 256}
        for name, least in smallest.items():
            if getattr(self, name) < least:
                raise ValueError(f"budget.{name} is {getattr(self, name)} tokens; at least {least} are needed")
        if self.history < 2 * self.message:
            raise ValueError(
                f"budget.history ({self.history}) must hold at least two messages of budget.message ({self.message}): "
                "query and observation are never dropped"
            )


@dataclass(frozen=True, slots=True)
class Truncation:
    """Something of the caller's that the model saw shortened, or not at all.

    `where` is a path such as `messages[3].content`; `tokens` is its length before and `kept` after.
    A text too long to be counted reports its length estimated from its characters.
    """

    where: str
    tokens: int
    kept: int


@dataclass(slots=True)
class Cut:
    """Ids within a limit, and how many there were (0 when nothing was cut)."""

    ids: list[int]
    original: int = 0


def cut_middle(tokenizer: PromptTokenizer, text: str, limit: int) -> Cut:
    """Encode `text` in at most `limit` tokens, leaving out its middle where it is longer."""
    most = limit * CHARACTERS_PER_TOKEN
    if len(text) > 2 * most:  # too long to count: encode only what can survive
        head, tail = tokenizer.texts([text[:most], text[-most:]])
        original = len(text) * (len(head) + len(tail)) // (2 * most)
    else:
        head = tail = tokenizer.text(text)
        original = len(head)
        if original <= limit:
            return Cut(head)
    mark = tokenizer.text(ELLIPSIS)
    room = max(limit - len(mark), 0)
    first = (room + 1) // 2
    return Cut([*head[:first], *mark, *tail[len(tail) - (room - first) :]][:limit], max(original, limit + 1))


def cut_end(tokenizer: PromptTokenizer, text: str, limit: int) -> Cut:
    """Encode `text` in at most `limit` tokens, leaving out its end where it is longer."""
    most = limit * CHARACTERS_PER_TOKEN
    ids = tokenizer.text(text[: 2 * most])
    if len(ids) <= limit and len(text) <= 2 * most:
        return Cut(ids)
    original = len(ids) * max(len(text), 1) // max(min(len(text), 2 * most), 1)
    mark = tokenizer.text(ELLIPSIS)
    return Cut([*ids[: max(limit - len(mark), 0)], *mark][:limit], max(original, limit + 1))


def window_start(lengths: Sequence[int], limit: int) -> int:
    """First message kept when messages of these lengths are appended one by one under `limit` tokens.

    Each time the limit is passed, the oldest are dropped until half of it is used, so that the start moves
    rarely and an engine's prefix cache stays valid in between. The answer depends only on the messages so far:
    a conversation that grows by appending sees the same start until the next large step.
    """
    start = total = 0
    for end, length in enumerate(lengths):
        total += length
        if total > limit:
            while total > limit // 2 and start < end:
                total -= lengths[start]
                start += 1
    return start
