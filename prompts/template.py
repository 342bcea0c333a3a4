"""The three readouts as prompts: pointwise, listwise and generate.

A prompt is a shared prefix, its continuations, and the label tokens to be read after each continuation. The
template, its layout, budgets and tokenizer are what an adapter was trained on; `Template.fingerprint` tells
two of them apart.
"""

from __future__ import annotations

import hashlib
import json
import string
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from prompts.budget import Budget, Truncation
from prompts.candidate import CandidateText, render_candidate
from prompts.chat import CHAT_FORMATS
from prompts.conversation import Conversation, ConversationRenderer
from prompts.question import Candidate, Message, ToolCall
from prompts.tokenizer import PromptTokenizer

Readout = Literal["pointwise", "listwise", "generate"]
Layout = Literal["messages_first", "candidates_first"]

# The labels of a listwise question. Each must be one token; none of these has a label of its own.
LABELS = string.ascii_uppercase + string.ascii_lowercase
NONE_LABEL = "0"
# What a generating adapter writes when nothing fits. No surface name can be equal to it: names.py avoids it.
NONE_NAME = "none_of_these"

_NONE_TEXT = "none of these: no option fits, or the assistant should answer or ask the user itself"
_POINTWISE_SYSTEM = (
    "You are a router. Read the conversation, then one option. Answer Yes if this option should act next, otherwise No."
)
_LISTWISE_SYSTEM = (
    "You are a router. Read the conversation and the options. Answer with the label of the option that should act next."
)
_GENERATE_SYSTEM = (
    "You are a router. Read the conversation and the options. Answer with the name of the option that should act next."
)
_SYSTEM = {"pointwise": _POINTWISE_SYSTEM, "listwise": _LISTWISE_SYSTEM, "generate": _GENERATE_SYSTEM}
_QUESTION = {"listwise": "Label of the next option?", "generate": "Name of the next option?"}


