"""`light-router eval --agent`: arguments, progress and files around `adapters.agent_evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from adapters.agent_evaluate import AgentSettings, Method, evaluate_agent
from adapters.agent_replay import finder
from adapters.agent_tasks import Task, found_sets, held_out_tasks
from adapters.methods import Parts
from adapters.mixture import CasesRecipe
from adapters.oracle import Oracle, token_counter
from adapters.terminal import progress
from prompts import PromptTokenizer
from serving.llm import LLM, Journal

ORACLE = "oracle"
# An executing model may think for long.
_TIMEOUT_S = 600.0


def settings(llm: str, url: str, model: str, **more: int) -> AgentSettings:
    """What is run, from the command line.

    Raises:
        ValueError: the executing model is not named, or named twice.
    """
    if llm not in {"", ORACLE} or bool(llm) == bool(url or model) or bool(url) != bool(model):
        raise ValueError(
            f"--agent needs the model that executes: --llm-url with --llm-model, or --llm {ORACLE} for a script that "
            "calls every recorded tool which has become callable"
        )
    return AgentSettings(llm=llm or model, url=url, **more)


def tasks(data: Path, sets: Sequence[str], recipe: Path, **reading: Any) -> dict[str, list[Task]]:
    """The tasks of each set; of every file of trajectories in `data` where none is named. Raises ValueError as
    `held_out_tasks` and `found_sets`."""
    held_out = CasesRecipe.load(recipe)
    read = [held_out_tasks(data, spec, held_out, **reading) for spec in sets or found_sets(data)]
    named = {tasks[0].case.source: tasks for tasks in read}
    if len(named) < len(read):
        raise ValueError(f"two of the files have the same name: {', '.join(sets)}")
    return named


async def measured(
    parts: Parts,
    sets: dict[str, list[Task]],
    names: Sequence[str],
    asked: AgentSettings,
    api_key: str,
    output: Path | None,
) -> dict[str, Any]:
    """The report. Runs are kept beside `output`, so that an interrupted evaluation continues.

    Raises:
        ValueError: there is no such method.
        LightRouterError: as `evaluate_agent`.
    """
    methods = [Method(name, finder(name, parts, asked.k)) for name in names]
    base = parts.config.model
    count = token_counter(PromptTokenizer(base.tokenizer or base.path))
    journal = Journal(output.with_suffix(".runs.jsonl") if output else None)
    llm = None
    if asked.url:
        # As repeatable as an endpoint can be.
        fixed = {"temperature": 0, "seed": asked.seed}
        llm = LLM(asked.llm, asked.url, api_key=api_key, timeout_s=_TIMEOUT_S, extra=fixed)
    try:
        await parts.start()
        with progress() as announce:
            return await evaluate_agent(
                sets, methods, lambda task: llm or Oracle(task, count), asked, journal, count, announce
            )
    finally:
        journal.close()
        if llm:
            await llm.close()
        await parts.close()
