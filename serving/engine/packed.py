"""One forward pass over the pieces of many requests, with no padding.

Knows tensors: keys and values, and segments. Does not know requests, schedules or labels. Tokens of
all segments stand in one row, so that the linear layers see one large matrix; attention runs segment by
segment, each over its own keys and values.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# Two torch threads that spin while they wait steal the core that the event loop or a neighbour needs: measured
# here 7 times slower than sleeping ones beside one busy process. libgomp reads this once, when torch loads it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from transformers import AttentionInterface, PreTrainedModel

from serving.engine.branches import Branches, causal

ATTENTION = "light_router_packed"


class KeyValues:
    """Keys and values of one token sequence: a tensor (layers, 2, key-value heads, capacity, head size)."""

    def __init__(self, model: PreTrainedModel, capacity: int) -> None:
        config = model.config
        head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (config.num_hidden_layers, 2, config.num_key_value_heads, capacity, head_size)
        self.tensor = torch.empty(shape, dtype=model.dtype, device=model.device)

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return int(self.tensor.nbytes)

    def copy_from(self, other: KeyValues, length: int) -> None:
        """Take over the first `length` tokens of another sequence."""
        self.tensor[:, :, :, :length].copy_(other.tensor[:, :, :, :length])


@dataclass(slots=True)
class Segment:
    """A run of tokens of one request in the packed row.

    Either the next tokens of its sequence (`branches` is None): they see `past` earlier ones, are causal among
    themselves, and their keys and values are kept. Or a group of branches of these lengths: each sees the first
    `past` tokens of the sequence and itself, no other branch, and nothing is kept.
    """

    tokens: Sequence[int]
    keys: KeyValues
    past: int
    branches: Sequence[int] | None = None

    def positions(self) -> list[int]:
        """Position of each token in its own sequence; every branch starts again after `past`."""
        lengths = [len(self.tokens)] if self.branches is None else self.branches
        return [self.past + offset for length in lengths for offset in range(length)]


class PackedRow:
    """The segments of one forward pass, laid out."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = segments
        ids = [token for segment in segments for token in segment.tokens]
        self.input_ids = torch.tensor([ids])
        self.position_ids = torch.tensor([[p for segment in segments for p in segment.positions()]])
        self.slices: list[slice] = []
        start = 0
        for segment in segments:
            self.slices.append(slice(start, start + len(segment.tokens)))
            start += len(segment.tokens)
        self._branches = [_branches(segment) for segment in segments]

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None
    ) -> torch.Tensor:
        """Attention of one layer. query (1, heads, tokens, size) -> (1, tokens, heads, size)."""
        out = torch.empty_like(query)
        for segment, rows, branches in zip(self.segments, self.slices, self._branches, strict=True):
            stored, past = segment.keys.tensor[layer], segment.past
            new_query, new_key, new_value = query[0, :, rows], key[0, :, rows], value[0, :, rows]
            if segment.branches is None:
                stored[0, :, past : past + len(segment.tokens)] = new_key
                stored[1, :, past : past + len(segment.tokens)] = new_value
            if branches is None:
                out[0, :, rows] = causal(new_query, new_key, new_value, scaling)[0]
            else:
                seen = (stored[0, :, :past], stored[1, :, :past])
                out[0, :, rows] = branches.attend(new_query, new_key, new_value, seen, scaling)[0]
        return out.transpose(1, 2)


def _branches(segment: Segment) -> Branches | None:
    """How a segment's tokens are spread over branches; None where they are the first of their sequence."""
    if segment.branches is not None:
        return Branches.of(segment.branches)
    return Branches.of([len(segment.tokens)]) if segment.past else None


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    packed_row: PackedRow | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention interface; the row arrives as a keyword of the model's forward."""
    if packed_row is None:
        raise RuntimeError(f"attention {ATTENTION!r} runs packed rows only")
    layer: Any = module.layer_idx
    return packed_row.attend(int(layer), query, key, value, scaling), None


AttentionInterface.register(ATTENTION, _attention)


class _OrderedLinear(torch.nn.Module):
    """A linear layer whose weight lies in the order that oneDNN reads: plain ones it orders anew in every pass.

    Measured on one core in bfloat16: a tenth to a third of the product's time. torch.compile's frozen models do this.
    """

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self._bias = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., in) -> (..., out)."""
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return out


def _order_weights(module: torch.nn.Module) -> None:
    for name, child in module.named_children():
        if isinstance(child, torch.nn.Linear):
            setattr(module, name, _OrderedLinear(child))
        else:
            _order_weights(child)


def prepare(model: PreTrainedModel) -> None:
    """Make a causal language model run packed rows, and its decoder's linear layers fast.

    Raises:
        ValueError: the model has layers whose attention does not see the whole prefix.
    """
    kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise ValueError(f"the local engine runs models of full attention only; this one has {sorted(kinds)}")
    model.set_attn_implementation(ATTENTION)
    if model.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        _order_weights(model.get_decoder())
        # What is left refers to the mapped file, and would keep all of it in memory.
        for parameter in model.parameters():
            parameter.data = parameter.data.clone()


def forward(model: PreTrainedModel, row: PackedRow) -> torch.Tensor:
    """Last hidden states (tokens, hidden size) of a packed row."""
    decoder = model.get_decoder()
    output = decoder(input_ids=row.input_ids, position_ids=row.position_ids, use_cache=False, packed_row=row)
    hidden: torch.Tensor = output.last_hidden_state[0]
    return hidden
