"""Tables of whole tasks: whether a search finds the servers that they need (SING, table 3), and what it costs to show
what it finds (SING, figure 3).

Knows trajectories and rankers. Does not know how a table is shown. A task is a trajectory, its right servers those of
its calls; a step is one of its decisions, its right servers those of the calls made there.

The graph holds chains of other trajectories only: `graph` those of other groups of servers, which share no task with
this one and mostly no server; `graph, own servers` also those of the same servers, from other folds than the task's.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Literal

import numpy as np

from adapters.datasets import Case, Dataset
from adapters.metrics import Floats
from adapters.mixture import generator
from adapters.questions import drawn
from adapters.scores import Row
from adapters.searching import Searcher, metric, places, summary
from prompts import Candidate, Message
from prompts.question import query_position
from serving.prefilter.base import Ranker, search_text
from serving.prefilter.embedder import Embeddings
from serving.prefilter.graph import GraphRanker
from serving.prefilter.intentions import IntentionGraph
from serving.prefilter.pool import Pool

METRICS = ("recall@5", "full@5", "hit@5", "mrr")
METHODS = ("bm25", "dense", "fused", "graph", "graph, own servers")
Scope = Literal["global", "restricted"]
SCOPES: tuple[Scope, ...] = ("global", "restricted")
FOLDS = 5
# What is shown to a model: so many tools, or all tools of so many servers.
TOOLS = (1, 3, 5, 10, 20, 50)
SERVERS = (1, 2, 3, 5)
# Tools in a catalogue that grows (SING, figure 3).
GROWTH = (500, 1_000, 2_000, 5_000, 10_000)

Chains = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Ask:
    """One search: what is read, and what should be found.

    Attributes:
        kind: `task`, the first message; `step, query` and `step, history`, the latest user message and everything
            before a decision.
        servers: right ones, each needed.
        tools: right ones: at a step each is as good as another, a task needs all.
        offered: the servers of the restricted pool.
        split: the trajectory's group of servers.
    """

    kind: str
    messages: tuple[Message, ...]
    servers: frozenset[str]
    tools: tuple[frozenset[str], ...]
    offered: frozenset[str]
    trajectory: str
    split: str


@dataclass(eq=False)
class GraphPool(Pool):
    """A pool with the graph of its servers and of chains of its tools."""

    chains: Chains = ()

    async def graph(self, embeddings: Embeddings) -> IntentionGraph:
        """See `Searchable.graph`. No candidate has intentions."""

        async def build() -> IntentionGraph:
            rows = {candidate.id: row for row, candidate in enumerate(self.candidates)}
            steps = [[rows.get(id_) for id_ in chain] for chain in self.chains]
            return IntentionGraph([candidate.server for candidate in self.candidates], chains=steps)

        return await self._once(("graph", self.chains), build)


@dataclass(frozen=True, eq=False)
class Tasks:
    """Trajectories as searches."""

    dataset: Dataset
    limit: int | None
    seed: int

    @cached_property
    def by_trajectory(self) -> Mapping[str, list[Case]]:
        """The decisions of each trajectory that call something."""
        cases: dict[str, list[Case]] = defaultdict(list)
        for case in self.dataset.cases:
            if case.gold:
                cases[case.group].append(case)
        return cases

    @cached_property
    def asks(self) -> list[Ask]:
        """At most `limit` tasks, each with its steps."""
        by_id = self.dataset.by_id
        asks: list[Ask] = []
        for first in drawn([cases[0] for cases in self.by_trajectory.values()], self.limit, self.seed):
            cases = self.by_trajectory[first.group]
            tools = tuple(frozenset({id_}) for id_ in dict.fromkeys(id_ for case in cases for id_ in case.gold))
            servers = frozenset(by_id[id_].server for case in cases for id_ in case.gold)
            where = frozenset(first.servers), first.group, first.split
            asks.append(Ask("task", first.messages, servers, tools, *where))
            for case in cases:
                called = frozenset(by_id[id_].server for id_ in case.gold)
                query = query_position(case.messages) or 0
                for kind, messages in (("query", case.messages[query : query + 1]), ("history", case.messages)):
                    asks.append(Ask(f"step, {kind}", messages, called, (frozenset(case.gold),), *where))
        return asks

    def chains(self, ask: Ask, *, own: bool) -> Chains:
        """Of other groups of servers; with `own` also of this group's trajectories in other folds than the task's."""
        fold = self.folds[ask.trajectory]
        kept = []
        for trajectory, cases in self.by_trajectory.items():
            if cases[0].split != ask.split or (own and self.folds[trajectory] != fold):
                kept.append(tuple(id_ for id_, _ in groupby(id_ for case in cases for id_ in case.gold)))
        return tuple(chain for chain in kept if len(chain) > 1)

    @cached_property
    def folds(self) -> Mapping[str, int]:
        """The fold of each trajectory."""
        order = sorted(self.by_trajectory, key=lambda name: generator(self.seed, "fold", name).random())
        return {name: number % FOLDS for number, name in enumerate(order)}


class _Pools:
    """The pools of tasks. Those of one set of servers share postings and vectors."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._pools: dict[frozenset[str], GraphPool] = {}
        self._graphs: dict[tuple[object, ...], GraphPool] = {}

    def pool(self, servers: frozenset[str]) -> GraphPool:
        """The candidates of these servers; of all where none is named."""
        if servers not in self._pools:
            offered = (c for c in self._tasks.dataset.candidates if not servers or c.server in servers)
            self._pools[servers] = GraphPool(Pool.of(tuple(offered)).candidates)
        return self._pools[servers]

    def graph(self, servers: frozenset[str], ask: Ask, *, own: bool) -> GraphPool:
        """`pool` with the graph that may be known when this is asked."""
        fold = self._tasks.folds[ask.trajectory] if own else None
        key = (servers, ask.split, fold)
        if key not in self._graphs:
            self._graphs[key] = dataclasses.replace(self.pool(servers), chains=self._tasks.chains(ask, own=own))
        return self._graphs[key]


