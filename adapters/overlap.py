"""Whether evaluation queries stand, wholly or in part, in training text or in generated queries (enrichment).

Knows texts. Follows the audit of Toollery (table 14: exact matches, largest 5-gram Jaccard) and adds shared
13-grams, the usual sign of contamination (GPT-3, appendix C).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from adapters.cases import read_cases
from adapters.questions import EvaluationSet
from adapters.scores import Row
from prompts import Message
from prompts.question import query_position

JACCARD_GRAM = 5
LONG_GRAM = 13
Words = tuple[str, ...]
_WORD = re.compile(r"[^\W_]+")


@dataclass(slots=True)
class Overlap:
    """What one set's queries share with one body of text.

    Attributes:
        queries: different queries that were looked for.
        texts: different texts that were looked through.
        exact: queries that stand there, word for word.
        shared_13: queries that share 13 words in a row with a text.
        max_jaccard: the largest 5-gram Jaccard similarity of a query and a text.
        closest: the query and the text that have it.
    """

    queries: int
    texts: int = 0
    exact: int = 0
    shared_13: int = 0
    max_jaccard: float = 0.0
    closest: tuple[str, str] = field(default=("", ""))


def words(text: str) -> Words:
    """Words without case and punctuation."""
    return tuple(_WORD.findall(text.casefold()))


def grams(tokens: Sequence[str], size: int) -> frozenset[Words]:
    """Runs of `size` words; a shorter text is one run."""
    if len(tokens) < size:
        return frozenset({tuple(tokens)}) if tokens else frozenset()
    return frozenset(tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1))


def overlap(queries: Iterable[str], texts: Iterable[str]) -> Overlap:
    """Look for every query in every text."""
    asked = {tokens: query for query in queries if (tokens := words(query))}
    held = {tokens: grams(tokens, JACCARD_GRAM) for tokens in asked}
    holders = _holders((tokens, runs) for tokens, runs in held.items())
    long_holders = _holders((tokens, grams(tokens, LONG_GRAM)) for tokens in asked if len(tokens) >= LONG_GRAM)
    found = Overlap(queries=len(asked))
    sharing: set[Words] = set()
    seen: set[Words] = set()
    for text in texts:
        tokens = words(text)
        if not tokens or tokens in seen:
            continue
        seen.add(tokens)
        runs = grams(tokens, JACCARD_GRAM)
        for query, count in Counter(query for run in runs for query in holders.get(run, ())).items():
            jaccard = count / (len(runs) + len(held[query]) - count)
            if jaccard > found.max_jaccard:
                found.max_jaccard, found.closest = jaccard, (asked[query], text)
        if len(tokens) >= LONG_GRAM:
            sharing.update(query for run in grams(tokens, LONG_GRAM) for query in long_holders.get(run, ()))
    found.texts, found.exact, found.shared_13 = len(seen), len(seen & asked.keys()), len(sharing)
    return found


def _holders(texts: Iterable[tuple[Words, frozenset[Words]]]) -> dict[Words, list[Words]]:
    """Which texts hold a run."""
    holders: dict[Words, list[Words]] = defaultdict(list)
    for tokens, runs in texts:
        for run in runs:
            holders[run].append(tokens)
    return holders


def training_texts(path: Path) -> Iterator[str]:
    """Every message of a file of training cases. Raises ValueError where the file cannot be read."""
    return (message.content for case in read_cases(path) for message in case.messages)


def audit(sets: Sequence[EvaluationSet], sources: Mapping[str, Callable[[], Iterable[str]]]) -> list[Row]:
    """Every set's queries against every source of text, by its name."""
    rows: list[Row] = []
    for set_ in sets:
        queries = [query for case in set_.cases if (query := _query(case.messages))]
        for name, texts in sources.items():
            rows.append({"set": set_.name, "source": name, **asdict(overlap(queries, texts()))})
    return rows


def _query(messages: Sequence[Message]) -> str:
    position = query_position(messages)
    return "" if position is None else messages[position].content
