"""Text to token ids, with text and control kept apart.

Knows a tokenizer.json. Untrusted text is encoded by a copy of the tokenizer that has no added token at all,
special or not, so that `<|im_end|>`, `<think>` or `<tool_call>` inside a tool description become harmless
pieces of text. Only the template's own structure is encoded with the added tokens.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

# Characters encoded for each token that a budget still allows: real text needs about 4, so a cut at 16 never
# shortens what the budget would have kept unless the text is one long run (spaces, dashes), and it bounds the
# work that a message of megabytes can cause.
CHARACTERS_PER_TOKEN = 16


class PromptTokenizer:
    """A tokenizer with two doors: `text` for anything a caller sent, `structure` for the template's own markup.

    Raises:
        ValueError: the file is no tokenizer, or its text door would still let an added token through.
    """

    def __init__(self, path: str | Path) -> None:
        file = Path(path)
        file = file / "tokenizer.json" if file.is_dir() else file
        try:
            source = json.loads(file.read_text(encoding="utf-8"))
            self._structure = Tokenizer.from_str(json.dumps(source))
        except (OSError, ValueError, Exception) as error:  # tokenizers raises bare Exception on a bad file
            raise ValueError(f"cannot read a tokenizer from {file}: {error}") from error
        self.added_ids = frozenset(int(token["id"]) for token in source.get("added_tokens", []))
        # Without added tokens, and without the post-processor (which may add <s> or refer to a removed token).
        self._text = Tokenizer.from_str(json.dumps({**source, "added_tokens": [], "post_processor": None}))
        self._structure.no_truncation()
        self._structure.no_padding()
        self._text.no_truncation()
        self._text.no_padding()
        for token in source.get("added_tokens", []):
            leaked = self.added_ids.intersection(self.text(str(token["content"])))
            if leaked:
                raise ValueError(
                    f"{file}: the text {token['content']!r} would still become the added tokens {sorted(leaked)}; "
                    "this tokenizer cannot keep text and control apart"
                )

    def text(self, text: str) -> list[int]:
        """Ids of untrusted text. No id of an added token is ever among them."""
        ids: list[int] = self._text.encode(text, add_special_tokens=False).ids
        return ids

    def texts(self, texts: Sequence[str]) -> list[list[int]]:
        """As `text`, for many at once."""
        return [encoding.ids for encoding in self._text.encode_batch_fast(list(texts), add_special_tokens=False)]

    def structure(self, markup: str) -> list[int]:
        """Ids of the template's own markup, control tokens included."""
        ids: list[int] = self._structure.encode(markup, add_special_tokens=False).ids
        return ids

    def single(self, label: str) -> int:
        """The one token id of a label.

        Raises:
            ValueError: the label is not exactly one token, so it cannot be read in one position.
        """
        ids = self.text(label)
        if len(ids) != 1:
            raise ValueError(f"label {label!r} is {len(ids)} tokens for this tokenizer; a label must be one")
        return ids[0]

    def control(self, token: str) -> int:
        """The id of one control token of the template, such as `<|im_end|>`.

        Raises:
            ValueError: this tokenizer has no such control token.
        """
        found = self._structure.token_to_id(token)
        if found is None or int(found) not in self.added_ids:
            raise ValueError(f"this tokenizer has no control token {token!r}; the template was made for another one")
        return int(found)

    def decode(self, ids: Sequence[int]) -> str:
        """Readable text of ids, control tokens shown."""
        text: str = self._structure.decode(list(ids), skip_special_tokens=False)
        return text
