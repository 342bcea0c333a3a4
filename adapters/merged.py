"""LoRA layers whose update is merged into the weight before every forward pass.

Knows peft's LoRA layers of plain linear modules. Does not know what is trained or why. peft adds the update to
every activation; here it is added to the weights once for each optimiser step, so that a layer costs one matrix
product and the gradients of A and B cost thin ones. On one CPU core this is a fifth faster, and it is how the
adapter is served in process: merged in float32, then rounded to the model's type.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora import Linear
from torch.nn import functional
from transformers import TrainerCallback

# peft's name of the one adapter.
ADAPTER = "default"


class _MergedLinear(torch.autograd.Function):
    """x (W + scale B A)^T, given that sum: gradients flow to x, A and B."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, merged: torch.Tensor, down: torch.Tensor, up: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """x (..., in), merged (out, in), down = A (rank, in), up = B (out, rank)."""
        ctx.save_for_backward(x, merged, down, up)
        ctx.scale = scale
        return functional.linear(x, merged)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, merged, down, up = ctx.saved_tensors
        rows, grad = x.reshape(-1, x.shape[-1]), grads[0].reshape(-1, grads[0].shape[-1])
        scaled_up, scaled_down = (ctx.scale * up).to(x.dtype), (ctx.scale * down).to(x.dtype)
        d_x = (grad @ merged).view_as(x) if ctx.needs_input_grad[0] else None
        d_down = (grad @ scaled_up).t() @ rows
        d_up = grad.t() @ (rows @ scaled_down.t())
        return d_x, None, d_down.to(down.dtype), d_up.to(up.dtype), None


def _forward(self: Linear, x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    down, up = self.lora_A[ADAPTER].weight, self.lora_B[ADAPTER].weight
    out: torch.Tensor = _MergedLinear.apply(x, self.merged_weight, down, up, self.scaling[ADAPTER])
    if self.base_layer.bias is not None:
        out = out + self.base_layer.bias
    return out


class MergedAdapter(TrainerCallback):
    """Runs every LoRA layer of a model merged, and merges again after every optimiser step.

    The parameters stay peft's own, in whatever type they are.

    Raises:
        ValueError: the adapter uses dropout, which a merged weight cannot have.
    """

    def __init__(self, model: PeftModel) -> None:
        self._layers = [module for module in model.modules() if isinstance(module, Linear)]
        for layer in self._layers:
            if not isinstance(layer.lora_dropout[ADAPTER], torch.nn.Identity):
                raise ValueError("lora.dropout must be 0 where the adapter is merged while it trains (on a CPU)")
            layer.register_buffer("merged_weight", layer.base_layer.weight.detach().clone(), persistent=False)
            layer.forward = MethodType(_forward, layer)
        self.merge()

    @torch.no_grad()
    def merge(self) -> None:
        """Take over what A and B are now."""
        for layer in self._layers:
            down, up = layer.lora_A[ADAPTER].weight.float(), layer.lora_B[ADAPTER].weight.float()
            weight = layer.base_layer.weight.float()
            layer.merged_weight.copy_(torch.addmm(weight, up, down, alpha=layer.scaling[ADAPTER]))

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """A checkpoint may have been loaded."""
        self.merge()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """The optimiser has changed A and B."""
        self.merge()
