"""Why a run failed, in SING's four categories (appendix A.1): each failure has one, its earliest cause.

Knows what a run did and what the trajectory called. SING has an LLM judge read the trace; here rules decide, so that
the same run is always sorted alike:

- query formulation: the first gold tool that was not called was never asked for, once the one before it was found; or
  it was not found by what was asked, but is found when asked for in the words that were recorded.
- discovery: it is not found even in those words.
- tool use: it could be called, and the call failed, or another tool that the trajectory does not know was called.
- reasoning / other: it could be called and was not, every gold tool was called but no answer came, or it did not fit
  the context where all tools stand there from the start.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal, get_args

from adapters.agent_tasks import Call, Task
from serving.agent.loop import Run

Category = Literal["query_formulation", "discovery", "tool_use", "other"]
CATEGORIES: tuple[Category, ...] = get_args(Category)
Finds = Callable[[Call], Awaitable[bool]]
"""Whether discovery finds a recorded call's candidate, asked in the recorded words."""


def called(run: Run, task: Task) -> frozenset[str]:
    """The gold ids whose call was answered."""
    return frozenset(step.candidate for step in run.steps if step.action == "invoke" and not step.failed).intersection(
        task.gold
    )


def succeeded(run: Run, task: Task) -> bool:
    """Every candidate that the trajectory called was called, in any order, and a final answer was given."""
    return run.outcome == "responded" and len(called(run, task)) == len(task.gold)


async def category(run: Run, task: Task, finds: Finds | None) -> Category | None:
    """The category of a failure; None for success.

    Args:
        finds: None where nothing is discovered: SING has its first two categories not apply there.
    """
    if succeeded(run, task):
        return None
    done = called(run, task)
    missing = next((id_ for id_ in task.gold if id_ not in done), None)
    if missing is None:
        return "other"
    if missing in run.accessible:
        return "tool_use" if _misused(run, task, missing) else "other"
    if finds is None:
        return "other"
    call = next(call for call in task.calls if call.candidate == missing)
    since = _found_at(run, task, missing)
    asked = [step.text for step in run.steps[max(since, 0) :] if step.action == "discover"]
    if call.need in asked:
        return "discovery"
    never = not any(step.action == "discover" for step in run.steps[since + 1 :])
    return "query_formulation" if never or await finds(call) else "discovery"


def _found_at(run: Run, task: Task, missing: str) -> int:
    """The step that found the gold before the missing one; -1 where that is the first, or was there from the start."""
    place = task.gold.index(missing)
    before = task.gold[place - 1] if place else None
    return next((at for at, step in enumerate(run.steps) if before is not None and before in step.found), -1)


def _misused(run: Run, task: Task, missing: str) -> bool:
    """Whether, since it could be called, its call failed or something else was called in its place."""
    since = next((at + 1 for at, step in enumerate(run.steps) if missing in step.found), 0)
    later = [step for step in run.steps[max(since, 0) :] if step.action == "invoke"]
    return any(step.candidate == missing or step.candidate not in task.gold for step in later)
