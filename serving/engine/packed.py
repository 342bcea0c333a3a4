"""One forward pass over the pieces of many requests, with no padding.

Knows tensors: keys and values, segments and their masks. Does not know requests, schedules or labels. Tokens of
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
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

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
    """The segments of one forward pass, laid out and masked."""

    def __init__(self, segments: Sequence[Segment], dtype: torch.dtype, device: torch.device) -> None:
        self.segments = segments
        ids = [token for segment in segments for token in segment.tokens]
        self.input_ids = torch.tensor([ids], device=device)
        self.position_ids = torch.tensor([[p for segment in segments for p in segment.positions()]], device=device)
        self.slices: list[slice] = []
        start = 0
        for segment in segments:
            self.slices.append(slice(start, start + len(segment.tokens)))
            start += len(segment.tokens)
        self.masks = [_mask(segment, dtype, device) for segment in segments]

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None
    ) -> torch.Tensor:
        """Attention of one layer. query (1, heads, tokens, size) -> (1, tokens, heads, size)."""
        out = torch.empty_like(query.transpose(1, 2))
        for segment, rows, mask in zip(self.segments, self.slices, self.masks, strict=True):
            stored = segment.keys.tensor[layer]
            new_key, new_value = key[0, :, rows], value[0, :, rows]
            if segment.branches is None:
                end = segment.past + len(segment.tokens)
                stored[0, :, segment.past : end] = new_key
                stored[1, :, segment.past : end] = new_value
                keys, values = stored[0, :, :end], stored[1, :, :end]
            else:
                keys = torch.cat([stored[0, :, : segment.past], new_key], dim=1)
                values = torch.cat([stored[1, :, : segment.past], new_value], dim=1)
            out[:, rows] = scaled_dot_product_attention(
                query[:, :, rows],
                keys[None],
                values[None],
                attn_mask=mask,
                is_causal=mask is None,
                scale=scaling,
                enable_gqa=True,
            ).transpose(1, 2)
        return out


def _mask(segment: Segment, dtype: torch.dtype, device: torch.device) -> torch.Tensor | None:
    """Additive mask (tokens, past + tokens); None where plain causal attention from position 0 says it all."""
    if segment.branches is None and segment.past == 0:
        return None
    count = len(segment.tokens)
    allowed = torch.ones(count, count, dtype=torch.bool, device=device).tril_()
    if segment.branches is not None:
        branch = torch.repeat_interleave(torch.tensor(segment.branches, device=device))
        allowed &= branch[:, None] == branch[None, :]
    mask = torch.zeros(count, segment.past + count, dtype=dtype, device=device)
    mask[:, segment.past :].masked_fill_(~allowed, float("-inf"))
    return mask


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


def prepare(model: PreTrainedModel) -> None:
    """Make a causal language model run packed rows.

    Raises:
        ValueError: the model has layers whose attention does not see the whole prefix.
    """
    kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise ValueError(f"the local engine runs models of full attention only; this one has {sorted(kinds)}")
    model.set_attn_implementation(ATTENTION)


def forward(model: PreTrainedModel, row: PackedRow) -> torch.Tensor:
    """Last hidden states (tokens, hidden size) of a packed row."""
    decoder = model.get_decoder()
    output = decoder(input_ids=row.input_ids, position_ids=row.position_ids, use_cache=False, packed_row=row)
    hidden: torch.Tensor = output.last_hidden_state[0]
    return hidden
