"""Variations of a routing question that do not change its answer: names, servers, descriptions, history.

An adapter must route over catalogues it has never seen, so it should not lean on how one source writes names or
how much its candidates say. Every variation is applied to all candidates of a list alike, gold or not, and to
the calls in the messages, so that it gives nothing away.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence

from numpy.random import Generator

from prompts import Candidate, Message, ToolCall
from prompts.question import query_position

_SENTENCE_END = re.compile(r"(?<=[.!?])\s")
# A word of a name: capitals that end before a capitalised word, a word, or digits; `[^\W\d_]` is any letter.
_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[^\W\d_A-Z]+|[A-Z]+|\d+")
# Registries append their own id to a server's name: "Exa Search [0001]".
_BRACKETS = re.compile(r"\s*\[[^\]]*\]\s*$")

Style = Callable[[list[str]], str]
_STYLES: tuple[Style, ...] = (
    "_".join,
    "-".join,
    lambda parts: parts[0] + "".join(map(str.capitalize, parts[1:])),
    lambda parts: "".join(map(str.capitalize, parts)),
)


def words(name: str) -> list[str]:
    """Lower-case words of an identifier, split at case changes, digits and punctuation."""
    return [word.lower() for word in _WORD.findall(name)]


def vary(
    messages: Sequence[Message], candidates: Sequence[Candidate], by_id: Mapping[str, Candidate], rng: Generator
) -> tuple[tuple[Message, ...], tuple[Candidate, ...]]:
    """The question with other names and less text.

    Args:
        messages: their calls name candidates by id.
        candidates: the drawn list.
        by_id: the catalogue, for candidates that are called but not in the list.
        rng: the case's own.
    """
    style = _STYLES[rng.integers(len(_STYLES))] if rng.random() < 0.5 else None
    server_style = rng.choice(["as_is", "short", "slug", "hidden"], p=[0.2, 0.2, 0.3, 0.3])
    call_style = rng.choice(["id", "name", "server.name", "server__name"], p=[0.15, 0.4, 0.25, 0.2])
    description = rng.choice(["whole", "sentence", "sparse", "none"], p=[0.6, 0.25, 0.1, 0.05])
    no_parameters = rng.random() < 0.1

    def server(candidate: Candidate) -> str:
        bare = _BRACKETS.sub("", candidate.server)
        match server_style:
            case "as_is":
                return candidate.server
            case "short":
                return bare
            case "slug":
                return "_".join(words(bare))
        return ""

    def described(candidate: Candidate) -> str:
        if description == "none" and (candidate.parameters or candidate.tools):
            return ""
        if description == "sparse" and rng.random() < 0.3:
            return ""
        if description in ("sentence", "sparse"):
            return _SENTENCE_END.split(candidate.description, maxsplit=1)[0]
        return candidate.description

    def named(candidate: Candidate) -> str:
        parts = words(candidate.name)
        return style(parts) if style and parts else candidate.name

    shown = [named(candidate) for candidate in candidates]
    if len(set(shown)) < len(shown) and server_style == "hidden":
        server_style = "slug"  # two candidates of one name need their servers to be told apart

    def called(id_: str) -> str:
        candidate = by_id.get(id_)
        if candidate is None or call_style == "id":
            return id_
        prefix = server(candidate) if call_style != "name" else ""
        between = call_style.removeprefix("server").removesuffix("name")
        return f"{prefix}{between}{named(candidate)}" if prefix else named(candidate)

    varied = tuple(
        dataclasses.replace(
            candidate,
            name=name,
            server=server(candidate),
            description=described(candidate),
            input_schema={} if no_parameters else candidate.input_schema,
        )
        for candidate, name in zip(candidates, shown, strict=True)
    )
    return tuple(_renamed(message, called) for message in messages), varied


def _renamed(message: Message, called: Callable[[str], str]) -> Message:
    calls = tuple(ToolCall(called(call.name), call.arguments) for call in message.tool_calls)
    return dataclasses.replace(message, tool_calls=calls, name=called(message.name) if message.name else None)


def shorten(messages: Sequence[Message], rng: Generator) -> tuple[Message, ...]:
    """Only the last messages, as if the conversation had been cut earlier; query and observation stay."""
    kept = int(rng.integers(1, max(len(messages), 2)))
    start = len(messages) - kept
    query = query_position(messages)
    before = (messages[query],) if query is not None and query < start else ()
    return (*before, *messages[start:])