@dataclass(frozen=True, eq=False)
class _Search:
    """What a method found for one ask: servers and tools, best first."""

    ask: Ask
    servers: tuple[str, ...]
    tools: tuple[Candidate, ...]


async def _search(ranker: Ranker, ask: Ask, pool: Pool, history_messages: int) -> _Search:
    """A server is as good as the best of its tools."""
    ranking = await ranker.rank(search_text(ask.messages, history_messages), pool)
    order = np.argsort(-ranking.scores, kind="stable")
    ranked = [pool.candidates[row] for row in order if ranking.scores[row] > 0]
    servers = dict.fromkeys(candidate.server for candidate in ranked)
    return _Search(ask, tuple(servers), tuple(ranked[: max(TOOLS)]))


async def _searched(
    searcher: Searcher, tasks: Tasks, pools: _Pools, method: str, scope: Scope, kinds: Sequence[str]
) -> list[_Search]:
    rankers = searcher.rankers("specification")
    graph = GraphRanker(searcher.embeddings, searcher.config.graph)
    asks = [ask for ask in tasks.asks if ask.kind in kinds]
    done = searcher.progress(f"servers, {method}, {scope}", len(asks))
    found = []
    for ask in asks:
        servers = ask.offered if scope == "restricted" else frozenset[str]()
        ranker: Ranker = rankers.get(method, graph)
        pool = pools.pool(servers) if method in rankers else pools.graph(servers, ask, own=method != "graph")
        found.append(await _search(ranker, ask, pool, searcher.config.history_messages))
        done()
    return found


async def server_table(searcher: Searcher, tasks: Tasks) -> list[Row]:
    """Whether the servers of a task, or of a step, are among the first five (SING, table 3).

    `recall@5` is the share of the right servers, `full@5` whether all are there, `hit@5` whether any is.
    """
    rows: list[Row] = []
    pools = _Pools(tasks)
    kinds = list(dict.fromkeys(ask.kind for ask in tasks.asks))
    for scope in SCOPES:
        for method in METHODS:
            searches = await _searched(searcher, tasks, pools, method, scope, kinds)
            for kind in kinds:
                of_kind = [search for search in searches if search.ask.kind == kind]
                at = [places(one.servers, [frozenset({name}) for name in sorted(one.ask.servers)]) for one in of_kind]
                row: Row = {"set": tasks.dataset.name, "pool": scope, "asked": kind, "method": method}
                groups = [search.ask.trajectory for search in of_kind]
                rows.append(row | summary(lambda name, at=at: metric(name, at), groups, METRICS, tasks.seed))  # type: ignore[misc]
    return rows


