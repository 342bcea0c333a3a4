"""Attention of branches on a CPU: each token sees a shared past and its own branch, and no mask is ever made.

Knows tensors of one group of branches. Does not know rows, prompts or models. Two blocks, branches on the past and
each branch on itself, are one softmax: their outputs are weighed by their normalisers, as flash attention
(Dao et al. 2022) does between tiles. Against a dense mask this does less than half of the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

# The public function hides the normaliser.
flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
"""query, key, value (batch, heads, tokens, size) -> output like query, log-normalisers (batch, heads, tokens)."""


@dataclass(frozen=True, eq=False, slots=True)
class Branches:
    """Where the tokens of branches stand, one branch after the other.

    `padded` (branches, longest) holds the places of each branch's tokens, the last repeated beyond its end, where
    `beyond` is true. `places` (tokens,) finds them again in the flattened `padded`.
    """

    padded: torch.Tensor
    beyond: torch.Tensor
    places: torch.Tensor

    @classmethod
    def of(cls, lengths: Sequence[int]) -> Branches:
        """Branches of these lengths, each at least 1."""
        sizes = torch.tensor(lengths)
        column = torch.arange(int(sizes.max()))
        beyond = column >= sizes[:, None]
        padded = (sizes.cumsum(0) - sizes)[:, None] + torch.minimum(column, sizes[:, None] - 1)
        return cls(padded, beyond, torch.nonzero(~beyond.flatten()).flatten())

    def pad(self, x: torch.Tensor) -> torch.Tensor:
        """(heads, tokens, size) -> (heads, branches, longest, size)."""
        return x.index_select(1, self.padded.flatten()).unflatten(1, self.padded.shape)

    def unpad(self, x: torch.Tensor) -> torch.Tensor:
        """The inverse of `pad`."""
        return x.flatten(1, 2).index_select(1, self.places)

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        past: tuple[torch.Tensor, torch.Tensor],
        scale: float | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """softmax(scale q k^T) v of the branches' tokens.

        Args:
            query: (heads, tokens, size).
            key: (key-value heads, tokens, size).
            value: as `key`.
            past: keys and values of the shared past, each (key-value heads, at least 1, size).
            scale: None for 1 / sqrt(size).

        Returns:
            The output, like `query`, and its log-normalisers (heads, tokens) in float32.
        """
        first, first_norm = flash(grouped(query, key)[None], past[0][None], past[1][None], scale=scale)
        first, first_norm = first.reshape(query.shape), first_norm.reshape(query.shape[:2])
        groups = len(query) // len(key)
        own = [self.pad(x).transpose(0, 1) for x in (query, *(x.repeat_interleave(groups, 0) for x in (key, value)))]
        second, second_norm = (self.unpad(x.transpose(0, 1)) for x in flash(*own, is_causal=True, scale=scale))
        weight = torch.sigmoid(second_norm - first_norm).to(query.dtype)
        return torch.lerp(first, second, weight[..., None]), torch.logaddexp(first_norm, second_norm)


def causal(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Plain causal attention of the first tokens of a sequence; shapes as `Branches.attend`."""
    groups = len(query) // len(key)
    wide = (x[:, None].expand(-1, groups, -1, -1) for x in (key, value))
    out, norm = flash(query.unflatten(0, (len(key), groups)), *wide, is_causal=True, scale=scale)
    return out.flatten(0, 1), norm.flatten(0, 1)


def grouped(x: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """(heads, tokens, size) -> (key-value heads, heads of each * tokens, size)."""
    return x.reshape(len(key), -1, x.shape[-1])
