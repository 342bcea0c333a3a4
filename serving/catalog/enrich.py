"""Describes a catalogue's candidates with an LLM: user queries, intentions, missing descriptions, chains.

Knows the store, an LLM and an embedder; how they are asked is worded in `prompts.enrichment`. After Toollery (generated
queries, kept where a verifier recovers their source among distractors) and SING (intentions out of queries; chains
grown from single requests). What is finished is in the LLM's journal, each call and each candidate: the work may be
stopped at any moment and started again, and candidates whose content has not changed since are left alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from rich.progress import Progress

from prompts import enrichment
from prompts.enrichment import LINE_CHARACTERS, Instruction
from serving.catalog.embeddings import TextVectors
from serving.catalog.enrich_report import Report
from serving.catalog.entry import Chain, Entry
from serving.catalog.neighbours import Neighbours
from serving.llm import LLM, Prices
from serving.prefilter.embedder import Embedder
from serving.types import Candidate, ConflictError, EngineError, EngineUnavailableError

if TYPE_CHECKING:
    from serving.catalog.store import Store

# The rest of a chain is looked for among so many others, of the candidate's own server first.
COMPANIONS = 12
# Finished candidates are written together, because each write is a new version of the catalogue for every replica.
WRITTEN_TOGETHER = 64
# When so many in a row fail, it is not the candidates.
FAILURES_IN_A_ROW = 20


@dataclass(frozen=True, slots=True)
class Options:
    """What is made.

    Attributes:
        queries: user queries written for each candidate; 3 is Toollery's number.
        intentions: intentions of each.
        distractors: how many other candidates the verifier sees; 0 keeps every query.
        hard: whether they are the most similar ones instead of random ones.
        near_duplicate: cosine similarity from which of two texts for one candidate the later one is dropped. With
            all-MiniLM-L6-v2, rewordings and other values in the same sentence reach .87; of 900 pairs of queries that
            a strong LLM had written none reached .83.
        descriptions: whether candidates without a description get one.
        chains: whether a chain is grown from each candidate's first query.
        everything: also what is enriched already.
    """

    queries: int = 3
    intentions: int = 3
    distractors: int = 8
    hard: bool = False
    near_duplicate: float = 0.85
    descriptions: bool = True
    chains: bool = False
    everything: bool = False


Item = TypeVar("Item")


async def enrich(
    store: Store,
    catalog: str,
    llm: LLM,
    embedder: Embedder,
    embedder_name: str,
    options: Options | None = None,
    *,
    prices: Prices | None = None,
    progress: Progress | None = None,
) -> Report:
    """Bring a catalogue up to date. What failed, and why the run stopped early if it did, is in the report.

    Args:
        embedder_name: under which the store keeps the embedder's vectors.
        prices: of the LLM's tokens, for the progress bar.
        progress: from `progress_bar`.

    Raises:
        NotFoundError: there is no such catalogue.
    """
    options = options or Options()
    run = _Run(store, catalog, llm, embedder, embedder_name, options, prices or Prices(), progress)
    run.about = {server.name: server.description for server in await store.servers(catalog)}
    if options.descriptions:
        await run.write_descriptions()
    if not run.report.stopped:
        await run.write_queries()
    if options.chains and not run.report.stopped:
        await run.write_chains()
    run.report.spent, run.report.replayed = llm.spent, llm.replayed
    return run.report


class _Run:
    """Each phase reads the catalogue anew and ends before the next begins, so that what the LLM is asked does not
    depend on where an earlier run was stopped."""

    def __init__(
        self,
        store: Store,
        catalog: str,
        llm: LLM,
        embedder: Embedder,
        embedder_name: str,
        options: Options,
        prices: Prices,
        progress: Progress | None,
    ) -> None:
        self.store, self.catalog, self.llm = store, catalog, llm
        self.embedder, self.embedder_name = embedder, embedder_name
        self.options, self.prices, self.progress = options, prices, progress or Progress(disable=True)
        self.about: dict[str, str] = {}
        self.report = Report()
        self._failures = 0
        self._writing = asyncio.Lock()

    # -- descriptions

    async def write_descriptions(self) -> None:
        """Give one to every candidate that has none."""
        entries = await self._entries()
        siblings: dict[str, list[str]] = defaultdict(list)
        for entry in entries:
            siblings[entry.candidate.server].append(entry.candidate.name)
        made: dict[str, str] = {}

        async def write(entry: Entry) -> None:
            candidate = entry.candidate
            others = [name for name in siblings[candidate.server] if name != candidate.name] if candidate.server else []
            answer = await self._ask(enrichment.write_description(candidate, self._about(candidate), others))
            if text := _clean(answer["description"]):
                made[candidate.id] = text
                await self._write(made, self._put_descriptions)

        await self._each("descriptions", list(filter(_undescribed, entries)), write)
        await self._write(made, self._put_descriptions, rest=True)

    async def _put_descriptions(self, made: Mapping[str, str]) -> None:
        """Into those that still have none: a write of somebody else's in between is not undone."""
        while True:
            version = await self.store.version(self.catalog)
            lacking = [entry for entry in await self.store.get(self.catalog, list(made)) if _undescribed(entry)]
            described = [
                dataclasses.replace(
                    entry, candidate=dataclasses.replace(entry.candidate, description=made[entry.candidate.id])
                )
                for entry in lacking
            ]
            with contextlib.suppress(ConflictError):
                await self.store.upsert(self.catalog, described, if_match=version)
                self.report.descriptions += len(described)
                return

    # -- queries and intentions

    async def write_queries(self) -> None:
        """Queries and intentions for every candidate that has none, or whose content has changed since."""
        entries = await self._entries()
        due = [entry for entry in entries if self._due(entry)]
        self.report.considered, self.report.current = len(entries), len(entries) - len(due)
        neighbours = await self._neighbours(entries, similar=self.options.hard and bool(due))
        made: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
        contents = {entry.candidate.id: entry.candidate.content_hash for entry in due}

        async def put(texts: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]) -> None:
            await self.store.put_enrichment(self.catalog, texts)
            for id_, (queries, intentions) in texts.items():
                kept = bool(queries or intentions)
                self.llm.journal.put(self._record("enriched", id_), {"content": contents[id_], "kept": kept})
            self.report.enriched += len(texts)

        async def write(entry: Entry) -> None:
            queries = await self._queries(entry.candidate, neighbours)
            made[entry.candidate.id] = queries, await self._intentions(entry.candidate, queries)
            await self._write(made, put)

        await self._each("queries and intentions", due, write)
        await self._write(made, put, rest=True)

    def _due(self, entry: Entry) -> bool:
        record = self.llm.journal.get(self._record("enriched", entry.candidate.id))
        enriched = bool(entry.queries or entry.intentions)
        if self.options.everything or record is None:
            return self.options.everything or not enriched
        return record["content"] != entry.candidate.content_hash or (record["kept"] and not enriched)

    async def _queries(self, candidate: Candidate, neighbours: Neighbours) -> tuple[str, ...]:
        number = self.options.queries
        if not number:
            return ()
        answer = await self._ask(enrichment.write_queries(candidate, self._about(candidate), number))
        # One that only repeats the description adds nothing to it.
        known = [candidate.description] if candidate.description.strip() else []
        distinct = await self._distinct([answer[name] for name in enrichment.numbered("query", number)], known)
        pick = neighbours.nearest if self.options.hard else neighbours.random
        others = pick(candidate, self.options.distractors)
        kept = [query for query in distinct if not others or await self._recovered(query, candidate, others)]
        self.report.queries_written += number
        self.report.queries_near_duplicate += number - len(distinct)
        self.report.queries_refused += len(distinct) - len(kept)
        self.report.queries_kept += len(kept)
        return tuple(kept)

    async def _recovered(self, query: str, candidate: Candidate, others: Sequence[Candidate]) -> bool:
        """Whether the verifier picks this candidate for the query. Its place is always the same for a query."""
        offered = [candidate, *others]
        Random(f"{candidate.content_hash} {query}").shuffle(offered)  # noqa: S311
        choice: int = (await self._ask(enrichment.choose_source(query, offered)))["choice"]
        return choice > 0 and offered[choice - 1] is candidate

    async def _intentions(self, candidate: Candidate, queries: Sequence[str]) -> tuple[str, ...]:
        if not self.options.intentions:
            return ()
        number = self.options.intentions
        answer = await self._ask(enrichment.write_intentions(candidate, self._about(candidate), queries, number))
        kept = await self._distinct([answer[name] for name in enrichment.numbered("intention", number)])
        self.report.intentions += len(kept)
        return tuple(kept)

    async def _distinct(self, texts: Sequence[str], known: Sequence[str] = ()) -> list[str]:
        """Those that are sensible, and not nearly the same as an earlier one or as one of `known`."""
        cleaned = [text for text in map(_clean, texts) if text and len(text) <= LINE_CHARACTERS]
        if not cleaned:
            return []
        vectors = await self.embedder.embed([*known, *cleaned])
        kept = list(range(len(known)))
        for i in range(len(known), len(vectors)):
            # Not `@`: for so little work, waking the threads of BLAS costs more than the work.
            if not np.any(np.einsum("td,d->t", vectors[kept], vectors[i]) >= self.options.near_duplicate):
                kept.append(i)
        return [cleaned[i - len(known)] for i in kept[len(known) :]]

    # -- chains

    async def write_chains(self) -> None:
        """Grow a chain from the first query of every candidate, once for each content that it has."""
        entries = await self._entries()
        due = [
            entry
            for entry in entries
            if entry.queries and self.llm.journal.get(self._record("chained", entry.candidate.id)) != _chained(entry)
        ]
        neighbours = await self._neighbours(entries, similar=bool(due))
        made: dict[str, Chain | None] = {}
        contents = {entry.candidate.id: _chained(entry) for entry in due}

        async def put(chains: Mapping[str, Chain | None]) -> None:
            if whole := [chain for chain in chains.values() if chain is not None]:
                await self.store.put_chains(self.catalog, whole)
            for id_ in chains:
                self.llm.journal.put(self._record("chained", id_), contents[id_])
            self.report.chains += len(whole)

        async def write(entry: Entry) -> None:
            made[entry.candidate.id] = await self._chain(entry, neighbours)
            await self._write(made, put)

        await self._each("chains", due, write)
        await self._write(made, put, rest=True)

    async def _chain(self, entry: Entry, neighbours: Neighbours) -> Chain | None:
        offered = [entry.candidate, *neighbours.companions(entry.candidate, COMPANIONS)]
        answer = await self._ask(enrichment.write_chain(entry.queries[0], offered))
        steps = [answer[name] for name in enrichment.numbered("step", enrichment.CHAIN_TOOLS)]
        used = steps[: steps.index(0)] if 0 in steps else steps
        query = _clean(answer["query"])
        if len(set(used)) < 2 or 1 not in used or not query:
            return None
        return Chain(query, tuple(offered[number - 1].id for number in used))

    # -- shared

    async def _entries(self) -> list[Entry]:
        """Everything that may be chosen, by id."""
        entries = (await self.store.changes(self.catalog, 0)).entries
        return sorted((entry for entry in entries if entry.enabled), key=lambda entry: entry.candidate.id)

    def _about(self, candidate: Candidate) -> str:
        return self.about.get(candidate.server, "")

    def _record(self, kind: Literal["enriched", "chained"], id_: str) -> str:
        """The journal's key of a candidate that is done."""
        return f"{kind}/{self.catalog}/{id_}"

    async def _ask(self, instruction: Instruction) -> dict[str, Any]:
        answer: dict[str, Any] = await self.llm.ask(instruction.messages, instruction.schema)
        return answer

    async def _neighbours(self, entries: Sequence[Entry], *, similar: bool) -> Neighbours:
        candidates = [entry.candidate for entry in entries]
        if not similar:
            return Neighbours(candidates)
        bar = self.progress.add_task("embeddings", total=len({c.content_hash for c in candidates}), spent="")
        vectors = TextVectors(
            self.store, self.embedder, self.embedder_name, lambda number: self.progress.advance(bar, number)
        )
        return Neighbours(candidates, await vectors.of_candidates(candidates))

    async def _write(
        self, made: dict[str, Item], put: Callable[[Mapping[str, Item]], Awaitable[None]], *, rest: bool = False
    ) -> None:
        """Store what has been made once it is enough for one write."""
        if len(made) < (1 if rest else WRITTEN_TOGETHER):
            return
        taken = dict(made)
        made.clear()
        async with self._writing:
            await put(taken)

    async def _each(self, phase: str, entries: Sequence[Entry], work: Callable[[Entry], Awaitable[None]]) -> None:
        """Work on all, as many at once as keep the LLM busy while others embed."""
        bar = self.progress.add_task(phase, total=len(entries), spent="")
        waiting = iter(entries)

        async def worker() -> None:
            for entry in waiting:
                if self.report.stopped:
                    return
                try:
                    await work(entry)
                    self._failures = 0
                except EngineUnavailableError as error:
                    self.report.stopped = self.report.stopped or str(error)
                except EngineError as error:
                    self._fail(entry, error)
                self.progress.update(bar, advance=1, spent=self._spent())

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(2 * self.llm.concurrency, len(entries))):
                    group.create_task(worker())
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    def _fail(self, entry: Entry, error: EngineError) -> None:
        self.report.failed[entry.candidate.id] = str(error)
        self._failures += 1
        if self._failures == FAILURES_IN_A_ROW:
            self.report.stopped = f"{self._failures} candidates in a row failed; the last: {error}"

    def _spent(self) -> str:
        return f"{self.llm.spent.calls} calls, ${self.llm.spent.cost(self.prices):.2f}"


def _undescribed(entry: Entry) -> bool:
    return not entry.candidate.description.strip()


def _clean(text: str) -> str:
    """In one line, without what a database cannot hold."""
    return " ".join(text.replace("\0", " ").split())


def _chained(entry: Entry) -> str:
    """What a chain was grown from."""
    return f"{entry.candidate.content_hash} {entry.queries[0]}"
