"""A chat model at work on a task: it discovers, invokes and responds (SING, section 3.2), the router choosing for it.

Knows the conversation, as the chat model reads it and as a router was trained to read it. Does not know where
functions are found or called: that is a `Toolbox`. Functions that were found stay at hand; a call that fails is told to
the model, which may do otherwise. With no alternatives only the router's choice becomes callable, and the model but
fills the arguments and reads the result (ToolACE-MCP, section 3.5).
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import anyio

from prompts.agent import (
    DISCOVER,
    EMPTY_ANSWER,
    discover_function,
    discovered,
    instructions,
    unknown_function,
)
from serving.agent.arguments import as_object, shown_schema
from serving.agent.threads import digest
from serving.agent.upstreams import UpstreamError
from serving.catalog.shapes import function_tool
from serving.catalog.sources.base import plain
from serving.llm import FunctionCall, Reply, Usage
from serving.types import (
    BusyError,
    Candidate,
    ConflictError,
    EngineError,
    EngineTimeoutError,
    EngineUnavailableError,
    ForbiddenError,
    InvalidRequestError,
    Message,
    NotFoundError,
    ToolCall,
)

Action = Literal["discover", "invoke", "respond"]
Outcome = Literal["responded", "steps", "tokens", "deadline", "refused"]
"""Why a run ended: with a response, at one of its bounds, or because the model's endpoint refused the conversation."""
User = Callable[[str], Awaitable[str | None]]
"""What the user says to a response; None where nothing more."""
MENDABLE = (InvalidRequestError, NotFoundError, ForbiddenError, ConflictError, BusyError, UpstreamError)
"""What a model may get round, by another call or another function. Everything else ends the run."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far a run may go. A bound that is reached ends it; what was done until then is reported.

    Attributes:
        steps: discoveries, invocations and responses.
        tokens: of the model's prompts and completions together, as its endpoint counts them; None for no bound.
        deadline_s: seconds of the whole run; None for no bound.
        alternatives: functions of each discovery that become callable beside the router's choice.
        result_characters: of one result that the model and the router read.
    """

    steps: int = 30
    tokens: int | None = 200_000
    deadline_s: float | None = 600.0
    alternatives: int = 3
    result_characters: int = 8_000


@dataclass(frozen=True, slots=True)
class Discovery:
    """What was found for a step.

    Attributes:
        chosen: what was decided for; None where nothing fits.
        others: the rest of the ranking, best first.
        prompt_tokens: that the router read.
        note: what the model should know besides.
    """

    chosen: Candidate | None
    others: Sequence[Candidate] = ()
    prompt_tokens: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Observation:
    """What a call gave back, as text."""

    text: str
    failed: bool = False


class Toolbox(Protocol):
    """Where functions are found and called. What is MENDABLE of a method's errors is told to the model."""

    async def behind(self) -> str:
        """What can be found, in a sentence or two."""
        ...

    def name(self, candidate: Candidate) -> str:
        """The function's name for a candidate that was found: `[a-zA-Z0-9_-]{1,64}`, another's for no other."""
        ...

    async def discover(self, messages: Sequence[Message]) -> Discovery:
        """What may act next. The last message says what is needed: the model's announcement, or the user's words."""
        ...

    async def invoke(self, candidate: Candidate, arguments: dict[str, Any]) -> Observation:
        """Calls it."""
        ...


