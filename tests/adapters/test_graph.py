import numpy as np
import pytest
from typer import Typer
from typer.testing import CliRunner

from adapters import graph as graphs
from adapters.commands_synthesise import graph as command
from adapters.graph import KINDS, build_graph, dependencies, similar_pairs, specification
from adapters.synthesis_report import draw_graph
from prompts import Candidate
from tests.adapters.conftest import CATALOGUE, write_lines


def unit(rows, dimensions=24, seed=0):
    """Vectors with many pairs on either side of the threshold, some exactly the same."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(rows // 4, dimensions))[rng.integers(rows // 4, size=rows)]
    vectors += rng.normal(size=vectors.shape) * rng.choice([0, 0.3, 0.5, 0.8], size=(rows, 1))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def some(number):
    return [Candidate(f"{i}", f"tool {i}", server=f"s{i % 5}") for i in range(number)]


def tool(name, inputs=(), outputs=(), server="s"):
    schema = {"properties": {key: {"type": kind} for key, kind in inputs}}
    output = {"properties": {key: {"type": kind} for key, kind in outputs}} if outputs else None
    return Candidate(f"{server}/{name}", name, server=server, input_schema=schema, output_schema=output)


def fed(*candidates):
    return [(candidates[a].name, candidates[b].name) for a, b in dependencies(candidates)]


@pytest.mark.parametrize("threshold", [0.5, 0.82, 0.99])
def test_edges_are_those_of_brute_force_whatever_the_blocks(monkeypatch, threshold):
    vectors = unit(400)
    cosines = vectors.astype(np.float64) @ vectors.astype(np.float64).T
    expected = {(i, j) for i in range(400) for j in range(i + 1, 400) if cosines[i, j] > threshold}
    assert len(expected) > 20
    found = similar_pairs(vectors, threshold)
    assert set(map(tuple, found.tolist())) == expected
    for rows, columns in ((7, 5), (64, 33), (400, 400)):
        monkeypatch.setattr(graphs, "ROWS", rows)
        monkeypatch.setattr(graphs, "COLUMNS", columns)
        assert np.array_equal(similar_pairs(vectors, threshold), found)


def test_a_pair_at_the_threshold_is_decided_alone():
    """The last digit of a block's product depends on the block's shape: a pair's own cosine decides."""
    vectors = unit(300, seed=1)
    i, j = similar_pairs(vectors, 0.6)[100]
    exactly = float(np.einsum("i,i->", vectors[i], vectors[j]))
    assert [i, j] not in similar_pairs(vectors, exactly).tolist()
    assert [i, j] in similar_pairs(vectors, float(np.nextafter(np.float32(exactly), np.float32(0)))).tolist()


def test_vectors_that_were_rounded_are_brought_to_unit_length():
    vectors = np.array([[1, 0], [0.82, 0.5724]], np.float32)
    assert len(build_graph(some(2), vectors * [[0.5], [3]], threshold=0.81).sources) == 1


def test_too_many_edges_are_an_error_and_not_the_end_of_memory(monkeypatch):
    monkeypatch.setattr(graphs, "MOST_EDGES", 1_000)
    with pytest.raises(ValueError, match=r"more than 1,000 pairs .* raise the threshold"):
        build_graph(some(100), np.ones((100, 4), np.float32))


def test_neighbours_degrees_and_components_agree_with_the_edges():
    candidates = some(60)
    graph = build_graph(candidates, unit(60), parents={"7": "3", "50": "3"})
    edges = list(zip(graph.sources.tolist(), graph.targets.tolist(), graph.kinds.tolist(), strict=True))
    for place in range(60):
        expected = sorted([(b, k) for a, b, k in edges if a == place] + [(a, k) for a, b, k in edges if b == place])
        others, kinds = graph.neighbours(place)
        assert sorted(zip(others.tolist(), kinds.tolist(), strict=True)) == expected
        assert graph.degrees[place] == len(expected)
    assert {(3, 7), (3, 50)} == {(a, b) for a, b, k in edges if KINDS[k] == "mutation"}
    assert sorted(place for component in graph.components() for place in component) == list(range(60))
    known = graph.statistics()
    assert sum(known["edges"].values()) == len(edges)
    assert known["isolated"] == sum(len(component) == 1 for component in graph.components())
    assert known["largest_component"] == len(graph.components()[0]) > 3


