"""BM25 over documents that come one by one, and the terms that it counts.

Knows texts and numbers of documents. The tokeniser knows identifiers (snake_case, camelCase, dotted) and scripts that
write no spaces. Nothing here knows candidates.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import regex
import Stemmer
from bm25s.stopwords import STOPWORDS_EN_PLUS
from numpy.typing import NDArray

# Scripts that write no spaces between words, or too few of them (Korean glues particles to its nouns). \u30fc
# lengthens a vowel in both kana, and belongs to neither.
_SCRIPTS = r"\u30fc\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_UNSPACED = regex.compile(rf"[{_SCRIPTS}]")
_WORD = regex.compile(rf"(?V1)[{_SCRIPTS}]+|[[\p{{L}}\p{{M}}\p{{N}}]--[{_SCRIPTS}]]+")
_HUMP = regex.compile(r"(?<=[\p{Ll}\p{N}])(?=\p{Lu})|(?<=\p{Lu})(?=\p{Lu}\p{Ll})")
_CYRILLIC = regex.compile(r"\p{Cyrillic}")
_STOPWORDS = frozenset(STOPWORDS_EN_PLUS)

# Lucene's usual constants: how fast repetition saturates, and how much a document's length counts.
K1, B = 1.5, 0.75
# Documents that wait beside the sorted postings before they are merged in.
MERGE_DOCUMENTS = 1_000
# Words that a tokeniser remembers: what a caller can make it keep.
KNOWN_WORDS = 200_000


class Tokenizer:
    """Text of any language to the terms that BM25 counts. It remembers words."""

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
        known = self._known
        for word in _WORD.findall(text if text.isascii() else unicodedata.normalize("NFKC", text)):
            if word not in known:
                if len(known) >= KNOWN_WORDS:
                    known.clear()
                known[word] = self._terms(word)
            terms += known[word]
        return terms

    def _terms(self, word: str) -> list[str]:
        if _UNSPACED.match(word):
            return [*word, *map("".join, pairwise(word))]
        parts = _HUMP.split(word)
        forms = [form.lower() for form in ([*parts, word] if len(parts) > 1 else parts)]
        stem = self._russian.stemWord if _CYRILLIC.match(word) else self._english.stemWord
        return [stem(form) for form in forms if form not in _STOPWORDS]


class Postings:
    """BM25 (Lucene's variant) over documents numbered in the order in which they were added.

    Postings lie sorted by term; the newest documents wait beside them and are merged in once there are enough, so that
    one more document costs what one document costs. Frequencies always count all of them. The weight of a posting is
    that of the average length at the last merge.
    """

    def __init__(self) -> None:
        self._tokenize = Tokenizer()
        self._terms: dict[str, int] = {}
        self._frequencies: list[int] = []  # documents that hold each term
        self._lengths: list[int] = []
        self._merged = 0
        self._begins = np.zeros(1, dtype=np.int64)
        self._documents = np.zeros(0, dtype=np.int32)
        self._counts = np.zeros(0, dtype=np.float32)
        self._weights = np.zeros(0, dtype=np.float32)
        self._new: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)

    def __len__(self) -> int:
        return len(self._lengths)

    def add(self, texts: Iterable[str]) -> None:
        """Documents of these texts, numbered on from those there are."""
        for text in texts:
            terms = self._tokenize(text)
            for term, count in Counter(terms).items():
                number = self._terms.setdefault(term, len(self._terms))
                if number == len(self._frequencies):
                    self._frequencies.append(0)
                self._frequencies[number] += 1
                self._new[number].append((len(self._lengths), count))
            self._lengths.append(len(terms))
        if len(self) - self._merged > max(MERGE_DOCUMENTS, self._merged // 20):
            self._merge()

    def _merge(self) -> None:
        """Sort the waiting postings in behind those of the same term, and weigh all anew."""
        new = sorted(self._new.items())
        terms = np.repeat([term for term, _ in new], [len(found) for _, found in new]).astype(np.int64)
        pairs = np.array([pair for _, found in new for pair in found], dtype=np.int64).reshape(-1, 2)
        ends = np.full(len(self._terms), len(self._documents), dtype=np.int64)
        ends[: len(self._begins) - 1] = self._begins[1:]
        self._documents = np.insert(self._documents, ends[terms], pairs[:, 0])
        self._counts = np.insert(self._counts, ends[terms], pairs[:, 1])
        self._begins = np.concatenate([[0], np.cumsum(self._frequencies)])
        self._merged = len(self)
        self._new.clear()
        self._weights = self._counts / (self._counts + self._damping()[self._documents])

    def _damping(self) -> NDArray[np.float32]:
        """What a count is weighed against, for each document: more in a long one."""
        lengths = np.asarray(self._lengths, dtype=np.float32)
        return K1 * (1 - B + B * lengths / max(float(lengths.mean()), 1e-9))

    def scores(self, parts: Sequence[tuple[str, float]]) -> NDArray[np.float32]:
        """Array (documents,), 0 where no term is shared with the parts of what is searched for, each with its weight.

        A term counts the square root of the summed weights of the parts that hold it: once is most of what it
        says, and a long conversation does not drown its query.
        """
        total = np.zeros(len(self), dtype=np.float32)
        weights: defaultdict[int, float] = defaultdict(float)
        for part, weight in parts:
            for word in dict.fromkeys(self._tokenize(part)):
                if word in self._terms:
                    weights[self._terms[word]] += weight
        waiting = {document for term in weights for document, _ in self._new.get(term, ())}
        mean = max(sum(self._lengths) / len(self), 1e-9) if waiting else 1.0
        damping = {document: K1 * (1 - B + B * self._lengths[document] / mean) for document in waiting}
        for term, weight in weights.items():
            frequency = self._frequencies[term]
            rarity = math.sqrt(weight) * math.log(1 + (len(self) - frequency + 0.5) / (frequency + 0.5))
            if term + 1 < len(self._begins):
                found = slice(self._begins[term], self._begins[term + 1])
                total[self._documents[found]] += np.float32(rarity) * self._weights[found]
            for document, count in self._new.get(term, ()):
                total[document] += rarity * count / (count + damping[document])
        return total
