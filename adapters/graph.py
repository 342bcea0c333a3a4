"""The candidate graph (ToolACE-MCP, section 3.3.1): what is similar, what feeds what, what was made of what.

Knows candidates and their vectors. Does not know LLMs, tasks or files. Edges are kept as arrays, and similarities are
computed in blocks, so that 100,000 candidates need little more memory than their vectors.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import igraph  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from adapters.augment import words
from prompts import Candidate

Kind = Literal["similarity", "dependency", "mutation"]
KINDS: tuple[Kind, ...] = ("similarity", "dependency", "mutation")

# The paper's threshold.
THRESHOLD = 0.82
# Rows and columns whose similarities are in memory at once: 32 MiB.
ROWS, COLUMNS = 1_024, 8_192
# Cosines this near the threshold are computed again, alone: those of a block depend on its shape in the last digits.
DOUBT = 1e-4
# Edges beyond which a graph says nothing any more; 240 MB.
MOST_EDGES = 20_000_000
# An input of a name that more candidates have (id, query, limit) is fed within its own server only.
COMMON = 30
# Candidates that may feed one input: with more, the name is no sign.
MOST_PRODUCERS = 12

# What is given back where no output schema says it: names of tools that begin so give what they are named after.
_GIVING = frozenset(
    {
        "add",
        "create",
        "fetch",
        "find",
        "generate",
        "get",
        "list",
        "lookup",
        "open",
        "query",
        "read",
        "retrieve",
        "search",
    }
)
# Last words of an input that asks for such a thing: issue_id, issueKey, issue.
_REFERENCES = frozenset({"id", "ids", "key", "number", "name", "uuid", "slug", "uri", "url", "path"})


@dataclass(frozen=True)
class Graph:
    """Edges between candidates by their positions. Undirected where similar; from producer, or parent, otherwise.

    Attributes:
        size: number of candidates.
        sources, targets: positions (edges,).
        kinds: places in `KINDS` (edges,).
        similarity: cosine of either end's vectors (edges,).
    """

    size: int
    sources: NDArray[np.int32]
    targets: NDArray[np.int32]
    kinds: NDArray[np.uint8]
    similarity: NDArray[np.float32]

    @cached_property
    def _adjacency(self) -> tuple[NDArray[np.intp], NDArray[np.int32], NDArray[np.uint8]]:
        ends = np.concatenate([self.sources, self.targets])
        others = np.concatenate([self.targets, self.sources])
        order = np.lexsort((others, ends))
        starts = np.searchsorted(ends[order], np.arange(self.size + 1))
        return starts, others[order], np.concatenate([self.kinds, self.kinds])[order]

    def neighbours(self, position: int) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
        """Positions of its neighbours in order, and the kinds of the edges; a neighbour by two kinds stands twice."""
        starts, others, kinds = self._adjacency
        mine = slice(starts[position], starts[position + 1])
        return others[mine], kinds[mine]

    @property
    def degrees(self) -> NDArray[np.intp]:
        """Edges of each candidate."""
        return np.diff(self._adjacency[0])

    def components(self) -> list[list[int]]:
        """Connected candidates, largest component first; those without an edge are one each."""
        made = igraph.Graph(self.size, np.stack([self.sources, self.targets], axis=1).tolist())
        return sorted(made.connected_components(), key=len, reverse=True)

    def statistics(self) -> dict[str, Any]:
        """Counts for a report."""
        degrees, components = self.degrees, self.components()
        edges = {kind: int((self.kinds == place).sum()) for place, kind in enumerate(KINDS)}
        return {
            "candidates": self.size,
            "edges": edges,
            "isolated": int((degrees == 0).sum()),
            "mean_degree": round(float(degrees.mean()), 2) if self.size else 0.0,
            "median_degree": float(np.median(degrees)) if self.size else 0.0,
            "max_degree": int(degrees.max(initial=0)),
            "components": len(components),
            "largest_component": len(components[0]) if components else 0,
        }


def specification(candidate: Candidate) -> str:
    """What is embedded, the paper's phi(c): of a tool description and input schema, of an agent profile and tools.

    The server is left out: two servers' tools for the same are neighbours.
    """
    text = f"{' '.join(words(candidate.name))}: {candidate.description}"
    if candidate.tools:
        text += f" Tools: {', '.join(candidate.tools)}."
    known = candidate.input_schema.get("properties")
    if isinstance(known, Mapping) and known:
        text += f" Input: {', '.join(_field(str(name), details) for name, details in known.items())}."
    return " ".join(text.split())


def _field(name: str, details: Any) -> str:
    kind = details.get("type") if isinstance(details, Mapping) else None
    return f"{name} ({kind})" if isinstance(kind, str) else name


def build_graph(
    candidates: Sequence[Candidate],
    vectors: NDArray[np.float32],
    parents: Mapping[str, str] | None = None,
    threshold: float = THRESHOLD,
) -> Graph:
    """The graph of a catalogue.

    Args:
        vectors: of each candidate's specification (candidates, dimensions), of unit length up to rounding.
        parents: of candidates made by mutation, the id they were made of.
        threshold: cosine above which two candidates are similar.

    Raises:
        ValueError: there are more edges than `MOST_EDGES`.
    """
    length = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))[:, None]
    unit = np.asarray(vectors / np.maximum(length, np.finfo(np.float32).tiny), np.float32)
    position = {candidate.id: place for place, candidate in enumerate(candidates)}
    made = [(position[parent], position[child]) for child, parent in (parents or {}).items()]
    parts = [similar_pairs(unit, threshold), _pairs(dependencies(candidates)), _pairs(made)]
    sources, targets = np.concatenate(parts).T
    kinds = np.repeat(np.arange(len(KINDS), dtype=np.uint8), [len(part) for part in parts])
    return Graph(len(candidates), sources, targets, kinds, _cosines(unit, sources, targets))


def _pairs(pairs: Sequence[tuple[int, int]]) -> NDArray[np.int32]:
    return np.array(pairs, np.int32).reshape(-1, 2)


def _cosines(unit: NDArray[np.float32], a: NDArray[np.int32], b: NDArray[np.int32]) -> NDArray[np.float32]:
    """Of each pair, alone and without BLAS: the same on any number of threads."""
    made = np.empty(len(a), np.float32)
    for start in range(0, len(a), COLUMNS):
        part = slice(start, start + COLUMNS)
        made[part] = np.einsum("ij,ij->i", unit[a[part]], unit[b[part]])
    return made


def similar_pairs(unit: NDArray[np.float32], threshold: float) -> NDArray[np.int32]:
    """Every pair (i, j) with i < j and a cosine above the threshold, in order (pairs, 2). Raises as `build_graph`."""
    found: list[NDArray[np.int32]] = []
    count = 0
    for top in range(0, len(unit), ROWS):
        rows = []
        for left in range(top - top % COLUMNS, len(unit), COLUMNS):
            cosines = unit[top : top + ROWS] @ unit[left : left + COLUMNS].T
            i, j = np.nonzero(cosines > threshold - DOUBT)
            pairs = np.stack([i + top, j + left], axis=1).astype(np.int32)
            upper = pairs[:, 0] < pairs[:, 1]
            pairs, doubtful = pairs[upper], cosines[i, j][upper] < threshold + DOUBT
            keep = ~doubtful
            keep[doubtful] = _cosines(unit, *pairs[doubtful].T) > threshold
            rows.append(pairs[keep])
            count += len(rows[-1])
        if count > MOST_EDGES:
            raise ValueError(
                f"more than {MOST_EDGES:,} pairs of candidates have a cosine above {threshold}: raise the threshold"
            )
        block = np.concatenate(rows)
        found.append(block[np.lexsort((block[:, 1], block[:, 0]))])
    return np.concatenate(found) if found else np.zeros((0, 2), np.int32)


def dependencies(candidates: Sequence[Candidate]) -> list[tuple[int, int]]:
    """(producer, consumer), where an output of the one fits an input of the other by name and type.

    Outputs are the fields of an output schema. Few tools have one: those without are taken to give what they are
    named after (`create_issue` gives an issue, which `issue_id` asks for), to others of their server.
    """
    consumers: dict[tuple[str, ...], list[tuple[int, str]]] = defaultdict(list)
    for place, candidate in enumerate(candidates):
        for name, kind in _fields(candidate.input_schema):
            consumers[tuple(words(name))].append((place, kind))
    found: dict[tuple[int, int], None] = {}
    for key, producers in _outputs(candidates, consumers).items():
        near = len(consumers[key]) > COMMON
        here: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for producer, given, _ in producers:
            here[candidates[producer].server].append((producer, given))
        anywhere = [] if near else [(producer, given) for producer, given, own_server in producers if not own_server]
        for consumer, kind in consumers[key]:
            offered = {*anywhere, *here.get(candidates[consumer].server, ())}
            fitting = [producer for producer, given in offered if producer != consumer and _fits(given, kind)]
            if len(fitting) <= MOST_PRODUCERS:
                found.update(dict.fromkeys((producer, consumer) for producer in fitting))
    return sorted(found)


def _outputs(
    candidates: Sequence[Candidate], consumers: Mapping[tuple[str, ...], Any]
) -> dict[tuple[str, ...], list[tuple[int, str, bool]]]:
    """Who gives what is consumed: by its name's words, position, type ("" where unknown), and if only at its server."""
    made: dict[tuple[str, ...], list[tuple[int, str, bool]]] = defaultdict(list)
    referred: dict[tuple[str, ...], list[tuple[str, ...]]] = defaultdict(list)
    for key in consumers:
        referred[key].append(key)
        if len(key) > 1 and key[-1] in _REFERENCES:
            referred[key[:-1]].append(key)
    for place, candidate in enumerate(candidates):
        needed = {tuple(words(name)) for name, _ in _fields(candidate.input_schema)}
        given: dict[tuple[str, ...], tuple[str, bool]] = {}
        if candidate.output_schema:
            given = {tuple(words(name)): (kind, False) for name, kind in _fields(candidate.output_schema)}
        elif (named := _named_after(candidate.name)) is not None:
            given = dict.fromkeys(referred[named], ("", True)) if named in referred else {}
        for key, (kind, own_server) in given.items():
            # Who has to be told it does not give it.
            if key in consumers and key not in needed:
                made[key].append((place, kind, own_server))
    return made


def _named_after(name: str) -> tuple[str, ...] | None:
    """The thing that a tool's name says it gives, in the singular: `listOpenIssues` gives an (open, issue)."""
    verb, *thing = words(name) or [""]
    if verb not in _GIVING or not thing:
        return None
    last = thing[-1]
    return (*thing[:-1], last[:-1] if len(last) > 3 and last.endswith("s") and not last.endswith("ss") else last)


def _fields(schema: Any) -> Iterator[tuple[str, str]]:
    """Names and types of a schema's properties; of an output also those one level deeper, in objects and lists."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    for name, details in properties.items() if isinstance(properties, Mapping) else ():
        known = details if isinstance(details, Mapping) else {}
        kind = known.get("type")
        yield str(name), kind if isinstance(kind, str) else ""
        inner = known.get("items", known)
        if isinstance(inner, Mapping) and isinstance(inner.get("properties"), Mapping):
            for deeper, more in inner["properties"].items():
                kind = more.get("type") if isinstance(more, Mapping) else None
                yield str(deeper), kind if isinstance(kind, str) else ""


def _fits(given: str, wanted: str) -> bool:
    return not given or not wanted or given == wanted or (given, wanted) == ("integer", "number")