def test_without_edges_there_is_still_a_graph(tmp_path):
    graph = build_graph(some(3), np.eye(3, dtype=np.float32))
    assert graph.neighbours(1)[0].tolist() == []
    assert graph.statistics()["components"] == 3
    assert build_graph([], np.zeros((0, 4), np.float32)).statistics()["candidates"] == 0
    draw_graph(graph, some(3), tmp_path / "empty.svg")
    assert (tmp_path / "empty.svg").read_text().startswith("<?xml")


def test_an_output_feeds_an_input_of_its_name_and_type():
    source = tool("source", outputs=[("orderId", "integer"), ("note", "string")])
    assert fed(source, tool("number", [("order_id", "number")])) == [("source", "number")]
    assert fed(source, tool("elsewhere", [("order_id", "integer")], server="other")) == [("source", "elsewhere")]
    assert fed(source, tool("text", [("order_id", "string")])) == []
    assert fed(source, tool("other", [("customer_id", "integer")])) == []
    assert fed(tool("echo", [("note", "string")], [("note", "string")]), tool("a", [("note", "string")])) == []


def test_an_output_inside_a_list_is_seen():
    inner = {"type": "array", "items": {"type": "object", "properties": {"slot_id": {"type": "string"}}}}
    listing = Candidate("l", "slots", server="s", output_schema={"properties": {"slots": inner}})
    assert fed(listing, tool("book", [("slotId", "string")])) == [("slots", "book")]


def test_a_name_says_what_is_given_where_no_schema_does():
    assert fed(tool("create_issue", [("title", "string")]), tool("close", [("issueId", "string")])) == [
        ("create_issue", "close")
    ]
    assert fed(tool("listIssues"), tool("close", [("issue", "string")])) == [("listIssues", "close")]
    # It has to be told which; it does nothing of the kind; it is another server's.
    assert fed(tool("get_issue", [("issue_id", "string")]), tool("close", [("issue_id", "string")])) == []
    assert fed(tool("close_issue"), tool("delete", [("issue_id", "string")])) == []
    assert fed(tool("create_issue", server="a"), tool("close", [("issue_id", "string")], server="b")) == []


def test_a_common_name_is_no_sign_between_servers():
    takers = [tool(f"take{i}", [("query", "string")], server=f"s{i}") for i in range(graphs.COMMON + 1)]
    giver = tool("giver", outputs=[("query", "string")], server="s3")
    assert fed(giver, *takers) == [("giver", "take3")]
    assert len(fed(giver, *takers[1:])) == graphs.COMMON


@pytest.mark.parametrize("schema", [{"properties": 3}, {"properties": {"a": True, "b": {"type": ["string"]}}}, {}])
def test_a_strange_schema_is_read_as_far_as_it_goes(schema):
    candidate = Candidate("a", "getThing", "Gives.", input_schema=schema, output_schema=schema)
    assert specification(candidate).startswith("get thing: Gives.")
    assert dependencies([candidate, tool("take", [("thing_id", "string")])]) == []


def test_a_specification_holds_profile_schema_and_tools_but_no_server():
    agent = Candidate("a", "chiefPilot", "Guides\nships.", "agent", "harbour", tools=("steer",))
    assert specification(agent) == "chief pilot: Guides ships. Tools: steer."
    assert specification(tool("x_y", [("day", "string"), ("n", "integer")])) == "x y: Input: day (string), n (integer)."


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_the_command_says_degrees_and_draws(tmp_path, tiny_embedder, suffix):
    write_lines(tmp_path / "c.jsonl", CATALOGUE)
    (tmp_path / "profile.yaml").write_text(f"prefilter: {{embedder: {tiny_embedder}}}")
    app = Typer()
    app.command()(command)
    picture, edges = tmp_path / f"g{suffix}", tmp_path / "edges.jsonl"
    arguments = ["--catalogue", tmp_path / "c.jsonl", "--out", picture, "--edges", edges, "--threshold", 0.5]
    arguments += ["--config", tmp_path / "profile.yaml", "--vectors", tmp_path / "v.npz"]
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    assert "mean degree" in result.output
    assert picture.stat().st_size > 5_000
    assert edges.read_text().count("similarity") > 0


def test_the_command_refuses_what_is_no_picture(tmp_path):
    write_lines(tmp_path / "c.jsonl", CATALOGUE)
    app = Typer()
    app.command()(command)
    result = CliRunner().invoke(app, ["--catalogue", str(tmp_path / "c.jsonl"), "--out", "g.txt"])
    assert result.exit_code == 2
