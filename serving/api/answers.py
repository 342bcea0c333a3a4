"""Parts of answers that several surfaces show alike."""

from __future__ import annotations

from pydantic import BaseModel

from serving.types import Truncation


class TruncationAnswer(BaseModel):
    """What the model did not see whole: tokens before and after. 0 of 0 is a content part that is no text.

    `messages` in a path counts `history` first, then `query`.
    """

    where: str
    tokens: int
    kept: int

    @classmethod
    def of(cls, truncation: Truncation) -> TruncationAnswer:
        """As an answer shows it."""
        return cls(where=truncation.where, tokens=truncation.tokens, kept=truncation.kept)
