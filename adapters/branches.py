"""Attention of a packed row in training: one prefix, and branches that see it and themselves only.

Knows tensors of one row. Does not know prompts, losses or adapters. The numbers are those of
`serving/engine/`, which reads the same rows without gradients; here every product is differentiable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface

from serving.engine.branches import Branches, causal, grouped

ATTENTION = "light_router_branches"


@dataclass(frozen=True, eq=False, slots=True)
class Row:
    """A row: so many tokens of prefix, then the branches."""

    prefix: int
    branches: Branches


class BranchAttention(torch.autograd.Function):
    """softmax(scale q k^T) v under the mask of a row, on a CPU.

    Three blocks: prefix on prefix, branches on prefix, each branch on itself. The backward pass rebuilds each block's
    probabilities from the row's normalisers; torch's own kernel for it is 5 times slower in bfloat16 than these
    matrix products.
    """

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, row: Row, scale: float
    ) -> torch.Tensor:
        """query (heads, tokens, size), key and value (key-value heads, tokens, size) -> like query."""
        at = row.prefix
        out, norm = torch.empty_like(query), query.new_empty(query.shape[:2], dtype=torch.float32)
        out[:, :at], norm[:, :at] = causal(query[:, :at], key[:, :at], value[:, :at], scale)
        out[:, at:], norm[:, at:] = row.branches.attend(
            query[:, at:], key[:, at:], value[:, at:], (key[:, :at], value[:, :at]), scale
        )
        ctx.save_for_backward(query, key, value, out, norm)
        ctx.row, ctx.scale = row, scale
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients of query, key and value."""
        query, key, value, out, norm = ctx.saved_tensors
        row: Row = ctx.row
        branches, at, grad = row.branches, row.prefix, grads[0]
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
        lefts, rights, keys, values = (branches.pad(x[:, at:]) for x in (left, right, key, value))
        own = _block(
            lefts.transpose(0, 1).flatten(0, 1),
            rights.masked_fill_(branches.beyond[..., None], 0).transpose(0, 1).flatten(0, 1),
            keys.transpose(0, 1).flatten(0, 1),
            values.transpose(0, 1).flatten(0, 1),
            ctx.scale,
            causal=True,
        )
        d_query[:, at:], d_key[:, at:], d_value[:, at:] = (
            branches.unpad(x.unflatten(0, (len(branches.padded), -1)).transpose(0, 1)) for x in own
        )
        d_query[:, at:] += shared[0]
        d_key[:, :at] += shared[1]
        d_value[:, :at] += shared[2]
        return d_query, d_key, d_value, None, None


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
    left, right = grouped(left, key), grouped(right, key)
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
    row: Row,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention interface; the row arrives as a keyword of the model's forward."""
    out: torch.Tensor = BranchAttention.apply(query[0], key[0], value[0], row, scaling)
    return out.transpose(0, 1)[None], None


AttentionInterface.register(ATTENTION, _attention)
