"""A Decision in the shape of OpenAI's chat completions, whole or as a stream of events.

Knows that shape and Decision. Does not know the request.
"""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Literal

from pydantic import BaseModel

from serving.api.answers import TruncationAnswer
from serving.types import Candidate, Decision, Truncation

# The token of "none of these" in logprobs: with its spaces it can be no function's name.
NONE_TOKEN = "none of these"  # noqa: S105
# OpenAI's value for what is very unlikely; JSON has no minus infinity.
_LEAST_LOGPROB = -9999.0


class TopLogprob(BaseModel):
    """A function's name, or NONE_TOKEN, and the logarithm of its probability."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """What was decided, and the most probable answers."""

    top_logprobs: list[TopLogprob]


class Logprobs(BaseModel):
    """The posterior: one decision is one token."""

    content: list[TokenLogprob]
    refusal: None = None


class CalledFunction(BaseModel):
    """The chosen function. The router chooses, the agent fills in: arguments are always "{}"."""

    name: str
    arguments: Literal["{}"] = "{}"


class FunctionCall(BaseModel):
    """A call of a function."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class CalledCustom(BaseModel):
    """The chosen custom tool, its input left to the agent."""

    name: str
    input: Literal[""] = ""


class CustomCall(BaseModel):
    """A call of a custom tool."""

    id: str
    type: Literal["custom"] = "custom"
    custom: CalledCustom


class AnswerMessage(BaseModel):
    """One call, or none and an empty content: then the agent answers itself."""

    role: Literal["assistant"] = "assistant"
    content: Literal[""] | None
    refusal: None = None
    tool_calls: list[FunctionCall | CustomCall] | None


class Choice(BaseModel):
    """The one choice."""

    index: Literal[0] = 0
    message: AnswerMessage
    logprobs: Logprobs | None
    finish_reason: Literal["tool_calls", "stop"]


class PromptTokensDetails(BaseModel):
    """Tokens of the prompt that were not computed again."""

    cached_tokens: int


class Usage(BaseModel):
    """Tokens. A decision of the model is one completion token; without one there are none."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class ChatAnswer(BaseModel):
    """A chat completion. Ours are `truncated`, what the model did not see whole, and `candidate`, the id of the one
    that is called: a catalogue's ids are no names.
    """

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    truncated: list[TruncationAnswer]
    candidate: str | None


def completion(
    decision: Decision,
    *,
    name_of: Callable[[Candidate], str],
    custom: Collection[str],
    top_logprobs: int | None,
    truncated: Sequence[Truncation],
) -> ChatAnswer:
    """The decision as a completion.

    Args:
        decision: what the router decided.
        name_of: the name of each candidate's function.
        custom: names of the custom tools; all others are functions.
        top_logprobs: how many of the most probable answers to list; None for no logprobs at all.
        truncated: what the surface itself could not pass on.
    """
    chosen = decision.chosen
    name = name_of(chosen.candidate) if chosen else ""
    calls = [_call(name, name in custom)] if chosen else None
    written = int(decision.prompt_tokens > 0)
    return ChatAnswer(
        id=f"chatcmpl-{uuid.uuid4().hex}",
        created=int(time.time()),
        model=decision.model,
        choices=[
            Choice(
                message=AnswerMessage(content=None if calls else "", tool_calls=calls),
                logprobs=None if top_logprobs is None else _logprobs(decision, name_of, top_logprobs),
                finish_reason="tool_calls" if calls else "stop",
            )
        ],
        usage=Usage(
            prompt_tokens=decision.prompt_tokens,
            completion_tokens=written,
            total_tokens=decision.prompt_tokens + written,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=decision.cached_tokens),
        ),
        truncated=[TruncationAnswer.of(truncation) for truncation in (*truncated, *decision.truncated)],
        candidate=chosen.candidate.id if chosen else None,
    )


def events(answer: ChatAnswer, *, include_usage: bool) -> Iterator[str]:
    """The completion as server-sent events. A decision is made at once, so they are written at once."""
    choice = answer.choices[0]
    logprobs = choice.logprobs.model_dump() if choice.logprobs else None
    common: dict[str, Any] = {
        "id": answer.id,
        "object": "chat.completion.chunk",
        "created": answer.created,
        "model": answer.model,
        **({"usage": None} if include_usage else {}),
    }

    def chunk(delta: dict[str, Any], logprobs: dict[str, Any] | None = None) -> str:
        choices = [{"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": None}]
        return _event({**common, "choices": choices})

    start: dict[str, Any] = {"role": "assistant", "content": choice.message.content}
    if choice.message.tool_calls:
        call = choice.message.tool_calls[0]
        if isinstance(call, FunctionCall):
            opening = {"index": 0, **call.model_dump(), "function": {"name": call.function.name, "arguments": ""}}
            yield chunk({**start, "tool_calls": [opening]}, logprobs)
            filling = {"index": 0, "function": {"arguments": call.function.arguments}}
            yield chunk({"tool_calls": [filling]})
        else:
            yield chunk({**start, "tool_calls": [{"index": 0, **call.model_dump()}]}, logprobs)
    else:
        yield chunk(start, logprobs)
    last = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": choice.finish_reason}
    truncated = [truncation.model_dump() for truncation in answer.truncated]
    yield _event({**common, "choices": [last], "truncated": truncated, "candidate": answer.candidate})
    if include_usage:
        yield _event({**common, "choices": [], "usage": answer.usage.model_dump()})
    yield "data: [DONE]\n\n"


def _call(name: str, custom: bool) -> FunctionCall | CustomCall:
    call_id = f"call_{uuid.uuid4().hex[:24]}"
    if custom:
        return CustomCall(id=call_id, custom=CalledCustom(name=name))
    return FunctionCall(id=call_id, function=CalledFunction(name=name))


def _logprobs(decision: Decision, name_of: Callable[[Candidate], str], top: int) -> Logprobs:
    posterior = [(name_of(ranked.candidate), ranked.probability) for ranked in decision.ranking]
    posterior.append((NONE_TOKEN, decision.none_probability))
    posterior.sort(key=lambda answer: -answer[1])
    if decision.chosen is None:
        token = _top_logprob(NONE_TOKEN, decision.none_probability)
    else:
        token = _top_logprob(name_of(decision.chosen.candidate), decision.chosen.probability)
    best = [_top_logprob(name, probability) for name, probability in posterior[:top]]
    return Logprobs(content=[TokenLogprob(**token.model_dump(), top_logprobs=best)])


def _top_logprob(token: str, probability: float) -> TopLogprob:
    logprob = math.log(probability) if probability > 0 else _LEAST_LOGPROB
    return TopLogprob(token=token, logprob=logprob, bytes=list(token.encode()))


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n"
