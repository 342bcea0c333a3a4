"""Dialogues in which an assistant uses candidates, played by an LLM in every role (ToolACE-MCP, section 3.4).

Knows the subsets that a walk chose, and an LLM; the roles are worded in `prompts.synthesis`. Nothing is executed.
Every dialogue depends only on its number and the seed, so that dialogues may be played at the same time, in any order
and again.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from adapters.arguments import valid, without_empty
from adapters.asking import Asker
from adapters.augment import words
from adapters.mining import Embed, cosines
from adapters.mixture import generator
from adapters.walk import Walker
from prompts import Candidate, Message, ToolCall, synthesis
from prompts.enrichment import LINE_CHARACTERS, Instruction, numbered
from prompts.synthesis import PLAN_STEPS, Twist

# Requests more alike than this are one request. Rewordings and other values in the same sentence reach .87 with
# all-MiniLM-L6-v2.
DUPLICATE = 0.85
# Dialogues played for each that is wanted, after which the rest is given up.
MOST_ATTEMPTS = 3
# Dialogues played between two looks at whether there are enough.
WAVE = 256
# Messages of a user that say what is wanted fit in here several times.
USER_CHARACTERS = 5 * LINE_CHARACTERS
# The group of every dialogue: the whole catalogue was on offer, so far as it is known.
GROUP = "synthetic"
# The shortest name of several plain words that nobody says by chance.
SPELLED_OUT = 3


@dataclass(frozen=True, slots=True)
class Play:
    """How dialogues are played.

    Attributes:
        least, most: candidates of a subset.
        failures, empties: share of the dialogues in which one call fails, or finds nothing.
        changes: share in which the user changes their mind.
        calls: most calls of one dialogue.
        replies: most messages of the user after the first.
        score: the judge's lowest grade that is kept, of 1 to 5.
    """

    least: int = 3
    most: int = 8
    failures: float = 0.2
    empties: float = 0.15
    changes: float = 0.25
    calls: int = 10
    replies: int = 4
    score: int = 4


@dataclass(slots=True)
class Trajectory:
    """A dialogue, finished or not.

    Attributes:
        number: what it depends on, with the seed.
        subset: ids on offer.
        steps: ids that the plan calls.
        twists: what really happened: failure, empty, change.
        messages: calls and results name ids.
        score: the judge's; 0 before.
        rejection: why it is not kept; empty where it is.
    """

    number: int
    subset: tuple[str, ...]
    task: str = ""
    plan: str = ""
    steps: tuple[str, ...] = ()
    twists: list[str] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    score: int = 0
    rejection: str = ""

    @property
    def called(self) -> list[str]:
        """Ids of the calls, in order."""
        return [call.name for message in self.messages for call in message.tool_calls]

    def line(self) -> dict[str, Any]:
        """As JSON, in the project's trajectories format with more fields."""
        return {
            "task": self.task,
            "group": GROUP,
            "messages": [_message_line(message) for message in self.messages],
            "candidates": list(self.subset),
            "plan": self.plan,
            "steps": list(self.steps),
            "twists": self.twists,
            "score": self.score,
            **({"rejection": self.rejection} if self.rejection else {}),
        }


def _message_line(message: Message) -> dict[str, Any]:
    line: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        line["tool_calls"] = [{"name": call.name, "arguments": call.arguments} for call in message.tool_calls]
    return line | ({"name": message.name} if message.name else {})


class _RejectedError(Exception):
    """A dialogue is not worth another call; the reason is its text."""


@dataclass(slots=True)
class Trajectories:
    """What was kept, and what was not, each with its reason."""

    kept: list[Trajectory] = field(default_factory=list)
    rejected: list[Trajectory] = field(default_factory=list)

    @property
    def reasons(self) -> Counter[str]:
        """Rejections by reason."""
        return Counter(trajectory.rejection for trajectory in self.rejected)


