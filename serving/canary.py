"""The canary: a few questions on which an adapter and its bare base model answer differently.

Knows a manifest, a template and engines. An adapter that loads but is not applied, or is applied to other weights
than it was trained on, answers every request with confidence and wrongly; nothing but asking shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from prompts import Candidate, Message, Template
from serving.catalog.names import surface_names
from serving.engine.base import Engine
from serving.manifest import CanaryPart, Manifest
from serving.readout import read

# Scores may differ this much from the recorded ones: other kernels round otherwise. Measured between this engine
# and vLLM: below 0.2.
TOLERANCE = 0.5
# A working adapter moves at least one score of the canary by more than this against the bare model.
EFFECT = 0.05


async def answer(engine: Engine, template: Template, canary: CanaryPart) -> NDArray[np.float64]:
    """Log-probability of each option, none last, as an engine that has started gives it, before calibration."""
    candidates = [Candidate(name, name, description) for name, description in canary.candidates]
    names = surface_names(candidates) if template.readout == "generate" else None
    prompt = template.render([Message("user", canary.query)], candidates, names=names)
    reading = await read(engine, template, prompt, salt="canary", deadline=None, whole=True)
    return np.asarray(reading.scores - np.logaddexp.reduce(reading.scores))


async def answers(engine: Engine, template: Template, canaries: Sequence[CanaryPart]) -> list[NDArray[np.float64]]:
    """`answer` to each of several."""
    return [await answer(engine, template, canary) for canary in canaries]


class AdapterCheck:
    """Starts an adapter's engine, and refuses the adapter where its canary shows that it does not work.

    Args:
        manifest: the adapter's.
        template: how it is asked.
        bare: makes the engine of the base model alone.
    """

    def __init__(self, manifest: Manifest, template: Template, bare: Callable[[], Engine]) -> None:
        self._manifest = manifest
        self._template = template
        self._bare = bare

    async def start(self, engine: Engine) -> None:
        """Ask the bare model, start the adapter's engine, ask it, and compare.

        Raises:
            ValueError: the adapter changes nothing, or answers otherwise than when it was made.
            EngineUnavailableError: either engine cannot be reached or loaded.
        """
        bare = self._bare()
        try:
            await bare.start()
            without = await answers(bare, self._template, self._manifest.canary)
        finally:
            await bare.close()
        await engine.start()
        self.compare(without, await answers(engine, self._template, self._manifest.canary))

    def compare(self, without: Sequence[NDArray[np.float64]], with_adapter: Sequence[NDArray[np.float64]]) -> None:
        """Raises ValueError as `start` does."""
        name = self._manifest.name
        effect = max((float(np.abs(a - b).max()) for a, b in zip(with_adapter, without, strict=True)), default=0.0)
        if effect < EFFECT:
            raise ValueError(
                f"the adapter {name} changes nothing: on its canary it moves the base model's scores by at most "
                f"{effect:.4f}. Its weights were not applied, or are those of an untrained adapter"
            )
        for number, (now, canary) in enumerate(zip(with_adapter, self._manifest.canary, strict=True)):
            gap = float(np.abs(now - np.asarray(canary.adapter)).max())
            if gap > TOLERANCE:
                raise ValueError(
                    f"canary {number} of the adapter {name} now scores {gap:.2f} away from what was recorded when it "
                    "was made: other adapter weights, another base model, or another engine configuration"
                )