async def exposure_table(searcher: Searcher, tasks: Tasks, method: str = "fused") -> list[Row]:
    """Tokens of the tools that are shown before each step, against how often a right one is among them: the best tools,
    all tools of the best servers, or everything."""
    rows: list[Row] = []
    pools = _Pools(tasks)
    for scope in SCOPES:
        searches = await _searched(searcher, tasks, pools, method, scope, ["step, history"])
        whole = [pools.pool(one.ask.offered if scope == "restricted" else frozenset()).candidates for one in searches]
        policies = [("tools", k, [one.tools[:k] for one in searches]) for k in TOOLS]
        for k in SERVERS:
            shown = [
                tuple(candidate for candidate in everything if candidate.server in one.servers[:k])
                for one, everything in zip(searches, whole, strict=True)
            ]
            policies.append(("servers", k, shown))
        policies.append(("everything", 1, whole))
        for policy, k, lists in policies:
            rows.append(
                {"set": tasks.dataset.name, "pool": scope, "shown": policy, "k": k, "n": len(searches),
                 "tokens": float(np.mean(_tokens(searcher, lists))),
                 "tools": float(np.mean([len(shown) for shown in lists])),
                 "recall": float(np.mean(_holds(searches, lists)))}
            )  # fmt: skip
    return rows


async def growth_table(searcher: Searcher, tasks: Tasks, k: int, method: str = "fused") -> list[Row]:
    """The same as the catalogue grows, server by server, around the servers of a task: all of it against `k` tools."""
    rows: list[Row] = []
    servers = sorted({candidate.server for candidate in tasks.dataset.candidates})
    order = sorted(servers, key=lambda name: generator(tasks.seed, "growth", name).random())
    pools = _Pools(tasks)
    asks = [ask for ask in tasks.asks if ask.kind == "step, history"]
    ranker = searcher.rankers("specification")[method]
    for size in (*GROWTH, None):
        around = {ask.offered: pools.pool(_around(tasks.dataset, ask.offered, order, size)) for ask in asks}
        if size is not None and all(len(pool) == len(tasks.dataset.candidates) for pool in around.values()):
            continue
        done = searcher.progress(f"growth, {size or 'all'}", len(asks))
        searches = []
        for ask in asks:
            searches.append(await _search(ranker, ask, around[ask.offered], searcher.config.history_messages))
            done()
        best = [one.tools[:k] for one in searches]
        whole = [around[one.ask.offered].candidates for one in searches]
        rows.append(
            {"set": tasks.dataset.name, "n": len(searches), "k": k,
             "pool_tools": float(np.mean([len(everything) for everything in whole])),
             "everything_tokens": float(np.mean(_tokens(searcher, whole))),
             "tokens": float(np.mean(_tokens(searcher, best))), "recall": float(np.mean(_holds(searches, best)))}
        )  # fmt: skip
    return rows


def _around(dataset: Dataset, offered: frozenset[str], order: Sequence[str], size: int | None) -> frozenset[str]:
    """`offered` and as many other servers as keep the catalogue within `size` tools; none named for all."""
    if size is None:
        return frozenset()
    sizes: dict[str, int] = defaultdict(int)
    for candidate in dataset.candidates:
        sizes[candidate.server] += 1
    chosen, total = set(offered), sum(sizes[name] for name in offered)
    for name in order:
        if name not in chosen and total + sizes[name] <= size:
            chosen.add(name)
            total += sizes[name]
    return frozenset(chosen)


def _tokens(searcher: Searcher, lists: Sequence[Sequence[Candidate]]) -> list[int]:
    """Of each list; a list that stands there again is counted once."""
    known: dict[int, int] = {}
    for shown in lists:
        if id(shown) not in known:
            known[id(shown)] = searcher.tokens(shown)
    return [known[id(shown)] for shown in lists]


def _holds(searches: Sequence[_Search], lists: Sequence[Sequence[Candidate]]) -> Floats:
    """The share of what each search needs that its list holds."""
    shares = []
    for search, shown in zip(searches, lists, strict=True):
        ids = {candidate.id for candidate in shown}
        shares.append(np.mean([not group.isdisjoint(ids) for group in search.ask.tools]))
    return np.array(shares)
