"""Names that look like another server's: other letters of the same shape, or one keystroke beside it.

Knows names. Two servers may well have a tool of one name; what nobody has by chance is a name that only looks the same.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from serving.types import Candidate

# Cyrillic, Greek and Armenian letters that print as Latin ones (Unicode Technical Standard 39, confusables).
_LETTERS = str.maketrans(
    "авеёіјкмнорсѕтухһԁԛԝґпгзьАВЕІЈКМНОРСЅТУХЗαβεικνορτυχωγηΑΒΕΖΗΙΚΜΝΟΡΤΥΧօսոհցʟɡıⅼ",
    "abeeijkmhopcstyxhdqwrnr3bABEIJKMHOPCSTYX3abeikvoptuxwynABEZHIKMNOPTYXounhglgil",
)
# Of these Latin ones and digits stand for each other.
_SHAPES = (("rn", "m"), ("vv", "w"), ("cl", "d"))
_DIGITS = str.maketrans("01358", "olesb")
_ONE = str.maketrans("i", "l")
_SEPARATORS = re.compile(r"[\W_]+")
# A shorter name has neighbours by chance.
_LEAST = 8


class Named(Protocol):
    """What of a candidate a name's bearer is told apart by."""

    @property
    def name(self) -> str:
        """The name by itself."""

    @property
    def server(self) -> str:
        """The server; empty where there is none."""


class Known:
    """Names of a catalogue's candidates, by what they look like."""

    def __init__(self, bearers: Iterable[Named] = ()) -> None:
        self.plain: defaultdict[str, dict[str, str]] = defaultdict(dict)
        """Server and name as written, by the name without case and separators."""
        self.shapes: defaultdict[str, set[str]] = defaultdict(set)
        """The same plain names by their shape."""
        for bearer in bearers:
            self.add(bearer)

    def add(self, bearer: Named) -> None:
        """One more."""
        name = plain(bearer.name)
        self.plain[name].setdefault(bearer.server, bearer.name)
        self.shapes[shape(bearer.name)].add(name)

    def elsewhere(self, name: str, server: str) -> str | None:
        """How another server than this writes a plain name, with the server; None where none has it."""
        return next((f"{other}/{written}" for other, written in self.plain[name].items() if other != server), None)


def look_alikes(candidates: Sequence[Candidate], known: Known) -> dict[str, str]:
    """What the names of these candidates look like, by id: a name among the known ones, or of one before it here."""
    found: dict[str, str] = {}
    for candidate in candidates:
        name = plain(candidate.name)
        if name not in known.plain or set(known.plain[name]) == {candidate.server}:
            other = _alike(name, candidate, known)
            if other is not None:
                found[candidate.id] = f"looks like {other}"
        known.add(candidate)
    return found


def _alike(name: str, candidate: Candidate, known: Known) -> str | None:
    for other in sorted(known.shapes.get(shape(candidate.name), ())):
        if other != name and (bearer := known.elsewhere(other, candidate.server)):
            return bearer
    if len(name) >= _LEAST and name.isascii():
        for other in _slips(name):
            if other in known.plain and (bearer := known.elsewhere(other, candidate.server)):
                return bearer
    return None


def _slips(name: str) -> Iterator[str]:
    """What was meant where two neighbouring letters were exchanged, or one was written twice or left single."""
    for at in range(1, len(name) - 1):
        first, second = name[at], name[at + 1]
        if first.isalpha() and second.isalpha():
            if first != second:
                yield name[:at] + second + first + name[at + 2 :]
            elif first != "s":  # which is a plural's as often
                yield name[:at] + name[at + 1 :]
            if first != "s":
                yield name[: at + 1] + name[at:]


def plain(name: str) -> str:
    """The name without case and separators, in which honest spellings differ."""
    return _SEPARATORS.sub("", unicodedata.normalize("NFKC", name).casefold())


def shape(name: str) -> str:
    """What the name looks like."""
    seen = _SEPARATORS.sub("", fold(unicodedata.normalize("NFKC", name)).casefold()).translate(_DIGITS)
    for drawn, meant in _SHAPES:
        seen = seen.replace(drawn, meant)
    return seen.translate(_ONE)


def fold(text: str) -> str:
    """The text with every letter of another alphabet that looks like a Latin one read as that."""
    return text.translate(_LETTERS)
