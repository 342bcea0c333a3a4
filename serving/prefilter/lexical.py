"""BM25 over the candidates' texts, and the tokens that it counts.

Knows pools and search texts. The tokeniser knows identifiers (snake_case, camelCase, dotted) and scripts that write
no spaces; it knows nothing of candidates.
"""

from __future__ import annotations

import asyncio
import logging
import math
import unicodedata
from collections import Counter, defaultdict
from itertools import pairwise

import bm25s
import numpy as np
import regex
import Stemmer
from bm25s.stopwords import STOPWORDS_EN_PLUS
from numpy.typing import NDArray

from prompts.candidate import describe
from serving.cache import LRU
from serving.prefilter.base import Pool, Ranking, SearchText

logging.getLogger("bm25s").setLevel(logging.WARNING)  # it sets itself to DEBUG, whatever the application asks for

# Scripts that write no spaces between words, or too few of them (Korean glues particles to its nouns). \u30fc
# lengthens a vowel in both kana, and belongs to neither.
_SCRIPTS = r"\u30fc\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_UNSPACED = regex.compile(rf"[{_SCRIPTS}]")
_WORD = regex.compile(rf"(?V1)[{_SCRIPTS}]+|[[\p{{L}}\p{{M}}\p{{N}}]--[{_SCRIPTS}]]+")
_HUMP = regex.compile(r"(?<=[\p{Ll}\p{N}])(?=\p{Lu})|(?<=\p{Lu})(?=\p{Lu}\p{Ll})")
_CYRILLIC = regex.compile(r"\p{Cyrillic}")
_STOPWORDS = frozenset(STOPWORDS_EN_PLUS)

# Candidates in all cached indexes together; one takes about a kilobyte.
INDEXED_CANDIDATES = 50_000


class Tokenizer:
    """Text of any language to the terms that BM25 counts. It remembers words: one for each corpus or query."""

    def __init__(self) -> None:
        self._english = Stemmer.Stemmer("english")
        self._russian = Stemmer.Stemmer("russian")
        self._known: dict[str, list[str]] = {}

    def __call__(self, text: str) -> list[str]:
        """Lower-cased stems in order, English stop words left out.

        `getUserName` gives its parts and itself, so that YouTube is found by youtube. Unspaced scripts give single
        characters and pairs.
        """
        terms: list[str] = []
        for word in _WORD.findall(unicodedata.normalize("NFKC", text)):
            if word not in self._known:
                self._known[word] = self._terms(word)
            terms += self._known[word]
        return terms

    def _terms(self, word: str) -> list[str]:
        if _UNSPACED.match(word):
            return [*word, *map("".join, pairwise(word))]
        parts = _HUMP.split(word)
        forms = [form.lower() for form in ([*parts, word] if len(parts) > 1 else parts)]
        stem = self._russian.stemWord if _CYRILLIC.match(word) else self._english.stemWord
        return [stem(form) for form in forms if form not in _STOPWORDS]


class Index:
    """BM25 scores of one pool (Lucene's variant with its usual k1 = 1.5, b = 0.75)."""

    def __init__(self, pool: Pool) -> None:
        tokenize = Tokenizer()
        terms = [tokenize(describe(candidate)) for candidate in pool.candidates]
        self.size = len(terms)
        self._bm25 = bm25s.BM25(k1=1.5, b=0.75) if any(terms) else None
        if self._bm25 is not None:
            self._bm25.index(terms, show_progress=False)

    def scores(self, text: SearchText) -> NDArray[np.float64]:
        """Array (candidates,), 0 where no term is shared.

        A term counts the square root of the summed weights of the parts that hold it: once is most of what it
        says, and a long conversation does not drown its query.
        """
        total = np.zeros(self.size)
        if self._bm25 is None:
            return total
        tokenize = Tokenizer()
        weights: Counter[int] = Counter()
        for part, weight in text.parts:
            for term in dict.fromkeys(self._bm25.get_tokens_ids(tokenize(part))):
                weights[term] += weight  # type: ignore[assignment]  # Counter is typed for int, and adds any number
        groups: defaultdict[float, list[int]] = defaultdict(list)
        for term, weight in weights.items():
            groups[weight].append(term)
        for weight, group in groups.items():
            total += math.sqrt(weight) * self._bm25.get_scores_from_ids(group)
        return total


class BM25Ranker:
    """Ranks by BM25. The index of a pool is kept: an agent sends the same tools again and again."""

    name = "bm25"

    def __init__(self) -> None:
        self._indexes: LRU[tuple[str, ...], Index] = LRU(INDEXED_CANDIDATES, lambda index: index.size)
        self._building = asyncio.Lock()

    async def start(self) -> None:
        """Nothing to load."""

    async def close(self) -> None:
        """Nothing to give back."""

    async def rank(self, text: SearchText, pool: Pool) -> Ranking:
        """See `Ranker.rank`."""
        index = self._indexes.get(pool.digests)
        if index is None:
            async with self._building:  # who asks for the same pool meanwhile waits, and finds it
                index = self._indexes.get(pool.digests)
                if index is None:
                    index = await asyncio.to_thread(Index, pool)
                    self._indexes.put(pool.digests, index)
        return Ranking(index.scores(text))
