"""Looks for poisoned candidates: what a description says to the model in place of telling what its tool does.

Knows candidates as they arrive. Changes nothing: it reports what it found, where and by which rule. Read is everything
that a model, a host or a person may be shown: name, description, every string of the schemas, names of an agent's
skills. A finding is a reason to look, not a proof; a description without one may still lie.
"""

from __future__ import annotations

import base64
import binascii
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import re2

from serving.catalog.lookalikes import Known, fold, look_alikes
from serving.catalog.scan_rules import Rule, compiled
from serving.types import Candidate

EXCERPT_CHARACTERS = 160
# Whatever a stranger sends is searched in time that grows with its length only: by RE2, or by sets of characters.
# An emoji of a flag is written with tags, and ends with one.
_FLAG = re.compile("\U0001f3f4[\U000e0020-\U000e007e]+\U000e007f")
_TAGS = re.compile("[\U000e0000-\U000e007f]+")
_BIDI = re.compile("[\u202a-\u202e\u2066-\u2069]")
# One that stands alone is left over from copying; within a word it splits it, and many of them are a message.
_LETTER = r"[\p{Latin}\p{Cyrillic}\p{Greek}\d]"
_ZERO_WIDTH = re2.compile(
    f"{_LETTER}[\u200b-\u200d\u2060-\u2064\ufeff\u00ad\u180e]+{_LETTER}|[\u200b-\u200f\u2060-\u2064\ufeff\u00ad\u180e]{{3,}}"
)
_SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]{2,}")
_CONTROLS = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f\x80-\x84\x86-\x9f]")
_PUSHED_OUT = re2.compile(r"\S[ \t]{120,}\S|\S[ \t]*(?:\r?\n[ \t]*){25,}\S")
_COMMENT = re2.compile(r"<!--[^>]*\w\s+\w")
_INVISIBLE = re.compile("[\u00ad\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufe00-\ufe0f\ufeff\U000e0000-\U000e01ef]")
_HIDDEN = {
    "control characters": _CONTROLS,
    "text pushed out of sight by white space": _PUSHED_OUT,
    "a comment that is not shown": _COMMENT,
}
_HIDDEN_BEYOND_ASCII = {
    "characters that are not shown (tags)": _TAGS,
    "characters that turn the reading direction": _BIDI,
    "zero-width characters": _ZERO_WIDTH,
    "variation selectors, which can carry text": _SELECTORS,
}
# A word in letters of two alphabets that look alike.
# Of Greek only what looks Latin: formulas hold the rest.
_ALPHABETS = r"\p{Cyrillic}\p{Armenian}\p{Cherokee}αεικνορτυχωΑΒΕΖΗΙΚΜΝΟΡΤΥΧ"
_MIXED = re2.compile(rf"\p{{Latin}}[\p{{L}}\p{{M}}\d_-]*[{_ALPHABETS}]|[{_ALPHABETS}][\p{{L}}\p{{M}}\d_-]*\p{{Latin}}")
_BASE64 = re.compile(r"[A-Za-z0-9+/]{40,}={0,2}")
_DECODED_READABLE = 0.95


@dataclass(frozen=True, slots=True)
class Finding:
    """One reason to look at a candidate.

    Attributes:
        id: the candidate's.
        rule: the attack that it may be.
        where: a path into the candidate, such as `input_schema.properties.note.description`.
        excerpt: what was found, with what is not shown made visible; for look-alikes what it looks like.
    """

    id: str
    rule: Rule
    where: str
    excerpt: str


def scan(candidates: Sequence[Candidate], known: Known | None = None) -> list[Finding]:
    """Everything that is wrong with these, by candidate in their order.

    Args:
        known: names of the catalogue's other candidates, whose names these must not look like.
    """
    alike = look_alikes(candidates, known or Known())
    findings: list[Finding] = []
    for candidate in candidates:
        for where, text in _texts(candidate):
            findings += (Finding(candidate.id, rule, where, excerpt) for rule, excerpt in _found(text))
        if candidate.id in alike:
            findings.append(Finding(candidate.id, "look_alike", "name", alike[candidate.id]))
    return list(dict.fromkeys(findings))


def _texts(candidate: Candidate) -> Iterator[tuple[str, str]]:
    yield "name", candidate.name
    yield "server", candidate.server
    yield "description", candidate.description
    for where in ("tools", "tags", "input_schema", "output_schema", "annotations"):
        yield from _strings(where, getattr(candidate, where))


def _strings(where: str, value: Any) -> Iterator[tuple[str, str]]:
    """Every string of a JSON value, keys too, with its path. Parsed JSON is at most some hundred levels deep."""
    if isinstance(value, str):
        yield where, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield f"{where} (a key)", str(key)
            yield from _strings(f"{where}.{str(key)[:60]}", inner)
    elif isinstance(value, (list, tuple)):
        for number, inner in enumerate(value):
            yield from _strings(f"{where}[{number}]", inner)


def _found(text: str) -> Iterator[tuple[Rule, str]]:
    if not text or (text.isascii() and text.isalnum()):
        return
    plain = _FLAG.sub("", text)
    for what, pattern in (_HIDDEN if plain.isascii() else _HIDDEN | _HIDDEN_BEYOND_ASCII).items():
        if match := pattern.search(plain):
            yield "hidden_text", f"{what}: {_excerpt(plain, match.start(), match.end())}"
    if not plain.isascii() and (match := _MIXED.search(plain)):
        yield "look_alike", f"letters of two alphabets in one word: {_visible(match.group())[:EXCERPT_CHARACTERS]}"
    for rule, said in _said(plain):
        yield rule, said
    for match in _BASE64.finditer(text):
        for rule, said in _said(_decoded(match.group())):
            yield rule, f"in base64: {said}"
    if tags := _TAGS.findall(plain):
        for rule, said in _said("".join(chr(ord(tag) - 0xE0000) for run in tags for tag in run)):
            yield rule, f"in characters that are not shown: {said}"


def _said(text: str) -> Iterator[tuple[Rule, str]]:
    """The rules whose phrases a text holds, as it stands or with every look-alike letter read as the Latin one."""
    if not text:
        return
    shown = " ".join(unicodedata.normalize("NFKC", _INVISIBLE.sub("", text)).split(" "))
    readings = {shown} if shown.isascii() else {shown, fold(shown)}
    for rule, pattern in _rules().items():
        for reading in readings:
            flat = " ".join(reading.split())
            if match := pattern.search(flat):
                yield rule, _excerpt(flat, match.start(), match.end())
                break


@cache
def _rules() -> dict[Rule, Any]:
    return compiled()


def _decoded(text: str) -> str:
    """The readable text that base64 holds; empty where it holds none."""
    try:
        decoded = base64.b64decode(text + "=" * (-len(text) % 4), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
    readable = sum(character.isprintable() or character.isspace() for character in decoded)
    return decoded if readable >= _DECODED_READABLE * len(decoded) else ""


def _excerpt(text: str, start: int, end: int) -> str:
    """What was found with a little of what stands around it."""
    room = max(EXCERPT_CHARACTERS - (end - start), 0) // 2
    cut = text[max(start - room, 0) : min(end, start + EXCERPT_CHARACTERS) + room]
    return _visible(cut)


def _visible(text: str) -> str:
    """With everything that is not shown written as its code point, so that a report hides nothing and is one line."""
    return "".join(
        character if character.isprintable() and not _INVISIBLE.match(character) else f"\\u{{{ord(character):x}}}"
        for character in " ".join(text.split())
    )
