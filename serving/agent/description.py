"""What stands behind the agent, in the few words that a host's prompt has room for.

Knows names and counts. Agents pass over a discovery tool that does not say what it can find; so servers are named
with what they deal in. Nothing that a server's author wrote as prose comes in here: only names, and words of names.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from serving.catalog.names import Named

# What the summary may take of the two tools' 800 tokens.
SUMMARY_TOKENS = 260
# Words of a server's names that say what it deals in.
_DOMAINS = 4
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_NOT_SHOWN = re.compile(r"[^\w.@/-]+")
_NAME_CHARACTERS = 32
# Words that say what is done, not with what.
_VERBS = frozenset(
    re.findall(
        r"\w+",
        """add all append apply are by call cancel change check clear close copy count create current data default
        delete describe do download edit execute exec fetch find for from generate get has in info init is item items
        like list load make manage mcp merge move multiple new of on open or out post put query read remove rename
        replace reset resolve run save search select send server set show start status stop submit the to toggle tool
        tools type update upload upsert use user using validate value view with write""",
    )
)


@dataclass(frozen=True, slots=True)
class Behind:
    """A server and what it deals in."""

    name: str
    count: int
    domains: tuple[str, ...]


def behind(rows: Iterable[Named]) -> list[Behind]:
    """The servers of these candidates, largest first, each with the words that its names share."""
    names: defaultdict[str, list[str]] = defaultdict(list)
    for row in rows:
        names[row.server].append(row.name)
    found = []
    for server, its in names.items():
        own = set(_words(server))
        words = Counter(word for name in its for word in dict.fromkeys(_words(name)) if word not in own)
        common = sorted(words, key=lambda word: (-words[word], word))[:_DOMAINS]
        found.append(Behind(server, len(its), tuple(common)))
    return sorted(found, key=lambda one: (-one.count, one.name))


def summary(rows: Sequence[Named], tokens: int = SUMMARY_TOKENS) -> str:
    """What stands behind, within so many tokens: counts, then servers as far as there is room."""
    kinds = Counter(row.type for row in rows)
    counts = ", ".join(f"{kinds[kind]:,} {kind}{'s' * (kinds[kind] != 1)}" for kind in sorted(kinds, key=str))
    servers = behind(rows)
    if not servers:
        return "Nothing stands behind it yet."
    text = f"Behind it: {counts or 'nothing'} on {len(servers):,} server{'s' * (len(servers) != 1)}"
    room = tokens - cost(text) - 8
    shown: list[str] = []
    for one in servers:
        name = _NOT_SHOWN.sub("_", one.name)[:_NAME_CHARACTERS] or "no server"
        domains = f": {', '.join(one.domains)}" if one.domains else ""
        line = f"{name} ({one.count}{domains})"
        if cost(line) + 1 > room:
            break
        room -= cost(line) + 1
        shown.append(line)
    more = len(servers) - len(shown)
    if not shown:
        return f"{text}."
    return f"{text}: {'; '.join(shown)}{f'; and {more:,} more' if more else ''}."


def cost(text: str) -> int:
    """Tokens of a text, rather too many: a token holds three letters, one digit, or a part of another character."""
    letters = sum(-(-len(run) // 3) for run in re.findall(r"[a-zA-Z]+", text))
    others = sum(len(character.encode("utf-8", "replace")) for character in re.findall(r"[^a-zA-Z\s]", text))
    return letters + others


def _words(name: str) -> list[str]:
    return [word for found in _WORD.findall(name) if len(word := found.lower()) > 2 and word not in _VERBS]
