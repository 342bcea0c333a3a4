"""adapter.yaml: what an adapter was made for, how good it is, and how it shows that it works.

Knows the file beside an adapter's weights. Serving reads it and refuses an adapter that was made for another base
model, template or tokenizer, and one that changes nothing; `adapters/` writes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from prompts import Budget, Candidate, Message, PromptTokenizer, Template
from prompts.template import Layout, Readout
from serving.engine.base import ScoreRequest, Scores
from serving.posterior import Calibration

FILE = "adapter.yaml"


class Part(BaseModel):
    """A branch of the manifest: an unknown key is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class BaseModelPart(Part):
    """The base model: by the digest of its weights, or by the hub's revision."""

    name: str
    sha256: str | None = None
    """Of model.safetensors; checked where the file can be read."""
    revision: str | None = None


class TemplatePart(Part):
    """How questions are worded. `fingerprint` is `Template.fingerprint` at training."""

    chat: Literal["chatml", "qwen3"]
    readout: Readout
    layout: Layout = "messages_first"
    budget: Budget
    fingerprint: str

    def build(self, tokenizer: PromptTokenizer) -> Template:
        """The template, checked to word questions exactly as it did at training.

        Raises:
            ValueError: it words them differently now, or does not fit the tokenizer.
        """
        template = Template(tokenizer, chat=self.chat, readout=self.readout, layout=self.layout, budget=self.budget)
        if template.fingerprint() != self.fingerprint:
            raise ValueError(
                f"the adapter was trained with template {self.fingerprint}, but this code and tokenizer make "
                f"{template.fingerprint()}; serve it with the version it was trained by, or train it again"
            )
        return template


class LoraPart(Part):
    """The adapter's shape."""

    rank: int = Field(ge=1)
    alpha: float
    target_modules: tuple[str, ...]


class DataPart(Part):
    """One source of training cases."""

    name: str
    licence: str
    sha256: str
    cases: int


class ResultPart(Part):
    """One measured number, its 95% interval, and the best baseline on the same cases."""

    dataset: str
    split: str
    metric: str
    value: float
    interval: tuple[float, float] | None = None
    baseline: str | None = None
    baseline_value: float | None = None


class CanaryPart(Part):
    """A question, and the log-odds or label log-probabilities that adapter and base model gave when it was made."""

    query: str
    candidates: tuple[tuple[str, str], ...]
    """Name and description of each."""
    adapter: tuple[float, ...]
    base: tuple[float, ...]


class Manifest(Part):
    """The whole file. Build it with `load`."""

    format: Literal[1] = 1
    name: str
    base_model: BaseModelPart
    template: TemplatePart
    lora: LoraPart
    max_candidates: int | None = None
    trained_on: tuple[DataPart, ...] = ()
    hyperparameters: dict[str, Any] = {}
    command: str = ""
    evaluation: tuple[ResultPart, ...] = ()
    calibration: Calibration = Calibration()
    calibrated_on: str = ""
    canary: tuple[CanaryPart, ...] = ()

    @classmethod
    def load(cls, adapter: str | Path) -> Manifest:
        """Read the manifest in an adapter's folder.

        Raises:
            ValueError: there is none, or it is invalid; the message names the key and what would help.
        """
        file = Path(adapter) / FILE
        try:
            return cls.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))
        except OSError as error:
            raise ValueError(
                f"{adapter} has no readable {FILE}: {error}; `light-router adapter import {adapter}` makes one"
            ) from error
        except (yaml.YAMLError, ValidationError) as error:
            raise ValueError(f"{file} is invalid: {error}") from error

    def save(self, adapter: str | Path) -> None:
        """Write it into an adapter's folder."""
        text = yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120)
        (Path(adapter) / FILE).write_text(text, encoding="utf-8")

    def check_base_model(self, path: str) -> None:
        """Raises ValueError where the folder `path` holds other weights than the adapter was trained on."""
        file = Path(path) / "model.safetensors"
        if self.base_model.sha256 is None or not file.is_file():
            return
        with file.open("rb") as weights:
            digest = hashlib.file_digest(weights, "sha256").hexdigest()
        if digest != self.base_model.sha256:
            raise ValueError(
                f"{file} has sha256 {digest}, but the adapter {self.name} belongs to {self.base_model.sha256} "
                f"({self.base_model.name}): an adapter works only on the weights it was trained on"
            )

    def canary_questions(self, template: Template) -> list[ScoreRequest]:
        """The canary as engine requests, in the order of `canary`."""
        questions = []
        for canary in self.canary:
            candidates = [Candidate(name, name, description) for name, description in canary.candidates]
            prompt = template.render([Message("user", canary.query)], candidates)
            questions.append(ScoreRequest(prompt.prefix, prompt.continuations, prompt.labels, "canary"))
        return questions


# Log-odds may differ this much from the recorded ones: rounding of bfloat16 and of other kernels, measured at
# most a tenth of it.
CANARY_TOLERANCE = 0.5
# A working adapter moves some canary's log-odds by more than this against the bare model.
CANARY_EFFECT = 0.05


def log_scores(template: Template, scores: Scores) -> np.ndarray[Any, np.dtype[np.float64]]:
    """One number for each option of a question, none last: log-odds, or label log-probabilities."""
    logprobs = scores.logprobs
    return logprobs[:, 0] - logprobs[:, 1] if template.readout == "pointwise" else logprobs[0]


def check_canary(manifest: Manifest, template: Template, base: Sequence[Scores], adapter: Sequence[Scores]) -> None:
    """Compare what base model and adapter answer now with each other and with what the manifest recorded.

    Raises:
        ValueError: the adapter changes nothing, or answers otherwise than when it was made.
    """
    if not manifest.canary:
        return
    ours = [log_scores(template, scores) for scores in adapter]
    bare = [log_scores(template, scores) for scores in base]
    effect = max(float(np.abs(a - b).max()) for a, b in zip(ours, bare, strict=True))
    if effect < CANARY_EFFECT:
        raise ValueError(
            f"the adapter {manifest.name} changes nothing: on its canary it moves the base model's scores by at most "
            f"{effect:.4f}; its weights were not applied, or are those of an untrained adapter"
        )
    for number, (now, canary) in enumerate(zip(ours, manifest.canary, strict=True)):
        gap = float(np.abs(now - np.asarray(canary.adapter)).max())
        if gap > CANARY_TOLERANCE:
            raise ValueError(
                f"canary {number} of {manifest.name} now scores {gap:.2f} away from what was recorded when the "
                "adapter was made: other weights, another base model, or another engine configuration"
            )
