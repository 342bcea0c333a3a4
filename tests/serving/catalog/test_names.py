import re

from hypothesis import given
from hypothesis import strategies as st

from prompts import NONE_NAME
from serving.catalog.names import surface_names
from serving.types import Candidate

TEXTS = st.text(max_size=90) | st.sampled_from(["search", "Search", "a.b", "a_b", "天气", "", NONE_NAME])
CANDIDATES = st.lists(
    st.builds(Candidate, id=st.text(max_size=90), name=TEXTS, server=TEXTS),
    unique_by=lambda candidate: candidate.id,
    max_size=12,
)


@given(CANDIDATES)
def test_names_are_what_every_surface_takes_and_all_different(candidates: list[Candidate]) -> None:
    names = surface_names(candidates)
    assert len(set(names)) == len(candidates)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in names)
    assert NONE_NAME not in names


@given(CANDIDATES, st.randoms(use_true_random=False))
def test_names_do_not_depend_on_the_order(candidates: list[Candidate], random: object) -> None:
    named = dict(zip([c.id for c in candidates], surface_names(candidates), strict=True))
    random.shuffle(candidates)  # type: ignore[attr-defined]
    assert dict(zip([c.id for c in candidates], surface_names(candidates), strict=True)) == named


def test_a_name_says_server_and_tool() -> None:
    candidates = [
        Candidate("1", "search", server="github"),
        Candidate("2", "search", server="jira"),
        Candidate("3", "search"),
        Candidate("4", "jira.create issue", server="jira"),
    ]
    assert surface_names(candidates) == ("github__search", "jira__search", "search", "jira_create_issue")


def test_both_of_two_alike_carry_a_hash() -> None:
    first, second, other = surface_names([Candidate("1", "a.b"), Candidate("2", "a_b"), Candidate("3", "c")])
    assert first != second
    assert first.startswith("a_b_")
    assert second.startswith("a_b_")
    assert other == "c"


def test_long_server_names_leave_room_for_the_tool() -> None:
    (name,) = surface_names([Candidate("1", "create_issue", server="server " * 20)])
    assert name.endswith("__create_issue")


def test_what_generating_adapters_write_for_none_is_taken() -> None:
    (name,) = surface_names([Candidate("1", NONE_NAME)])
    assert name != NONE_NAME
    assert name.startswith(NONE_NAME)


def test_a_name_without_readable_characters_says_its_type() -> None:
    (name,) = surface_names([Candidate("1", "天气", type="agent")])
    assert name.startswith("agent_")