async def trajectories(
    walker: Walker,
    candidates: Sequence[Candidate],
    count: int,
    asker: Asker,
    embed: Embed,
    play: Play,
    seed: int,
    tell: Callable[[int, int], object] = lambda played, kept: None,
) -> Trajectories:
    """At most `count` dialogues that pass the filter; fewer where too many do not.

    Args:
        tell: told how many were played, and how many of them are known to be kept.

    Raises:
        EngineUnavailableError, EngineTimeoutError: the LLM answers nobody. Called again, this goes on.
    """
    result = Trajectories()
    openings = np.zeros((count, 0), np.float32)
    number = 0
    while len(result.kept) < count and number < MOST_ATTEMPTS * count:
        size = min(WAVE, count - len(result.kept), MOST_ATTEMPTS * count - number)
        before, kept = number, len(result.kept)

        def played(done: int, before: int = before, kept: int = kept) -> None:
            tell(before + done, kept)

        wave = await _play_all(range(number, number + size), walker, candidates, asker, play, seed, played)
        number += size
        openings = await _keep(wave, openings, embed, result)
        tell(number, len(result.kept))
    return result


async def _play_all(
    numbers: Sequence[int],
    walker: Walker,
    candidates: Sequence[Candidate],
    asker: Asker,
    play: Play,
    seed: int,
    tell: Callable[[int], object],
) -> list[Trajectory]:
    """All of them, at most as many at once as keep the LLM busy: none is far ahead of another when a run is stopped."""
    slots = asyncio.Semaphore(2 * asker.llm.concurrency)
    done = 0

    async def one(number: int) -> Trajectory:
        nonlocal done
        async with slots:
            rng = generator(seed, "trajectory", number)
            subset = [candidates[place] for place in walker.subset(rng)]
            made = await _Stage(number, subset, asker, play, seed, rng).played()
        done += 1
        tell(done)
        return made

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(number)) for number in numbers]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


async def _keep(
    wave: Sequence[Trajectory], openings: NDArray[np.float32], embed: Embed, result: Trajectories
) -> NDArray[np.float32]:
    """Take those that passed, but none whose request was there before. Returns the requests' vectors."""
    passed = [trajectory for trajectory in wave if not trajectory.rejection]
    vectors = (
        await asyncio.to_thread(embed, [one.messages[0].content for one in passed]) if passed else np.zeros((0, 0))
    )
    if passed and not openings.shape[1]:
        openings = np.zeros((len(openings), vectors.shape[1]), np.float32)
    rows = iter(vectors)
    for trajectory in wave:
        if not trajectory.rejection:
            row, kept = next(rows), len(result.kept)
            if cosines(openings[:kept], row).max(initial=0) < DUPLICATE:
                openings[kept] = row
                result.kept.append(trajectory)
                continue
            trajectory.rejection = "duplicate"
        result.rejected.append(trajectory)
    return openings


