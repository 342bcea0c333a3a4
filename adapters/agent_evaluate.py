"""The end-to-end evaluation: an executing model does recorded tasks again, with each way of finding its tools.

Knows the order of things, and that a run already recorded is not made again. What a task is, how its upstreams are
simulated and why a run failed stand in `agent_tasks`, `agent_replay` and `failures`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

import adapters
from adapters.agent_replay import Finder, Replay, names
from adapters.agent_tasks import Call, Task
from adapters.answers import code_digest
from adapters.evaluate import Progress
from adapters.failures import CATEGORIES, called, category, succeeded
from adapters.metrics import interval, resampled_means
from adapters.mixture import generator
from adapters.oracle import Count
from adapters.questions import Pool
from prompts import Candidate
from prompts.agent import instructions
from serving.agent import loop
from serving.agent.arguments import Schemas
from serving.agent.loop import Bounds, ChatModel, Run, function_of
from serving.llm import Journal

Row = dict[str, Any]
Episode = dict[str, Any]
"""A run as it is recorded: what it took, whether it succeeded, why not, and its steps."""

# Of an executing model's context, what is left to the conversation where all tools stand in it.
_CONVERSATION = 0.25
# What a recorded step keeps of its text and result.
_SHOWN_CHARACTERS = 300
_COUNTED = ("steps", "calls", "discoveries", "prompt_tokens", "completion_tokens", "router_tokens", "accessible")


class AgentSettings(BaseModel):
    """What a run depends on beside task and method."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    llm: str
    """The executing model's name at its endpoint, or `oracle`."""
    url: str = ""
    """Its endpoint with its /v1; the oracle has none."""
    context: int = Field(default=32_768, ge=1_024)
    """Tokens that the executing model reads at most, as the router's tokenizer counts them."""
    steps: int = Field(default=30, ge=1)
    alternatives: int = Field(default=3, ge=0)
    k: int = Field(default=10, ge=1)
    """Candidates that the prefilter keeps for the router."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Method:
    """A way of finding tools, by its name on the command line. Without a finder all tools are given."""

    name: str
    finder: Finder | None


Executor = Callable[[Task], ChatModel]


async def evaluate_agent(
    sets: Mapping[str, Sequence[Task]],
    methods: Sequence[Method],
    executor: Executor,
    settings: AgentSettings,
    journal: Journal,
    count: Count,
    progress: Progress = lambda _title, _count: lambda: None,
) -> dict[str, Any]:
    """Run every task with every method, and return the report: lists of rows under the name of each table.

    The methods' parts must be started.

    Args:
        executor: the model of one run.
        journal: runs that were made, by what they depend on.
        count: tokens of a JSON value.

    Raises:
        LightRouterError: the router or the executing model cannot be asked.
    """
    runs = _Runs(executor, settings, journal, count)
    episodes: dict[tuple[str, str], list[Episode]] = {}
    for set_, tasks in sets.items():
        for method in methods:
            done = progress(f"{set_} · {method.name}", len(tasks))
            for task in tasks:
                episodes.setdefault((set_, method.name), []).append(await runs.episode(set_, task, method))
                done()
    return {
        "agent": [_result(*key, rows, settings.seed) for key, rows in episodes.items()],
        "agent_comparisons": _comparisons(episodes, settings.seed),
        "agent_context": runs.context_rows(),
        "episodes": [episode for rows in episodes.values() for episode in rows],
    }


@dataclass(slots=True)
class _Given:
    """Of a pool of `of` candidates with so many tokens those that fit, and how many tasks had them."""

    candidates: tuple[Candidate, ...]
    of: int
    tokens_of_all: int
    tasks: int = 0


class _Runs:
    def __init__(self, executor: Executor, settings: AgentSettings, journal: Journal, count: Count) -> None:
        self._executor = executor
        self._settings = settings
        self._journal = journal
        self._count = count
        self._code = _code()
        self._schemas = Schemas()
        self._given: dict[tuple[str, str], _Given] = {}

    async def episode(self, set_: str, task: Task, method: Method) -> Episode:
        """The run, made now or before."""
        settings, finder = self._settings, method.finder
        parts = [self._code, settings.model_dump(), method.name, finder and finder.settings, task.pool.digest]
        text = json.dumps([*parts, set_, task.id, repr(task.messages)], default=str)
        key = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        given = self._fitting(set_, task.pool) if finder is None else None
        known = self._journal.get(key)
        if known is not None:
            return known  # type: ignore[no-any-return]
        bounds = Bounds(steps=settings.steps, tokens=None, deadline_s=None, alternatives=settings.alternatives)
        further = iter(task.requests[1:])

        async def user(said: str) -> str | None:
            return next(further, None)

        toolbox = Replay(task, finder, self._schemas)
        run = await loop.run(task.requests[0], self._executor(task), toolbox, bounds, user=user, given=given)
        episode = await _recorded(set_, method, task, run, settings.alternatives)
        self._journal.put(key, episode)
        return episode

    def _fitting(self, set_: str, pool: Pool) -> tuple[Candidate, ...]:
        """As many of the pool as fit the executing model's context, in the pool's order; the seed draws which."""
        key = (set_, pool.digest)
        if key not in self._given:
            room = self._settings.context * (1 - _CONVERSATION) - self._count(instructions(discovering=False))
            surface = names(pool).surface
            sizes = [self._count(function_of(surface[one.id], one)) for one in pool.candidates]
            chosen: list[int] = []
            for place in generator(self._settings.seed, "given", pool.digest).permutation(len(sizes)).tolist():
                if sizes[place] <= room:
                    room -= sizes[place]
                    chosen.append(place)
            given = tuple(pool.candidates[place] for place in sorted(chosen))
            self._given[key] = _Given(given, len(sizes), sum(sizes))
        self._given[key].tasks += 1
        return self._given[key].candidates

    def context_rows(self) -> list[Row]:
        """How many of each pool were given, of how many."""
        return [
            {
                "set": set_,
                "tools": given.of,
                "given": len(given.candidates),
                "tasks": given.tasks,
                "tokens_of_all": given.tokens_of_all,
                "context": self._settings.context,
            }
            for (set_, _), given in self._given.items()
        ]


async def _recorded(set_: str, method: Method, task: Task, run: Run, alternatives: int) -> Episode:
    finder = method.finder

    async def finds(call: Call) -> bool:
        """Whether it would have become callable."""
        assert finder is not None  # noqa: S101  (asked only where there is one)
        found = await finder.find(loop.announced(call.before, call.need), task)
        chosen = [found.chosen] if found.chosen else []
        return call.candidate in {one.id for one in (*chosen, *found.others[:alternatives])}

    done = called(run, task)
    return {
        "set": set_,
        "method": method.name,
        "task": task.id,
        "outcome": run.outcome,
        "success": succeeded(run, task),
        "category": await category(run, task, finds if finder else None),
        "gold": len(task.gold),
        "gold_called": len(done),
        "missing": [id_ for id_ in task.gold if id_ not in done],
        "steps": len(run.steps),
        "calls": run.calls,
        "discoveries": sum(step.action == "discover" for step in run.steps),
        "accessible": len(run.accessible),
        "prompt_tokens": run.usage.prompt_tokens,
        "completion_tokens": run.usage.completion_tokens,
        "router_tokens": run.router_tokens,
        "error": run.error,
        "trace": [
            {
                "action": step.action,
                "candidate": step.candidate,
                "text": step.text[:_SHOWN_CHARACTERS],
                "result": step.result[:_SHOWN_CHARACTERS],
                "failed": step.failed,
                "found": list(step.found),
            }
            for step in run.steps
        ],
    }


def _result(set_: str, method: str, episodes: Sequence[Episode], seed: int) -> Row:
    """One row of the main table: means over the tasks, and of success its 95% bootstrap interval."""
    success = np.array([episode["success"] for episode in episodes], dtype=np.float64)
    samples = resampled_means(success[:, None], [episode["task"] for episode in episodes], seed)
    return {
        "set": set_,
        "method": method,
        "n": len(episodes),
        "success": float(success.mean()),
        "interval": interval(samples[:, 0]),
        "gold_called": _mean(episode["gold_called"] / episode["gold"] for episode in episodes),
        **{name: _mean(episode[name] for episode in episodes) for name in _COUNTED},
        **{name: sum(episode["category"] == name for episode in episodes) for name in CATEGORIES},
    }


def _comparisons(episodes: Mapping[tuple[str, str], Sequence[Episode]], seed: int) -> list[Row]:
    """The router's success less every other method's, task by task, with paired bootstrap intervals."""
    rows: list[Row] = []
    for (set_, method), theirs in episodes.items():
        mine = episodes.get((set_, "router"))
        if method == "router" or mine is None:
            continue
        differences = np.array([float(a["success"]) - b["success"] for a, b in zip(mine, theirs, strict=True)])
        samples = resampled_means(differences[:, None], [episode["task"] for episode in mine], seed)
        rows.append(
            {"set": set_, "method": "router", "baseline": method, "n": len(mine),
             "difference": float(differences.mean()), "interval": interval(samples[:, 0])}
        )  # fmt: skip
    return rows


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _code() -> str:
    """Of all code that a run depends on."""
    digest = hashlib.blake2b(code_digest().encode(), digest_size=12)
    here = Path(str(adapters.__file__)).parent
    agent = Path(str(loop.__file__)).parent
    parts = [here / f"{name}.py" for name in ("agent_tasks", "agent_replay", "agent_evaluate", "failures", "oracle")]
    for path in (*parts, *(agent / f"{name}.py" for name in ("loop", "arguments", "description"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()
