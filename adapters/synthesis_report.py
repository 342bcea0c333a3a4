"""What a run of the data factory made: Markdown and pictures, the paper's own figures beside.

Knows what a run made, and matplotlib. Does not make anything itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, median

import igraph  # type: ignore[import-untyped]
import matplotlib as mpl
import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from numpy.typing import NDArray

from adapters.graph import KINDS, Graph
from adapters.report import Section, markdown
from adapters.supervision import counted
from adapters.synthesise import Made
from adapters.trajectories import Trajectory
from prompts import Candidate, Message
from serving.llm import LLM, Prices

mpl.use("Agg")

REPORT, GRAPH_PICTURE, TRAJECTORIES_PICTURE = "report.md", "graph.png", "trajectories.png"
# ToolACE-MCP, section 4.1 and its limitations.
PAPER = {"candidates": "2,005", "candidates given": "627", "candidates made by mutation": "1,378", "cases": "15,092"}
# Candidates of a picture: more are a grey cloud. Whole components, the largest first.
DRAWN = 1_500
# Servers with a colour of their own; the others are grey.
COLOURED = 20
_EDGE_COLOURS = {"similarity": "0.75", "dependency": "tab:blue", "mutation": "tab:red"}


def write_report(made: Made, out: Path, llm: LLM, prices: Prices, count_tokens: Callable[[str], int]) -> Path:
    """Write `report.md` with its pictures into `out`; returns the file.

    Args:
        llm: for what it has spent.
        count_tokens: of the model that the cases are for.
    """
    draw_graph(made.graph, [*made.dataset.candidates], out / GRAPH_PICTURE)
    _draw_trajectories(made.trajectories.kept, out / TRAJECTORIES_PICTURE)
    parts = [
        _scale(made),
        _mutations(made),
        graph_section(made.graph),
        _dialogues(made, count_tokens),
        _twists(made),
        _rejections(made),
        _cost(llm, prices),
    ]
    pictures = [f"![the candidate graph]({GRAPH_PICTURE})", f"![the trajectories]({TRAJECTORIES_PICTURE})"]
    text = markdown("Synthesised routing cases", parts) + "\n" + "\n\n".join(pictures) + "\n"
    (out / REPORT).write_text(text, encoding="utf-8")
    return out / REPORT


def _scale(made: Made) -> Section:
    cases = counted(made.dataset.cases)
    here = {
        "candidates given": len(made.catalogue),
        "candidates made by mutation": len(made.mutations.made),
        "candidates": len(made.dataset.candidates),
        "trajectories": len(made.trajectories.kept),
        "cases": sum(side["decisions"] for side in cases.values()),
        "cases in which none should act": sum(side["none"] for side in cases.values()),
        **{f"cases, {side}": sum(counts.values()) for side, counts in cases.items()},
    }
    rows = tuple((name, f"{number:,}", PAPER.get(name, "")) for name, number in here.items())
    return Section("Scale", ("", "here", "ToolACE-MCP"), rows)


def _mutations(made: Made) -> Section:
    kept = Counter(mutant.operator for mutant in made.mutations.made)
    refused: dict[str, Counter[str]] = {}
    for (operator, reason), count in made.mutations.refused.items():
        refused.setdefault(operator, Counter())[reason] += count
    rows = tuple(
        (
            operator,
            str(kept[operator]),
            "; ".join(f"{reason}: {count}" for reason, count in sorted(refused.get(operator, {}).items())),
        )
        for operator in sorted({*kept, *refused})
    )
    return Section("Mutations by operator", ("operator", "made", "refused"), rows)


def graph_section(graph: Graph) -> Section:
    """Degree statistics."""
    known = graph.statistics()
    edges = {f"edges, {kind}": number for kind, number in known.pop("edges").items()}
    rows = {name.replace("_", " "): value for name, value in (known | edges).items()}
    return Section("Candidate graph", ("", ""), tuple((name, f"{value:,}") for name, value in rows.items()))


def _dialogues(made: Made, count_tokens: Callable[[str], int]) -> Section:
    kept = made.trajectories.kept
    known: dict[Message, int] = {}
    lengths = []
    for case in made.dataset.cases:
        if case.gold:
            lengths.append(sum(_tokens(message, known, count_tokens) for message in case.messages[:-1]))
    rows = {
        "candidates of a subset": [len(one.subset) for one in kept],
        "steps of a plan": [len(one.steps) for one in kept],
        "messages": [len(one.messages) for one in kept],
        "calls": [len(one.called) for one in kept],
        "different candidates called": [len(set(one.called)) for one in kept],
        "messages of the user": [sum(message.role == "user" for message in one.messages) for one in kept],
        "tokens before the observation, of a case": lengths,
    }
    header = ("of a trajectory", "least", "median", "mean", "most")
    return Section("Trajectories", header, tuple((name, *_spread(values)) for name, values in rows.items()))


def _tokens(message: Message, known: dict[Message, int], count: Callable[[str], int]) -> int:
    if message not in known:
        texts = [message.content, *(f"{call.name} {call.arguments}" for call in message.tool_calls)]
        known[message] = sum(map(count, texts))
    return known[message]


def _spread(values: Sequence[int]) -> tuple[str, ...]:
    if not values:
        return ("-",) * 4
    return f"{min(values):,}", f"{median(values):,.0f}", f"{mean(values):,.1f}", f"{max(values):,}"


def _twists(made: Made) -> Section:
    play, kept = made.settings.play, made.trajectories.kept
    asked = {"failure": play.failures, "empty": play.empties, "change": play.changes}
    titles = {"failure": "a call fails", "empty": "a call finds nothing", "change": "the user changes their mind"}
    rows = []
    for twist, share in asked.items():
        happened = sum(twist in one.twists for one in kept)
        rows.append((titles[twist], f"{share:.0%}", f"{happened / len(kept):.0%} ({happened})" if kept else "-"))
    return Section("What goes otherwise than planned", ("", "share asked for", "share of what was kept"), tuple(rows))


def _rejections(made: Made) -> Section:
    played = len(made.trajectories.kept) + len(made.trajectories.rejected)
    counts = {"kept": len(made.trajectories.kept), **dict(made.trajectories.reasons.most_common())}
    rows = tuple((reason, str(count), f"{count / played:.1%}" if played else "-") for reason, count in counts.items())
    return Section("Dialogues played, and why they were not kept", ("", "dialogues", "share"), rows)


def _cost(llm: LLM, prices: Prices) -> Section:
    rows = []
    for name, usage in (("this run", llm.spent), ("replayed from the journal", llm.replayed)):
        numbers = (usage.calls, usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
        rows.append((name, *(f"{number:,}" for number in numbers), f"{usage.cost(prices):.2f}"))
    header = (f"LLM {llm.model}", "calls", "prompt tokens", "of them cached", "answer tokens", "US$")
    return Section("Cost", header, tuple(rows))


def draw_graph(graph: Graph, candidates: Sequence[Candidate], file: Path) -> None:
    """Draw the largest components, every candidate in its server's colour. The suffix says the format, PNG or SVG."""
    shown: list[int] = []
    for component in graph.components():
        if len(component) < 2 or len(shown) == DRAWN:
            break
        shown += component[: DRAWN - len(shown)]
    place = {position: row for row, position in enumerate(shown)}
    rows = np.array([place.get(i, -1) for i in range(graph.size)], np.int64)
    inside = (rows[graph.sources] >= 0) & (rows[graph.targets] >= 0) if graph.size else np.zeros(0, bool)
    ends = np.stack([rows[graph.sources[inside]], rows[graph.targets[inside]]], axis=1)
    points = _layout(len(shown), ends)
    frequent = Counter(candidates[position].server for position in shown)
    colours = {server: mpl.colormaps["tab20"](i) for i, (server, _) in enumerate(frequent.most_common(COLOURED))}
    figure = Figure(figsize=(12, 9), layout="constrained")
    axes = figure.add_subplot()
    for number, kind in enumerate(KINDS):
        own = graph.kinds[inside] == number
        if own.any():
            lines = LineCollection(
                list(points[ends[own]]), colors=_EDGE_COLOURS[kind], linewidths=0.5, alpha=0.6, label=kind
            )
            axes.add_collection(lines)
    groups: dict[str | None, list[int]] = {server: [] for server in [*colours, None]}
    for row, position in enumerate(shown):
        server = candidates[position].server
        groups[server if server in colours else None].append(row)
    for group, members in groups.items():
        colour = "0.5" if group is None else colours[group]
        if members:
            x, y = points[members].T
            axes.scatter(x, y, s=14, zorder=2, label=_label(group), color=colour)
    axes.set_title(f"{len(shown):,} of {graph.size:,} candidates: the largest components")
    axes.set_axis_off()
    axes.autoscale()
    if shown:
        axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)