class _Stage:
    """One dialogue while it is played."""

    def __init__(
        self, number: int, subset: Sequence[Candidate], asker: Asker, play: Play, seed: int, rng: Generator
    ) -> None:
        self._subset = subset
        self._by_id = {candidate.id: candidate for candidate in subset}
        self._asker = asker
        self._play = play
        # The same subset may be walked twice: another seed makes another task of it.
        self._seed = int(generator(seed, "answers", number).integers(2**31))
        self._rng = rng
        self._made = Trajectory(number, tuple(self._by_id))

    async def played(self) -> Trajectory:
        """The dialogue, as far as it went."""
        try:
            await self._begin()
            await self._go_on()
            await self._judge()
        except _RejectedError as reason:
            self._made.rejection = str(reason)
        return self._made

    async def _ask(self, question: Instruction) -> Any:
        answer = await self._asker(question, self._seed)
        if answer is None:
            raise _RejectedError("no answer of the schema")
        return answer

    async def _begin(self) -> None:
        made = self._made
        if len(self._subset) < 2:
            raise _RejectedError("nothing to choose among")
        answer = await self._ask(synthesis.write_task(self._subset))
        made.task, made.plan = answer["task"].strip(), answer["plan"].strip()
        numbers = []
        for name in numbered("step", PLAN_STEPS):
            if not answer[name]:
                break
            numbers.append(answer[name])
        made.steps = tuple(self._subset[number - 1].id for number in numbers)
        if len(made.steps) < 2 or not made.task:
            raise _RejectedError("no plan of two steps")
        checked = await self._ask(synthesis.check_plan(self._subset, made.task, made.plan, numbers))
        if checked["answerable"] == "no":
            raise _RejectedError("plan not answerable")
        opening = await self._ask(synthesis.open_dialogue(made.task))
        self._hear(opening["message"])

    def _hear(self, text: str) -> None:
        """A message of the user."""
        text = text.strip()
        if not text or len(text) > USER_CHARACTERS:
            raise _RejectedError("a user's message is empty or endless")
        self._made.messages.append(Message("user", text))
        if any(names_tool(text, candidate.name) for candidate in self._subset):
            raise _RejectedError("the user names a tool")

    async def _go_on(self) -> None:
        made, play, rng = self._made, self._play, self._rng
        twists = self._drawn_twists(rng)
        changes = bool(rng.random() < play.changes)
        replies = 0
        while True:
            answer = await self._ask(synthesis.act(self._subset, made.task, made.plan, made.messages))
            said = answer["message"].strip()
            if answer["choice"]:
                if len(made.called) >= play.calls:
                    raise _RejectedError("too many calls")
                await self._call(self._subset[answer["choice"] - 1], said, twists.get(len(made.called)))
                continue
            if not said:
                raise _RejectedError("the assistant says nothing")
            made.messages.append(Message("assistant", said))
            change = changes and bool(made.called)
            if replies == play.replies:
                raise _RejectedError("no end in sight")
            reply = await self._ask(synthesis.answer_assistant(made.task, made.messages, change))
            if change:
                changes = False
                made.twists.append("change")
            elif reply["finished"] == "yes":
                return
            replies += 1
            self._hear(reply["message"])

    def _drawn_twists(self, rng: Generator) -> dict[int, Twist]:
        """Which call fails and which finds nothing, by its place."""
        twists: dict[int, Twist] = {}
        shares: tuple[tuple[Twist, float], ...] = (("failure", self._play.failures), ("empty", self._play.empties))
        for twist, share in shares:
            # Drawn whatever comes of it, so that one share does not move the other.
            happens, place = rng.random() < share, int(rng.integers(len(self._made.steps)))
            if happens:
                twists.setdefault(place, twist)
        return twists

    async def _call(self, candidate: Candidate, said: str, twist: Twist | None) -> None:
        made = self._made
        arguments: Any = {}
        if synthesis.arguments_schema(candidate)["properties"]:
            asked = synthesis.fill_arguments(candidate, made.messages, self._by_id)
            arguments = without_empty(await self._ask(asked), candidate.input_schema)
        if not valid(arguments, candidate.input_schema):
            raise _RejectedError("arguments not of the schema")
        written = json.dumps(arguments, ensure_ascii=False)
        question = synthesis.play_environment(candidate, written, made.messages, twist)
        result = (await self._ask(question))["result"].strip()
        made.messages.append(Message("assistant", said, (ToolCall(candidate.id, written),)))
        made.messages.append(Message("tool", result, name=candidate.id))
        if twist:
            made.twists.append(twist)

    async def _judge(self) -> None:
        made = self._made
        if len(made.called) < 2:
            raise _RejectedError("fewer than two calls")
        made.score = (await self._ask(synthesis.judge(self._subset, made.task, made.plan, made.messages)))["score"]
        if made.score < self._play.score:
            raise _RejectedError("the judge's score")


def names_tool(text: str, name: str) -> bool:
    """Whether a text gives a name away: written as an identifier, or spelled out where nobody says it by chance.

    `get_weather` in "call get_weather" does, "get the weather" and the plain word of a tool called `search` do not.
    """
    parts = words(name)
    if len(parts) < 2:
        return False
    if " " not in name.strip() and name.casefold() in text.casefold():
        return True
    return len(parts) >= SPELLED_OUT and f" {' '.join(parts)} " in f" {' '.join(words(text))} "
