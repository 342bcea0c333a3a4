"""Trains a LoRA adapter that routes: cases in, an adapter folder out. Read it from top to bottom.

A training case is one row of tokens, the prompt that serving would make of it. The loss is the cross-entropy between
a softmax over all candidates and none, and the case's targets (listwise softmax, Cao et al. 2007). Pointwise reads
one log-odds at the end of each branch, listwise one label for each candidate at the end of the row.

Knows peft, transformers' Trainer and prompts. Does not know data sets or engines. Several processes:
`accelerate launch --multi_gpu --num_processes 2 -m adapters.commands train RECIPE`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

# Threads that spin while they wait steal the core of the process beside; see serving/engine/packed.py.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict, prepare_model_for_kbit_training
from safetensors.torch import save_file
from torch.nn import functional
from transformers import (
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    EvalPrediction,
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)

from adapters.branches import ATTENTION, Row, dense_mask
from adapters.cases import TrainingCase, read_cases
from adapters.datasets import file_sha256
from adapters.merged import ADAPTER, MergedAdapter
from adapters.recipe import Recipe
from prompts import Candidate, Message, PromptTokenizer, Template
from serving.engine.branches import Branches

# A step takes seconds: every one is logged.
LOG_EVERY = 1
CHECKPOINTS_KEPT = 3


class Questions(torch.utils.data.Dataset[dict[str, Any]]):
    """Training cases as the tensors of one row each.

    `epoch` seeds order and choice of candidates, so that a resumed run sees what an uninterrupted one would.
    """

    def __init__(
        self, cases: Sequence[TrainingCase], template: Template, recipe: Recipe, *, vary: bool, dense: bool
    ) -> None:
        self.sources = sorted({case.source for case in cases})
        self.epoch = 0
        self._cases = cases
        self._template = template
        self._recipe = recipe
        self._vary = vary
        self._dense = dense
        self._labels = {label: column for column, label in enumerate(label_ids(template))}

    def __len__(self) -> int:
        return len(self._cases)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """The model's input, the head's columns to read, and the distribution to learn (candidates, then none)."""
        case = self._cases[index]
        shown = self._shown(case, index)
        prompt = self._template.render(case.messages, [case.candidates[i] for i in shown])
        lengths = [len(ids) for ids in prompt.continuations]
        at = len(prompt.prefix)
        item: dict[str, Any] = {
            "input_ids": torch.tensor([[*prompt.prefix, *(id_ for ids in prompt.continuations for id_ in ids)]]),
            "position_ids": torch.tensor([[*range(at), *(at + i for length in lengths for i in range(length))]]),
            "logits_to_keep": at - 1 + torch.tensor(lengths).cumsum(0),
            "columns": torch.tensor([self._labels[label] for label in prompt.labels]),
            "targets": torch.tensor([*(case.targets[i] for i in shown), case.none_weight]),
            "source": torch.tensor(self.sources.index(case.source)),
        }
        if self._template.readout == "pointwise":
            row = Row(at, Branches.of(lengths))
            item |= {"attention_mask": dense_mask(at, lengths)} if self._dense else {"row": row}
        return item

    def _shown(self, case: TrainingCase, index: int) -> list[int]:
        """Positions of the candidates that the question shows, in their order."""
        everything = list(range(len(case.candidates)))
        if not self._vary:
            return everything
        data = self._recipe.data
        rng = np.random.default_rng([self._recipe.training.seed, self.epoch, index])
        kept = [i for i in everything if case.targets[i] or rng.random() >= data.drop_wrong] or everything[:1]
        return rng.permutation(kept).tolist() if data.shuffle else kept


def label_ids(template: Template) -> list[int]:
    """Every label that this template may read, in the order of the head's columns."""
    most = [Candidate(str(number), "x") for number in range(template.max_candidates or 1)]
    return template.render([Message("user", "x")], most).labels