def _label(server: str | None) -> str:
    if server is None:
        return "other servers"
    # matplotlib hides labels that begin with an underscore, and takes dollars for mathematics.
    return server.lstrip("_").replace("$", r"\$")[:40] or "no server"


def _layout(size: int, ends: NDArray[np.int64]) -> NDArray[np.float64]:
    """Places in the plane: what is connected stands together."""
    if not size:
        return np.zeros((0, 2))
    start = np.random.default_rng(0).normal(size=(size, 2)).tolist()
    made = igraph.Graph(size, ends.tolist()).layout_fruchterman_reingold(seed=start, niter=200, grid="auto")
    return np.array(made.coords)


def _draw_trajectories(kept: Sequence[Trajectory], file: Path) -> None:
    figure = Figure(figsize=(12, 4), layout="constrained")
    measures = {
        "candidates of a subset": [len(one.subset) for one in kept],
        "calls": [len(one.called) for one in kept],
        "different candidates called": [len(set(one.called)) for one in kept],
        "messages": [len(one.messages) for one in kept],
    }
    for axes, (title, values) in zip(figure.subplots(1, len(measures)), measures.items(), strict=True):
        counts = Counter(values)
        axes.bar(list(counts), list(counts.values()))
        axes.set(xlabel=title, ylabel="trajectories")
    figure.savefig(file, dpi=150)
