"""adapter.yaml: what an adapter was made for, how good it is, and how it shows that it works.

Knows the file beside an adapter's weights. Serving reads it and refuses an adapter that was made for another base
model, template or tokenizer, and one that changes nothing; `adapters/` writes it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from prompts import Budget, Template
from prompts.template import Layout, Readout
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

    def check_template(self, template: Template) -> None:
        """Raises ValueError where `template` words questions otherwise than at training."""
        made = template.fingerprint()
        if made != self.template.fingerprint:
            raise ValueError(
                f"the adapter {self.name} was trained with template {self.template.fingerprint}, but this code and "
                f"tokenizer make {made}; serve it with the version that trained it, or train it again"
            )

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
