"""Attention of a packed row in training: one prefix, and branches that see it and themselves only.

Knows tensors of one row. Does not know prompts, losses or adapters. The numbers are those of
`serving/engine/packed.py`, which reads the same rows without gradients; here every product is differentiable.
Against one dense mask over the row this does less than half of the work, and no token is padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface

ATTENTION = "light_router_branches"

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


@dataclass(frozen=True, eq=False, slots=True)
class Branches:
    """Where the branches of a row are: the row is the prefix, then every branch.

    `padded` (branches, longest) holds the places of each branch's tokens after the prefix, the last repeated beyond
    its end, where `beyond` is true. `places` (tokens after the prefix,) finds them again in the flattened `padded`.
    """

    prefix: int
    padded: torch.Tensor
    beyond: torch.Tensor
    places: torch.Tensor

    @classmethod
    def of(cls, prefix: int, lengths: Sequence[int]) -> Branches:
        """A prefix of so many tokens, and branches of these lengths."""
        sizes = torch.tensor(lengths)
        column = torch.arange(int(sizes.max()))
        beyond = column >= sizes[:, None]
        padded = (sizes.cumsum(0) - sizes)[:, None] + torch.minimum(column, sizes[:, None] - 1)
        return cls(prefix, padded, beyond, torch.nonzero(~beyond.flatten()).flatten())

    def pad(self, x: torch.Tensor) -> torch.Tensor:
        """(heads, tokens after the prefix, size) -> (heads, branches, longest, size)."""
        return x.index_select(1, self.padded.flatten()).unflatten(1, self.padded.shape)

    def unpad(self, x: torch.Tensor) -> torch.Tensor:
        """The inverse of `pad`."""
        return x.flatten(1, 2).index_select(1, self.places)


class BranchAttention(torch.autograd.Function):
    """softmax(scale q k^T) v under the mask of a row, on a CPU.

    Three blocks: prefix on prefix, branches on prefix, each branch on itself. The last two are one softmax: their
    outputs are weighed by their normalisers, as flash attention (Dao 2022) does between tiles. The backward pass
    rebuilds each block's probabilities from the row's normalisers; torch's own kernel for it is 5 times slower in
    bfloat16 than these matrix products.
    """

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, row: Branches, scale: float
    ) -> torch.Tensor:
        """query (heads, tokens, size), key and value (key-value heads, tokens, size) -> like query."""
        at = row.prefix
        groups = query.shape[0] // key.shape[0]
        wide_key, wide_value = (x.repeat_interleave(groups, 0) for x in (key, value))
        out, norm = torch.empty_like(query), query.new_empty(query.shape[:2], dtype=torch.float32)

        prefix = (x[None, :, :at] for x in (query, wide_key, wide_value))
        out[:, :at], norm[:, :at] = (x[0] for x in _flash(*prefix, is_causal=True, scale=scale))

        shared = (_grouped(query[:, at:], key)[None], key[None, :, :at], value[None, :, :at])
        first, first_norm = (x[0] for x in _flash(*shared, scale=scale))
        first, first_norm = first.reshape(query[:, at:].shape), first_norm.reshape(query[:, at:].shape[:2])
        own = (row.pad(x[:, at:]).transpose(0, 1) for x in (query, wide_key, wide_value))
        second, second_norm = (row.unpad(x.transpose(0, 1)) for x in _flash(*own, is_causal=True, scale=scale))
        weight = torch.sigmoid(second_norm - first_norm).to(query.dtype)
        out[:, at:] = torch.lerp(first, second, weight[..., None])
        norm[:, at:] = torch.logaddexp(first_norm, second_norm)

        ctx.save_for_backward(query, key, value, out, norm)
        ctx.row, ctx.scale = row, scale
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients of query, key and value."""
        query, key, value, out, norm = ctx.saved_tensors
        row: Branches = ctx.row
        at, grad = row.prefix, grads[0]
        delta = (grad * out).sum(-1, dtype=torch.float32)
        # Every product's left side with one column more, which subtracts a number from the whole row of its result
        # before that is rounded: scores minus their normaliser, and gradients of probabilities minus their mean.
        left = _minus(query * ctx.scale, norm)
        right = _minus(grad, delta)
        d_query, d_key, d_value = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)

        d_query[:, :at], d_key[:, :at], d_value[:, :at] = _block(
            left[:, :at], right[:, :at], key[:, :at], value[:, :at], ctx.scale, causal=True
        )
        shared = _block(left[:, at:], right[:, at:], key[:, :at], value[:, :at], ctx.scale, causal=False)
        # Tokens beyond a branch repeat its last one, so that no score exceeds its normaliser; zeros in `rights` are
        # what takes them out.
        lefts, rights, keys, values = (row.pad(x[:, at:]) for x in (left, right, key, value))
        own = _block(
            lefts.transpose(0, 1).flatten(0, 1),
            rights.masked_fill_(row.beyond[..., None], 0).transpose(0, 1).flatten(0, 1),
            keys.transpose(0, 1).flatten(0, 1),
            values.transpose(0, 1).flatten(0, 1),
            ctx.scale,
            causal=True,
        )
        d_query[:, at:], d_key[:, at:], d_value[:, at:] = (
            row.unpad(x.unflatten(0, (len(row.padded), -1)).transpose(0, 1)) for x in own
        )
        d_query[:, at:] += shared[0]
        d_key[:, :at] += shared[1]
        d_value[:, :at] += shared[2]
        return d_query, d_key, d_value, None, None


def _grouped(x: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """(heads, tokens, size) -> (key-value heads, heads of each * tokens, size)."""
    return x.reshape(len(key), -1, x.shape[-1])


def _minus(x: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    """`x` with columns that subtract `number` when multiplied by ones; two of them, for bfloat16's 8 bits."""
    high = (-number).to(x.dtype)
    low = (-number - high).to(x.dtype)
    return torch.cat([x, high[..., None], low[..., None]], dim=-1)


def _block(
    left: torch.Tensor, right: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, *, causal: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of query, key and value in one block of the mask; heads that share keys are taken together."""
    rows = left.shape[1]
    left, right = _grouped(left, key), _grouped(right, key)
    one = key.new_ones(*key.shape[:2], 2)
    probabilities = torch.bmm(left, torch.cat([key, one], -1).transpose(1, 2)).exp_()
    if causal:
        probabilities.unflatten(1, (-1, rows)).tril_()
    d_scores = torch.bmm(right, torch.cat([value, one], -1).transpose(1, 2)).mul_(probabilities)
    d_value = torch.bmm(probabilities.transpose(1, 2), right[..., :-2])
    d_key = torch.bmm(d_scores.transpose(1, 2), left[..., :-2])
    d_query = torch.bmm(d_scores, key).mul_(scale)
    return d_query.reshape(-1, rows, key.shape[-1]), d_key, d_value


def dense_mask(prefix: int, lengths: Sequence[int]) -> torch.Tensor:
    """The row's whole mask, true where a token is seen: (1, 1, tokens, tokens), for any attention that takes one."""
    branch = torch.repeat_interleave(torch.arange(len(lengths) + 1), torch.tensor([prefix, *lengths]))
    seen = (branch == 0) | (branch == branch[:, None])
    return seen.tril()[None, None]


# Left as it is by torch.compile, whose kernel for these slices and transposes is many times slower.
@torch.compiler.disable
def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    branches: Branches,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention interface; the row arrives as a keyword of the model's forward."""
    out: torch.Tensor = BranchAttention.apply(query[0], key[0], value[0], branches, scaling)
    return out.transpose(0, 1)[None], None


AttentionInterface.register(ATTENTION, _attention)