class ChatModel(Protocol):
    """What of an `LLM` is used here."""

    async def chat(self, turns: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> Reply: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Step:
    """One action and what came of it.

    Attributes:
        text: a discovery's need, an invocation's arguments as the model wrote them, a response's words.
        candidate: the id of what was invoked; empty where the model named no function it has.
        result: what the model was told.
        found: ids that became callable.
        usage: of the model's message; of several calls in one message the first carries it.
    """

    action: Action
    text: str
    candidate: str = ""
    result: str = ""
    failed: bool = False
    found: tuple[str, ...] = ()
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class Run:
    """What became of a task.

    Attributes:
        answer: the last response; None where there was none.
        accessible: ids that can be called at the end, in the order in which they were found.
        usage: of the model, all steps together.
        router_tokens: that the router read for all discoveries.
        error: why the endpoint refused, with outcome `refused`.
    """

    outcome: Outcome
    answer: str | None
    steps: tuple[Step, ...]
    accessible: tuple[str, ...]
    usage: Usage
    router_tokens: int
    error: str = ""

    @property
    def calls(self) -> int:
        """Invocations, failed ones too."""
        return sum(step.action == "invoke" for step in self.steps)


async def run(
    task: str,
    llm: ChatModel,
    toolbox: Toolbox,
    bounds: Bounds | None = None,
    *,
    user: User | None = None,
    given: Sequence[Candidate] | None = None,
) -> Run:
    """Work on a task until the model responds and the user says nothing more, or a bound is reached.

    Args:
        user: asked after each response; without one the first response is the last.
        given: candidates that can be called from the start, in place of any discovery.

    Raises:
        InvalidRequestError: the task is empty.
        EngineUnavailableError, EngineTimeoutError: the model cannot be reached, or was silent for too long.
        LightRouterError: what the router or its catalogue raises and no model can mend.
    """
    work = _Work(llm, toolbox, bounds or Bounds(), user, given)
    return await work.done(task)


def function_name(name: str) -> str:
    """The name under which the model is offered a candidate that its toolbox calls `name`."""
    return f"{name}_" if name == DISCOVER else name


class _Work:
    """One run while it lasts."""

    def __init__(
        self, llm: ChatModel, toolbox: Toolbox, bounds: Bounds, user: User | None, given: Sequence[Candidate] | None
    ) -> None:
        self._llm = llm
        self._toolbox = toolbox
        self._bounds = bounds
        self._user = user
        self._discover: list[dict[str, Any]] = []
        self._discovering = given is None
        self._functions: dict[str, Candidate] = {}
        # The conversation as the chat model reads it, and as the router does: without discoveries, calls by id.
        self._turns: list[dict[str, Any]] = [{"role": "system", "content": instructions(discovering=given is None)}]
        self._messages: list[Message] = []
        self._steps: list[Step] = []
        self._usage = Usage()
        self._router_tokens = 0
        self._answer: str | None = None
        self._error = ""
        for candidate in given or ():
            self._add(candidate)

    async def done(self, task: str) -> Run:
        """See `run`."""
        if not task.strip():
            raise InvalidRequestError("the task is empty; say what is to be done", "task")
        outcome: Outcome = "deadline"
        with anyio.move_on_after(self._bounds.deadline_s):
            if self._discovering:
                self._discover = [discover_function(await self._toolbox.behind())]
            self._hear(task)
            outcome = await self._go_on()
        accessible = tuple(candidate.id for candidate in self._functions.values())
        return Run(outcome, self._answer, tuple(self._steps), accessible, self._usage, self._router_tokens, self._error)

    def _hear(self, text: str) -> None:
        """A message of the user."""
        text = plain(text).strip()
        self._turns.append({"role": "user", "content": text})
        self._messages.append(Message("user", text))

    async def _go_on(self) -> Outcome:
        bounds = self._bounds
        while True:
            if len(self._steps) >= bounds.steps:
                return "steps"
            if bounds.tokens is not None and self._usage.prompt_tokens + self._usage.completion_tokens >= bounds.tokens:
                return "tokens"
            try:
                reply = await self._llm.chat(self._turns, self._tools())
            except (EngineTimeoutError, EngineUnavailableError):
                raise
            except EngineError as error:  # this conversation only, such as one longer than the model reads
                self._error = str(error)
                return "refused"
            self._usage += reply.usage
            self._turns.append(_turn(reply))
            if reply.calls:
                await self._act(reply)
            elif not await self._respond(reply):
                return "responded"

    def _tools(self) -> list[dict[str, Any]]:
        return [*self._discover, *(function_of(name, candidate) for name, candidate in self._functions.items())]

    # Respond

    async def _respond(self, reply: Reply) -> bool:
        """Whether it goes on."""
        said = plain(reply.content).strip()
        if not said:
            self._steps.append(Step("respond", "", result=EMPTY_ANSWER, failed=True, usage=reply.usage))
            self._turns.append({"role": "user", "content": EMPTY_ANSWER})
            return True
        self._answer = said
        self._steps.append(Step("respond", said, usage=reply.usage))
        self._messages.append(Message("assistant", said))
        more = await self._user(said) if self._user else None
        if more is not None:
            self._hear(more)
        return more is not None

    # Discover and invoke

    async def _act(self, reply: Reply) -> None:
        usage, said = reply.usage, plain(reply.content).strip()
        for call in reply.calls:
            if len(self._steps) >= self._bounds.steps:
                return
            if call.name == DISCOVER and self._discovering:
                step = await self._find(call, usage)
            else:
                step = await self._invoke(call, said, usage)
            self._steps.append(step)
            self._turns.append({"role": "tool", "tool_call_id": call.id, "content": step.result})
            usage, said = Usage(), ""

    async def _find(self, call: FunctionCall, usage: Usage) -> Step:
        need = ""
        try:
            need = _need(call.arguments)
            found = await self._toolbox.discover(announced(self._messages, need))
        except MENDABLE as error:
            return Step("discover", need or call.arguments, result=_failed(error), failed=True, usage=usage)
        self._router_tokens += found.prompt_tokens
        known = {candidate.id: name for name, candidate in self._functions.items()}
        chosen = found.chosen
        others = [one for one in found.others if one.id not in known and one != chosen][: self._bounds.alternatives]
        best = None if chosen is None else known.get(chosen.id) or self._add(chosen)
        names = [self._add(candidate) for candidate in others]
        for one in (*([chosen] if chosen else []), *found.others):
            if one.id in known:
                self._functions[known[one.id]] = one  # as it is described now
        new = ([chosen] if chosen and chosen.id not in known else []) + others
        told = discovered(best, names, bool(chosen and chosen.id in known), found.note)
        return Step("discover", need, result=told, found=tuple(one.id for one in new), usage=usage)

    def _add(self, candidate: Candidate) -> str:
        name = function_name(self._toolbox.name(candidate))
        self._functions[name] = candidate
        return name

    async def _invoke(self, call: FunctionCall, said: str, usage: Usage) -> Step:
        candidate = self._functions.get(call.name)
        if candidate is None:
            error = unknown_function(call.name[:100], [tool["function"]["name"] for tool in self._tools()])
            return Step("invoke", call.arguments, result=_failed(error), failed=True, usage=usage)
        try:
            arguments = as_object(call.arguments, "arguments")
            seen = await self._toolbox.invoke(candidate, arguments)
        except MENDABLE as error:
            seen = Observation(str(error), failed=True)
        except anyio.get_cancelled_exc_class():
            late = "the deadline passed during this call, which may have had an effect"
            self._steps.append(Step("invoke", call.arguments, candidate.id, _failed(late), failed=True, usage=usage))
            raise
        text = digest(seen.text, self._bounds.result_characters)
        result = _failed(text) if seen.failed else text
        self._messages.append(Message("assistant", said, (ToolCall(candidate.id, plain(call.arguments)),)))
        self._messages.append(Message("tool", result, (), candidate.id))
        return Step("invoke", call.arguments, candidate.id, result, seen.failed, usage=usage)


def announced(messages: Sequence[Message], need: str) -> list[Message]:
    """The conversation as the router was trained on it: the assistant announces its step. The user's own words again
    announce nothing."""
    query = next(message.content for message in reversed(messages) if message.role == "user")
    return [*messages] if need == query else [*messages, Message("assistant", need)]


def _need(arguments: str) -> str:
    need = as_object(arguments, "arguments").get("need")
    if not isinstance(need, str) or not need.strip():
        raise InvalidRequestError('there is no need; call it with {"need": "what the next step needs"}', "need")
    return plain(need).strip()


def _failed(error: object) -> str:
    return f"error: {error}"


def _turn(reply: Reply) -> dict[str, Any]:
    """The model's message in the protocol. A server may parse the arguments, so they are JSON whatever was written."""
    turn: dict[str, Any] = {"role": "assistant", "content": reply.content}
    if reply.calls:
        turn["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _json(call.arguments)}}
            for call in reply.calls
        ]
    return turn


def _json(text: str) -> str:
    try:
        json.loads(text)
    except ValueError:
        return json.dumps({"arguments": text} if text else {})
    return text


def function_of(name: str, candidate: Candidate) -> dict[str, Any]:
    """The candidate as a function of the chat protocol."""
    shown = replace(candidate, input_schema=shown_schema(candidate.input_schema, candidate.type))
    return function_tool(shown, name)
