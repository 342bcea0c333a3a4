import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prompts import NONE_NAME
from serving.catalog.names import CatalogNames, Names, collisions, surface_names
from serving.types import Candidate, InvalidRequestError, NotFoundError

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


def test_where_even_hashes_are_alike_the_order_does_not_matter() -> None:
    # Three bytes of hash: of 20,000 ids about a dozen pairs share them.
    candidates = [Candidate(str(number), "search") for number in range(20_000)]
    names = surface_names(candidates)
    assert len(set(names)) == len(names)
    assert {len(name) for name in names} == {len("search_") + 6, len("search_") + 8}
    assert surface_names(candidates[::-1]) == names[::-1]


def test_collisions_are_reported() -> None:
    candidates = [
        Candidate("2", "a.b"),
        Candidate("1", "a_b"),
        Candidate("3", "c"),
        Candidate("4", "天"),
        Candidate("5", "气"),
        Candidate("6", "x", server="s"),
        Candidate("7", "s__x"),
    ]
    assert collisions(candidates) == {"a_b": ("1", "2"), "s__x": ("6", "7")}


class TestResolve:
    NAMES = Names(
        [
            Candidate("github/search", "search", server="github"),
            Candidate("jira/search", "search", server="jira"),
            Candidate("jira/Create", "create_issue", server="jira"),
            Candidate("id7", "天气"),
            Candidate("a", "Fetch"),
            Candidate("b", "fetch"),
            Candidate("FETCH-ID", "list_files"),
            Candidate("search__x", "other"),
        ]
    )

    @pytest.mark.parametrize(
        ("text", "id"),
        [
            ("github/search", "github/search"),
            ("github__search", "github/search"),
            ("GitHub__Search", "github/search"),
            ("create_issue", "jira/Create"),
            ("Create_Issue", "jira/Create"),
            ("JIRA/create", "jira/Create"),
            ("天气", "id7"),
            ("fetch", "b"),
            ("Fetch", "a"),
            ("fetch-id", "FETCH-ID"),
            ("OTHER", "search__x"),
        ],
    )
    def test_ids_surface_names_bare_names_and_cases(self, text: str, id: str) -> None:
        assert self.NAMES.resolve(text) == id

    def test_a_name_of_several_is_answered_with_the_choices(self) -> None:
        with pytest.raises(InvalidRequestError, match="'search' may be github__search, jira__search; say which"):
            self.NAMES.resolve("search")
        with pytest.raises(InvalidRequestError, match="'FETCH' may be Fetch, fetch; say which"):
            self.NAMES.resolve("FETCH")

    def test_an_unknown_name_is_answered_with_the_nearest(self) -> None:
        with pytest.raises(NotFoundError, match="is named 'Creat_isue'; the nearest names are jira__create_i"):
            self.NAMES.resolve("Creat_isue")
        with pytest.raises(NotFoundError, match=r"'zzz'$"):
            self.NAMES.resolve("zzz")

    def test_many_choices_are_cut(self) -> None:
        names = Names([Candidate(str(i), "search", server=f"s{i}") for i in range(9)])
        with pytest.raises(InvalidRequestError, match="s4__search and 4 more; say which"):
            names.resolve("search")

    def test_an_id_comes_before_a_name(self) -> None:
        names = Names([Candidate("x", "y"), Candidate("y", "z")])
        assert names.resolve("y") == "y"
        assert names.resolve(names.surface["x"]) == "y"


@given(CANDIDATES)
def test_every_id_names_itself(candidates: list[Candidate]) -> None:
    names = Names(candidates)
    assert [names.resolve(candidate.id) for candidate in candidates] == [candidate.id for candidate in candidates]


@given(CANDIDATES, st.data())
def test_a_catalogues_names_are_the_same_however_it_came_about(
    candidates: list[Candidate], data: st.DataObject
) -> None:
    names = CatalogNames()
    for candidate in candidates:
        names.add(candidate)
    gone = data.draw(st.lists(st.sampled_from(candidates), unique_by=id)) if candidates else []
    for candidate in gone:
        names.remove(candidate)
    left = [candidate for candidate in candidates if candidate not in gone]
    assert {candidate.id: names.of(candidate) for candidate in left} == Names(left).surface