@dataclass(frozen=True, slots=True)
class Prompt:
    """One routing question as token ids.

    Attributes:
        prefix: ids shared by every continuation, and by later questions of the same conversation.
        continuations: ids that follow the prefix, each seen without the others. Pointwise: one for each
            candidate, then one for none. Otherwise exactly one.
        labels: the label ids read after each continuation. Pointwise: yes, no. Listwise: one for each candidate,
            then none's. Generate: empty, the choices are read instead.
        choices: generate only, the texts that may be written: one for each candidate, then none's.
        truncated: what the model did not see whole.
    """

    prefix: list[int]
    continuations: list[list[int]]
    labels: list[int]
    choices: tuple[str, ...] = ()
    truncated: list[Truncation] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Prompt tokens: the prefix once, and every continuation."""
        return len(self.prefix) + sum(map(len, self.continuations))


class Template:
    """Renders routing questions for one tokenizer, chat format, readout, layout and budget.

    Raises:
        ValueError: the tokenizer lacks a control token or a one-token label that the template needs, or the
            settings contradict each other.
    """

    def __init__(
        self,
        tokenizer: PromptTokenizer,
        *,
        chat: str = "chatml",
        readout: Readout = "pointwise",
        layout: Layout = "messages_first",
        budget: Budget | None = None,
    ) -> None:
        if chat not in CHAT_FORMATS:
            raise ValueError(f"unknown chat format {chat!r}; known are {', '.join(CHAT_FORMATS)}")
        if readout == "pointwise" and layout != "messages_first":
            raise ValueError("the pointwise readout shares the messages as its prefix: its layout is messages_first")
        self.tokenizer = tokenizer
        self.chat = CHAT_FORMATS[chat]
        self.readout: Readout = readout
        self.layout: Layout = layout
        self.budget = budget or Budget()
        self.end_token = tokenizer.control(self.chat.turn_end)
        if tokenizer.control("<|im_start|>") == self.end_token:
            raise ValueError("the tokenizer does not tell <|im_start|> and <|im_end|> apart")
        self._conversation = ConversationRenderer(tokenizer, self.chat, self.budget)
        structure = tokenizer.structure
        self._system = structure(self.chat.turn("system") + _SYSTEM[readout])
        self._close = structure(self.chat.close)
        self._answer = structure(self.chat.answer)
        self._option_open = structure(self.chat.turn("user"))
        self._newline = structure("\n")
        self._none_text = tokenizer.text(_NONE_TEXT)
        self._yes_no = [tokenizer.single("Yes"), tokenizer.single("No")]
        self._labels = [tokenizer.single(label) for label in LABELS] if readout == "listwise" else []
        self._none_label = tokenizer.single(NONE_LABEL) if readout == "listwise" else -1
        self._candidate = lru_cache(maxsize=8192)(self._render_candidate)
        if (
            readout == "pointwise"
            and self.budget.history + 2 * self.budget.message + self.budget.candidate + len(self._system)
            > self.budget.total
        ):
            raise ValueError(f"budget.total ({self.budget.total}) cannot hold budget.history and one candidate")

    @property
    def max_candidates(self) -> int | None:
        """How many candidates one question can hold; None where there is no limit."""
        return len(LABELS) if self.readout == "listwise" else None

    def fingerprint(self) -> str:
        """Digest of the token ids of a fixed question: any change of wording, markup, budget or tokenizer shows."""
        question = [
            Message("system", "s" * 4000),
            Message("user", "find " * 900),
            Message("assistant", "so", (ToolCall("a.b", '{"x": 1}'), ToolCall("c", ""))),
            Message("tool", "result " * 400, name="a.b"),
            Message("user", "and then? <|im_end|>"),
        ]
        schema = {"properties": {"x": {}, "y": {}}, "required": ["x"]}
        candidates = [
            Candidate("1", "a.b", "first " * 300, server="s", input_schema=schema),
            Candidate("2", "second", type="agent", tools=("t", "u")),
        ]
        prompt = self.render(question, candidates, names=["a_b", "second"])
        settings = [self.chat.name, self.readout, self.layout, list(map(repr, [self.budget]))]
        text = json.dumps([settings, prompt.prefix, prompt.continuations, prompt.labels, prompt.choices])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def render(
        self,
        messages: Sequence[Message],
        candidates: Sequence[Candidate],
        *,
        allow_none: bool = True,
        names: Sequence[str] | None = None,
        salt: str = "",
    ) -> Prompt:
        """The question "which of `candidates` acts next, given `messages`?".

        Args:
            messages: the conversation so far, oldest first.
            candidates: at least one; the order is kept.
            allow_none: whether "none of these" is one of the answers.
            names: generate only, the unique surface name of each candidate; the model writes one of them.
            salt: a candidate's tokens are remembered for questions of the same salt only.

        Raises:
            ValueError: no candidates, more than `max_candidates`, or more than `budget.total` tokens can hold.
        """
        if not candidates:
            raise ValueError("there is no candidate to choose from; give at least one")
        if self.max_candidates and len(candidates) > self.max_candidates:
            raise ValueError(f"{len(candidates)} candidates, but this readout has labels for {self.max_candidates}")
        if self.readout == "generate" and (names is None or len(names) != len(candidates)):
            raise ValueError("the generate readout needs the surface name of every candidate")
        conversation = self._conversation.render(messages)
        if self.readout == "pointwise":
            return self._pointwise(conversation, candidates, allow_none, salt)
        return self._listed(conversation, candidates, allow_none, names, salt)

    def _render_candidate(self, candidate: Candidate, limit: int, name: str | None, _salt: str) -> CandidateText:
        return render_candidate(self.tokenizer, candidate, limit, name)

    def _pointwise(
        self, conversation: Conversation, candidates: Sequence[Candidate], allow_none: bool, salt: str
    ) -> Prompt:
        texts = [self._candidate(candidate, self.budget.candidate, None, salt) for candidate in candidates]
        truncated = conversation.truncated + [text.truncation for text in texts if text.truncation]
        bodies: list[Sequence[int]] = [text.ids for text in texts]
        if allow_none:
            bodies.append(self._none_text)
        return Prompt(
            prefix=[*self._system, *self._close, *conversation.ids],
            continuations=[[*self._option_open, *body, *self._close, *self._answer] for body in bodies],
            labels=self._yes_no,
            truncated=truncated,
        )

    def _listed(
        self,
        conversation: Conversation,
        candidates: Sequence[Candidate],
        allow_none: bool,
        names: Sequence[str] | None,
        salt: str,
    ) -> Prompt:
        question = self.tokenizer.structure(_QUESTION[self.readout])
        # What stands around the options, and 4 tokens for the mark-up of each.
        around = len(self._system) + len(conversation.ids) + len(question) + len(self._none_text) + 32
        room = (self.budget.total - around) // len(candidates) - 4
        limit = min(self.budget.candidate, room)
        if limit < 8:
            raise ValueError(
                f"{len(candidates)} candidates do not fit into budget.total = {self.budget.total} tokens beside "
                f"{around} tokens of conversation; send fewer candidates, or a smaller k"
            )
        colon = self.tokenizer.structure(": ") if self.readout == "listwise" else self.tokenizer.structure("- ")
        options: list[int] = []
        truncated = list(conversation.truncated)
        for position, candidate in enumerate(candidates):
            name = names[position] if names and self.readout == "generate" else None
            text = self._candidate(candidate, limit, name, salt)
            if text.truncation:
                truncated.append(text.truncation)
            mark = [self._labels[position], *colon] if self.readout == "listwise" else colon
            options += [*mark, *text.ids, *self._newline]
        if allow_none:
            mark = [self._none_label, *colon] if self.readout == "listwise" else colon
            said = [] if self.readout == "listwise" else self.tokenizer.text(f"{NONE_NAME}: ")
            options += [*mark, *said, *self._none_text, *self._newline]
        if self.layout == "messages_first":
            prefix = [*self._system, *self._close, *conversation.ids]
            continuation = [*self._option_open, *options, *question, *self._close, *self._answer]
        else:
            prefix = [*self._system, *self._newline, *options, *self._close, *conversation.ids]
            continuation = [*self._option_open, *question, *self._close, *self._answer]
        labels = [*self._labels[: len(candidates)], *([self._none_label] if allow_none else [])]
        choices = [*(names or []), *([NONE_NAME] if allow_none else [])]
        return Prompt(
            prefix=prefix,
            continuations=[continuation],
            labels=labels if self.readout == "listwise" else [],
            choices=tuple(choices) if self.readout == "generate" else (),
            truncated=truncated,
        )
