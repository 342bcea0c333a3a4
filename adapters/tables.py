"""Tables of how well a catalogue is searched: by method, by what is indexed, by how much is passed, and at what cost.

Knows searches and what they found. Does not know trajectories' servers, or how a table is shown. Every table is a list
of rows, the same for the same seed but for its times. They are those of Toollery (2, 3 and 9 to 13).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from adapters.methods import RETRIEVAL
from adapters.metrics import Floats, interval, resampled_means
from adapters.mixture import generator
from adapters.questions import EvaluationSet, Question
from adapters.scores import Row
from adapters.searching import SHOWN, Found, Queries, Searcher, paired, summary
from adapters.verifying import Verifier, verified
from prompts import Candidate
from prompts.candidate import describe
from serving.catalog.neighbours import Neighbours
from serving.prefilter.pool import Field

SIZES = (1, 3, 5, 10, 20, 50)
FIELDS: tuple[Field, ...] = ("specification", "manual", "both")
# Nested prefixes of each candidate's queries (Toollery, table 10); None for all.
PREFIXES = (0, 1, 2, 3, None)
# Other candidates that a verifier sees beside the source (Toollery, table 7).
DISTRACTORS = 8
# Most frequent candidates in front of a search's own, and the parts of the cases that are held out in turn (table 13).
HOT = (3, 5)
FOLDS = 5

MAIN = ("hit@1", "recall@1", "recall@5", "recall@10", "full@5", "full@10", "mrr")
COVERAGE = ("hit@1", "recall@10", "full@10", "mrr")


async def main_table(searcher: Searcher, sets: Sequence[EvaluationSet], seed: int) -> list[Row]:
    """Sets by methods, with the latest user message alone and with history."""
    rows: list[Row] = []
    for cases in sets:
        for method in RETRIEVAL:
            for shown in SHOWN:
                found = await searcher.found(cases, method, shown)
                row: Row = {"set": cases.name, "method": method, "shown": shown, "ms": float(np.mean(found.ms))}
                rows.append(row | summary(found.metric, found.groups, MAIN, seed))
    return rows


async def history_table(searcher: Searcher, sets: Sequence[EvaluationSet], seed: int) -> list[Row]:
    """What history adds to Recall@10 and Hit@1: paired differences for sets that have any, then their average."""
    rows: list[Row] = []
    with_history = [cases for cases in sets if any(len(case.messages) > 1 for case in cases.cases)]
    for method in RETRIEVAL:
        for name in ("recall@10", "hit@1"):
            samples: list[Floats] = []
            parts: list[Row] = []
            for number, cases in enumerate(with_history):
                found, bare = await searcher.found(cases, method), await searcher.found(cases, method, "query")
                ours, theirs = found.metric(name), bare.metric(name)
                samples.append(resampled_means((ours - theirs)[:, None], found.groups, seed + number)[:, 0])
                part = {"n": len(ours), "query": float(theirs.mean()), "history": float(ours.mean())}
                parts.append(part | {"difference": float((ours - theirs).mean()), "interval": interval(samples[-1])})
                rows.append({"set": cases.name, "method": method, "metric": name, **parts[-1]})
            if len(parts) > 1:
                means = {key: float(np.mean([part[key] for part in parts])) for key in ("query", "history")}
                # Sets are independent: the average of their samples is a sample of their average.
                average = {"difference": means["history"] - means["query"], "interval": interval(np.mean(samples, 0))}
                who: Row = {"set": "average", "method": method, "metric": name, "n": len(parts)}
                rows.append({**who, **means, **average})
    return rows


def enriched(sets: Sequence[EvaluationSet], queries: Queries) -> list[EvaluationSet]:
    """The sets in which some candidate has generated queries."""
    return [cases for cases in sets if cases.cases and not cases.pool(cases.cases[0]).ids.isdisjoint(queries)]


async def field_table(searcher: Searcher, sets: Sequence[EvaluationSet], queries: Queries, seed: int) -> list[Row]:
    """What is indexed, by method (Toollery, tables 2, 3 and 9), and what it gains over the specification alone."""
    rows: list[Row] = []
    for cases in enriched(sets, queries):
        for field in FIELDS:
            for method in RETRIEVAL:
                found = await searcher.found(cases, method, field=field, queries=queries)
                plain = await searcher.found(cases, method, field="specification", queries=queries)
                names = ("hit@1", "recall@10", "recall@50", "mrr", "full@10")
                row: Row = {"set": cases.name, "field": field, "method": method}
                row |= summary(found.metric, found.groups, names, seed)
                row |= {
                    f"{name}_gain": paired(found.metric(name), plain.metric(name), found.groups, seed)
                    for name in ("hit@1", "recall@10")
                }
                rows.append(row | {"ms": float(np.mean(found.ms))})
    return rows


async def query_table(searcher: Searcher, sets: Sequence[EvaluationSet], queries: Queries, seed: int) -> list[Row]:
    """More and more generated queries of each candidate beside its specification (Toollery, table 10)."""
    rows: list[Row] = []
    for cases in enriched(sets, queries):
        ids = frozenset[str]().union(*(cases.pool(case).ids for case in cases.cases))
        own = {id_: tuple(texts) for id_, texts in queries.items() if id_ in ids}
        for number in PREFIXES:
            used = {id_: texts[:number] for id_, texts in own.items()}
            tokens = sum(searcher.text_tokens(text) for texts in used.values() for text in texts)
            for method in RETRIEVAL:
                found = await searcher.found(cases, method, field="both", queries=used)
                row: Row = {"set": cases.name, "queries": "all" if number is None else str(number), "method": method}
                row |= {"query_tokens": tokens, "kept": sum(map(len, used.values()))}
                rows.append(row | summary(found.metric, found.groups, COVERAGE, seed))
    return rows


async def verifier_table(
    searcher: Searcher, sets: Sequence[EvaluationSet], queries: Queries, verifier: Verifier, seed: int
) -> list[Row]:
    """Queries kept where a verifier picks their source among random, or the most similar, others; and all of them
    (Toollery, table 11)."""
    rows: list[Row] = []
    for cases in enriched(sets, queries):
        pool = {candidate.id: candidate for case in cases.cases for candidate in cases.pool(case).candidates}
        candidates = list(pool.values())
        vectors = await searcher.embeddings.of([describe(candidate) for candidate in candidates])
        neighbours = Neighbours(candidates, vectors.astype(np.float32))
        own = {id_: tuple(texts) for id_, texts in queries.items() if id_ in pool}
        written = sum(map(len, own.values()))
        for name, pick in (("none", None), ("random", neighbours.random), ("hard", neighbours.nearest)):
            kept: Queries = own
            if pick is not None:
                done = searcher.progress(f"{cases.name}, verifier {verifier.name}, {name}", len(own))
                kept = await verified(verifier, own, pool, pick, DISTRACTORS, done)
            for method in RETRIEVAL:
                found = await searcher.found(cases, method, field="both", queries=kept)
                row: Row = {
                    "set": cases.name,
                    "filter": name,
                    "verifier": verifier.name if pick else "-",
                    "method": method,
                }
                row |= {"written": written, "kept": sum(map(len, kept.values()))}
                rows.append(row | summary(found.metric, found.groups, COVERAGE, seed))
    return rows


async def sweep_table(
    searcher: Searcher, sets: Sequence[EvaluationSet], queries: Queries, method: str = "fused"
) -> list[Row]:
    """How many candidates are passed (Toollery, table 12): what they hold, and what they cost; then all of them."""
    rows: list[Row] = []
    for cases in sets:
        found = await searcher.found(cases, method, field="both", queries=queries)
        for size in SIZES:
            tokens = [searcher.tokens(passed(question, ranking, size)) for question, ranking in _pairs(found)]
            row: Row = {"set": cases.name, "method": method, "K": str(size), "n": len(tokens)}
            row |= {"tokens": float(np.mean(tokens)), "recall": float(found.metric(f"recall@{size}").mean())}
            row |= {"full": float(found.metric(f"full@{size}").mean()), "ms": float(np.mean(found.ms))}
            rows.append(row)
        whole = float(np.mean([searcher.tokens(question.pool.candidates) for question in found.questions]))
        row = {"set": cases.name, "method": "everything", "K": "all", "tokens": whole, "n": len(found.questions)}
        rows.append({**row, "recall": 1.0, "full": 1.0, "ms": None})
    return rows


def _pairs(found: Found) -> Iterable[tuple[Question, tuple[str, ...]]]:
    return zip(found.questions, found.rankings, strict=True)


def passed(question: Question, ranking: Sequence[str], size: int) -> list[Candidate]:
    """The first candidates of a ranking."""
    ids = frozenset(ranking[:size])
    return [candidate for candidate in question.pool.candidates if candidate.id in ids]


async def popularity_table(
    searcher: Searcher, sets: Sequence[EvaluationSet], queries: Queries, k: int, seed: int, method: str = "fused"
) -> list[Row]:
    """The most frequent right candidates of other cases, alone and in front of a search (Toollery, table 13)."""
    rows: list[Row] = []
    for cases in sets:
        found = await searcher.found(cases, method, field="both", queries=queries)
        hot = _hot(found, seed)
        routes = {"hot alone": (k, False), method: (0, True)}
        routes |= {f"{number} hot + {method}": (number, True) for number in HOT if number < k}
        for route, (number, search) in routes.items():
            rankings = [
                tuple(dict.fromkeys((*frequent[:number], *(ranking if search else ()))))[:k]
                for frequent, ranking in zip(hot, found.rankings, strict=True)
            ]
            routed = Found(found.questions, tuple(rankings))
            names = (f"recall@{k}", f"full@{k}")
            row = summary(routed.metric, found.groups, names, seed)
            row |= {"recall": row.pop(names[0]), "full": row.pop(names[1])}
            row["intervals"] = dict(zip(("recall", "full"), row["intervals"].values(), strict=True))
            rows.append({"set": cases.name, "route": route, "k": k, **row})
    return rows


def _hot(found: Found, seed: int) -> list[list[str]]:
    """For each question the candidates on offer by how often they are right in the other folds; groups stay whole."""
    drawn = sorted(set(found.groups), key=lambda group: generator(seed, "fold", group).random())
    fold = {group: number % FOLDS for number, group in enumerate(drawn)}
    counts = [Counter[str]() for _ in range(FOLDS)]
    for question in found.questions:
        for other in range(FOLDS):
            if other != fold[question.case.group]:
                counts[other].update(sorted(question.case.right))
    frequent = [[id_ for id_, _ in sorted(count.items(), key=lambda item: (-item[1], item[0]))] for count in counts]
    return [
        [id_ for id_ in frequent[fold[question.case.group]] if id_ in question.pool.ids] for question in found.questions
    ]
