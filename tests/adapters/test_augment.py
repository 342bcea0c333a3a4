"""Variations: the same for gold and negatives, the same in the messages, and never a change of the answer."""

from adapters.augment import shorten, vary, words
from adapters.datasets import read_dataset
from adapters.mixture import generator
from prompts import Candidate, Message, ToolCall


def test_names_are_split_into_words():
    assert words("getHTTPResponse_v2 Übergröße") == ["get", "http", "response", "v", "2", "übergröße"]


def test_calls_are_renamed_as_the_candidates_are(world):
    by_id = read_dataset(world / "sets/tasks").by_id
    messages = [
        Message("assistant", "", (ToolCall("library/returnBook", "{}"),)),
        Message("tool", "ok", name="library/returnBook"),
    ]
    seen = set()
    for i in range(200):
        (call, result), (candidate,) = vary(messages, [by_id["library/returnBook"]], by_id, generator(i))
        name = call.tool_calls[0].name
        assert result.name == name
        assert name == "library/returnBook" or name.endswith(candidate.name)
        seen.add(name)
    assert {"library/returnBook", "returnBook", "return_book", "library.return-book", "library__ReturnBook"} <= seen


def test_candidates_keep_order_and_identity(world):
    by_id = read_dataset(world / "sets/tasks").by_id
    for i in range(50):
        _, varied = vary([], list(by_id.values()), by_id, generator(i))
        assert [candidate.id for candidate in varied] == list(by_id)
        assert len({(candidate.server, candidate.name) for candidate in varied}) == len(varied)
        assert len({candidate.server == "" for candidate in varied}) == 1


def test_candidates_of_one_name_keep_their_servers():
    twins = [Candidate(f"{server}/find", "find", "Finds.", server=server) for server in ("east [1]", "west [2]")]
    for i in range(100):
        _, varied = vary([], twins, {twin.id: twin for twin in twins}, generator(i))
        assert varied[0].server != varied[1].server


def test_a_registrys_id_can_disappear_from_a_servers_name():
    candidate = Candidate("x", "find", "Finds.", server="Exact Search [0001]")
    servers = {vary([], [candidate], {"x": candidate}, generator(i))[1][0].server for i in range(100)}
    assert servers == {"Exact Search [0001]", "Exact Search", "exact_search", ""}


def test_a_name_without_letters_stays():
    candidate = Candidate("x", "***", "Stars.")
    assert {vary([], [candidate], {}, generator(i))[1][0].name for i in range(30)} == {"***"}


def test_a_shortened_conversation_keeps_query_and_observation():
    messages = [Message("user", "old"), Message("user", "query"), *[Message("tool", str(i)) for i in range(5)]]
    lengths = set()
    for i in range(100):
        kept = shorten(messages, generator(i))
        assert Message("user", "query") in kept
        assert kept[-1] == messages[-1]
        assert [message for message in messages if message in kept] == list(kept)
        lengths.add(len(kept))
    assert lengths == {2, 3, 4, 5, 6}
