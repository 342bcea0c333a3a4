"""The recipe of a training run, as YAML: model and wording, LoRA, data, and how long and how fast.

Knows what may stand in a recipe, and nothing of torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import yaml
from pydantic import Field, ValidationError, model_validator

from serving.config import ModelConfig, Section


class LoraRecipe(Section):
    """The adapter's shape."""

    rank: int = Field(default=16, ge=1)
    alpha: float = 32
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Only where the adapter is not merged while it trains: on a GPU, or over 4-bit weights."""
    target_modules: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    """Names of linear modules. `all-linear` is every one but the head."""
    layers: tuple[int, int] | None = None
    """First layer that is adapted, and the one after the last; below the first there is no backward pass. Asks for
    `target_modules` by name."""


class DataRecipe(Section):
    """Files of training cases (adapters/cases.py) and what is done to each question, anew in every epoch."""

    train: str
    dev: str
    limit: int | None = Field(default=None, ge=1)
    """Only the first so many training cases."""
    dev_limit: int | None = Field(default=None, ge=1)
    shuffle: bool = True
    """Another order of candidates in every epoch; a pointwise answer does not depend on it."""
    drop_wrong: float = Field(default=0.0, ge=0, lt=1)
    """Each wrong candidate is left out with this probability."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)


class TrainingRecipe(Section):
    """Optimisation, checkpoints and speed."""

    epochs: float = Field(default=1, gt=0)
    max_steps: int | None = Field(default=None, ge=1)
    """Ends training early, and the schedule with it."""
    batch: int = Field(default=32, ge=1)
    """Cases of one optimiser step, over all processes."""
    learning_rate: float = Field(default=5e-4, gt=0)
    schedule: str = "cosine"
    warmup: float = Field(default=0.1, ge=0, lt=1)
    """Share of the steps."""
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    seed: int = 0
    eval_every: int = Field(default=50, ge=1)
    """Steps between evaluations on the dev cases."""
    save_every: int = Field(default=10, ge=1)
    """Steps between checkpoints; the last three are kept."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Of the base model. The adapter's own weights are float32 until they are saved."""
    quantise: bool = False
    """QLoRA: the base model in 4 bits (NF4, bitsandbytes)."""
    activation_checkpointing: bool = False
    """Computes a layer again in the backward pass, where its activations do not fit into memory."""
    threads: int | None = Field(default=None, ge=1)
    """Torch threads of each process; by default the cores are shared between the processes."""
    compile: bool = False
    """torch.compile the decoder layers. Needs a C++ compiler; costs a minute at start."""


class Recipe(Section):
    """One training run. Build it with `load`."""

    model: ModelConfig
    """As in a profile. Where `adapter` names a LoRA adapter, training goes on from it."""
    lora: LoraRecipe = LoraRecipe()
    data: DataRecipe
    training: TrainingRecipe = TrainingRecipe()

    @classmethod
    def load(cls, path: str | Path) -> Recipe:
        """Read a recipe.

        Raises:
            ValueError: the file is missing, is no YAML mapping, or holds an unknown or invalid value; the message
                names the file and every offending key.
        """
        try:
            return cls.model_validate(yaml.safe_load(Path(path).read_text(encoding="utf-8")))
        except (OSError, yaml.YAMLError) as error:
            raise ValueError(f"cannot read the recipe {path}: {error}") from error
        except ValidationError as error:
            faults = "; ".join(
                f"{'.'.join(map(str, fault['loc'])) or 'recipe'}: {fault['msg']}" for fault in error.errors()
            )
            raise ValueError(f"the recipe {path} is invalid: {faults}") from error

    @model_validator(mode="after")
    def _fits_together(self) -> Recipe:
        if self.model.readout == "generate":
            raise ValueError("model.readout must be pointwise or listwise: nothing here trains a generating adapter")
        if self.lora.layers and self.lora.target_modules == "all-linear":
            raise ValueError("lora.layers asks for lora.target_modules by name, such as [q_proj, v_proj]")
        if self.training.quantise and self.training.compile:
            raise ValueError("training.compile does not go with training.quantise")
        return self