class LabelHead(torch.nn.Module):
    """The rows of the head that belong to labels, in float32: what serving reads, and all that the loss needs."""

    def __init__(self, head: torch.nn.Linear, labels: Sequence[int]) -> None:
        super().__init__()
        self.register_buffer("weight", head.weight.detach()[list(labels)].float(), persistent=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden (..., size) -> (..., labels)."""
        return functional.linear(hidden.float(), self.weight)


def load_model(recipe: Recipe, template: Template, device: torch.device) -> PeftModel:
    """The base model with an adapter to train.

    Raises:
        ValueError: base model or adapter cannot be loaded.
    """
    lora, training = recipe.lora, recipe.training
    dtype = getattr(torch, training.dtype)
    quantisation = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
    )
    # Branches have an attention of their own on a CPU; elsewhere sdpa takes their mask.
    own = device.type == "cpu" and template.readout == "pointwise"
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            recipe.model.path,
            dtype=dtype,
            quantization_config=quantisation if training.quantise else None,
            attn_implementation=ATTENTION if own else "sdpa",
            device_map={"": device},
        )
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot load the base model {recipe.model.path}: {error}") from error
    model.set_output_embeddings(LabelHead(model.get_output_embeddings(), label_ids(template)))
    if training.quantise:
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=training.activation_checkpointing)
    set_seed(training.seed)  # A starts at random
    if recipe.model.adapter:
        model = PeftModel.from_pretrained(model, recipe.model.adapter, is_trainable=True)
        model.peft_config[ADAPTER].base_model_name_or_path = recipe.model.path  # or checkpoints look for it on a hub
        return model
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=lora.target_modules if lora.target_modules == "all-linear" else list(lora.target_modules),
        layers_to_transform=list(range(*lora.layers)) if lora.layers else None,
        layers_pattern="layers" if lora.layers else None,
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, config)


class RouterTrainer(Trainer):
    """transformers' Trainer over rows: one case at a time, the batch by gradient accumulation."""

    readout: str
    smoothing: float

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: Mapping[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Cross-entropy of one case, and with `return_outputs` its log-scores (candidates, then none)."""
        row = dict(inputs)
        columns, targets, _ = (row.pop(name) for name in ("columns", "targets", "source"))
        logits = model(**row, use_cache=False).logits[0][:, columns]
        scores = logits[:, 0] - logits[:, 1] if self.readout == "pointwise" else logits[0]
        smoothing = self.smoothing if model.training else 0.0
        loss = functional.cross_entropy(scores[None], targets[None], label_smoothing=smoothing)
        return (loss, scores) if return_outputs else loss

    def prediction_step(
        self, model: torch.nn.Module, inputs: Mapping[str, Any], *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Loss, and (loss, hit) with the case's source as its label."""
        inputs = self._prepare_inputs(dict(inputs))
        with torch.no_grad():
            loss, scores = self.compute_loss(model, inputs, return_outputs=True)
        hit = (inputs["targets"][scores.argmax()] > 0).float()
        return loss, torch.stack([loss, hit])[None], inputs["source"][None]


def by_source(sources: Sequence[str], predictions: EvalPrediction) -> dict[str, float]:
    """Hit@1 (a right candidate, or rightly none, has the highest score) and loss: of all cases, and of each source."""
    rows, labels = np.asarray(predictions.predictions), np.asarray(predictions.label_ids)
    metrics = {"hit@1": float(rows[:, 1].mean())}
    for number, source in enumerate(sources):
        of_source = rows[labels == number]
        if len(of_source):
            metrics[f"loss/{source}"], metrics[f"hit@1/{source}"] = map(float, of_source.mean(0))
    return metrics


class Watch(TrainerCallback):
    """Tells the questions which epoch it is, and keeps the loss curve up to date."""

    def __init__(self, questions: Questions, out: Path) -> None:
        self._questions = questions
        self._out = out

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Another epoch shows candidates in another order."""
        self._questions.epoch = int(state.epoch or 0)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """A checkpoint was written."""
        if state.is_world_process_zero:
            draw_curve(state.log_history, self._out / "loss.png")
            print(f"checkpoint {state.global_step} of {state.max_steps} written", flush=True)  # noqa: T201


def draw_curve(history: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Training loss of every step, its running mean, and dev loss and Hit@1, as a PNG."""
    from matplotlib.figure import Figure  # noqa: PLC0415  (slow to import)

    steps, losses = zip(*((entry["step"], entry["loss"]) for entry in history if "loss" in entry), strict=True)
    dev = [entry for entry in history if "eval_loss" in entry]
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot(xlabel="step", ylabel="loss")
    axes.plot(steps, losses, color="tab:blue", alpha=0.3, label="train")
    # Bias-corrected exponential mean over about 20 steps.
    weights = 0.95 ** np.arange(len(losses))
    smooth = np.convolve(losses, weights)[: len(losses)] / np.cumsum(weights)
    axes.plot(steps, smooth, color="tab:blue", label="train, mean of 20 steps")
    if dev:
        axes.plot([entry["step"] for entry in dev], [entry["eval_loss"] for entry in dev], "o-", label="dev")
        hits = axes.twinx()
        hits.set(ylabel="dev Hit@1", ylim=(0, 1))
        hits.plot([entry["step"] for entry in dev], [entry["eval_hit@1"] for entry in dev], "s--", color="tab:green")
    axes.legend()
    figure.savefig(file, dpi=110)


def latest_checkpoint(folder: Path) -> Path | None:
    """The last checkpoint that was written to its end: its state file, the last of its files, can be read."""
    for checkpoint in sorted(folder.glob("checkpoint-*"), key=lambda path: -int(path.name.rpartition("-")[2])):
        try:
            json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        return checkpoint
    return None


def save(model: PeftModel, recipe: Recipe, out: Path) -> None:
    """The adapter as peft loads it: bfloat16 weights, and a configuration that names the base model, not its path."""
    state = get_peft_model_state_dict(model, save_embedding_layers=False)
    weights = {name: weight.to(torch.bfloat16).contiguous() for name, weight in state.items()}
    save_file(weights, out / "adapter_model.safetensors", metadata={"format": "pt"})
    config = model.peft_config[ADAPTER]
    config.base_model_name_or_path = recipe.model.name
    config.inference_mode = True
    config.target_modules = sorted(config.target_modules)
    config.save_pretrained(out)


def train(recipe: Recipe, out: Path, *, resume: bool = False) -> None:
    """Train, and write adapter, loss curve and `training.json` into `out`; checkpoints go below it.

    Args:
        recipe: what to train; its paths are relative to the working directory.
        out: the adapter's folder.
        resume: go on from the last checkpoint in `out`.

    Raises:
        ValueError: data, model or tokenizer cannot be read; there is nothing to resume, or a run would be overwritten.
    """
    settings, on_gpu = recipe.training, torch.cuda.is_available()
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if settings.batch % processes:
        raise ValueError(f"training.batch ({settings.batch}) must be a multiple of the {processes} processes")
    checkpoints = out / "checkpoints"
    checkpoint = latest_checkpoint(checkpoints)
    if resume and checkpoint is None:
        raise ValueError(f"there is no complete checkpoint in {checkpoints}; start without --resume")
    if checkpoint is not None and not resume:
        raise ValueError(f"{checkpoint} is the checkpoint of another run; give --resume to go on, or another --out")
    torch.set_num_threads(settings.threads or max((os.cpu_count() or 1) // processes, 1))

    arguments = TrainingArguments(
        output_dir=str(checkpoints),
        use_cpu=not on_gpu,
        bf16=on_gpu and settings.dtype == "bfloat16",
        num_train_epochs=settings.epochs,
        max_steps=settings.max_steps or -1,
        per_device_train_batch_size=1,
        per_device_eval_batch_size=1,
        gradient_accumulation_steps=settings.batch // processes,
        learning_rate=settings.learning_rate,
        lr_scheduler_type=settings.schedule,
        warmup_steps=settings.warmup,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        activation_checkpointing=settings.activation_checkpointing,
        activation_checkpointing_kwargs={"use_reentrant": False} if settings.activation_checkpointing else None,
        logging_steps=LOG_EVERY,
        eval_strategy="steps",
        eval_steps=settings.eval_every,
        save_steps=settings.save_every,
        save_total_limit=CHECKPOINTS_KEPT,
        seed=settings.seed,
        remove_unused_columns=False,
        dataloader_pin_memory=on_gpu,
        ddp_find_unused_parameters=False,
        ddp_broadcast_buffers=False,
        report_to=[],
    )
    template = Template(
        PromptTokenizer(recipe.model.tokenizer or recipe.model.path),
        chat=recipe.model.chat,
        readout=recipe.model.readout,
        layout=recipe.model.layout,
        budget=recipe.model.budget,
    )
    data = recipe.data
    cases = {
        "train": list(islice(read_cases(Path(data.train)), data.limit)),
        "dev": list(islice(read_cases(Path(data.dev)), data.dev_limit)),
    }
    questions = {side: Questions(cases[side], template, recipe, vary=side == "train", dense=on_gpu) for side in cases}
    model = load_model(recipe, template, arguments.device)
    callbacks: list[TrainerCallback] = [Watch(questions["train"], out)]
    if not (on_gpu or settings.quantise):
        callbacks.append(MergedAdapter(model))
    if settings.compile:
        model.enable_input_require_grads()  # the first layer is then compiled like the others
        for layer in model.get_base_model().get_decoder().layers:
            layer.compile(dynamic=True)

    trainer = RouterTrainer(
        model=model,
        args=arguments,
        data_collator=lambda items: items[0],
        train_dataset=questions["train"],
        eval_dataset=questions["dev"],
        compute_metrics=lambda predictions: by_source(questions["dev"].sources, predictions),
        callbacks=callbacks,
    )
    trainer.readout, trainer.smoothing = template.readout, data.label_smoothing
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if trainer.state.max_steps % settings.eval_every:
        trainer.evaluate()
    if not trainer.is_world_process_zero():
        return
    draw_curve(trainer.state.log_history, out / "loss.png")
    save(trainer.accelerator.unwrap_model(trainer.model), recipe, out)
    record = {
        "command": sys.argv,
        "recipe": recipe.model_dump(mode="json"),
        "template": template.fingerprint(),
        "data": {side: {"sha256": file_sha256(Path(getattr(data, side))), "cases": len(cases[side])} for side in cases},
        "log": trainer.state.log_history,
    }
    (out / "training.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
