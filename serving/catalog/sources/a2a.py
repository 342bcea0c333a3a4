"""Agents from their A2A cards: one candidate for each card, which names the agent's skills.

Knows the card as the A2A SDK reads it (protocol 0.3 and 1.0) and HTTP. Does not talk to agents.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from urllib.parse import urlsplit, urlunsplit

import httpx
from a2a.client.card_resolver import parse_agent_card
from a2a.types.a2a_pb2 import AgentCard, AgentSkill
from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH
from google.protobuf.json_format import ParseError

from serving.catalog.entry import Server
from serving.catalog.sources.base import (
    DEFAULT_LIMITS,
    Collector,
    Limits,
    Listing,
    Source,
    SourceError,
    candidate_id,
    plain,
)
from serving.catalog.sources.environment import Environment
from serving.catalog.sources.mcp_config import HttpEntry, record
from serving.types import Candidate, InvalidRequestError
from serving.validation import parse_json

# A card describes one agent; a larger one is something else.
CARD_BYTES = 2**20

# It logs every URL, in which a secret may stand.
logging.getLogger("httpx").setLevel(logging.WARNING)


class A2ASource(Source):
    """One agent.

    Args:
        url: of the card itself where it ends in `.json`, else of the agent's host, which serves the card at
            `/.well-known/agent-card.json`. May refer to `${NAME}`, as the headers may.
        name: of the server in the catalogue; by default the URL's host.
    """

    def __init__(
        self,
        url: str,
        variables: Mapping[str, str],
        *,
        name: str | None = None,
        headers: Mapping[str, str] | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        entry = HttpEntry(url=card_url(url), headers=dict(headers or {}))
        self.name = name or urlsplit(url).hostname or url
        self.record = record(entry) | {"kind": "a2a"}
        self._entry = entry
        self._variables = variables
        self._limits = limits

    async def read(self) -> list[Listing]:
        """Fetches the card. The agent's name and skills are the candidate; a ttl is the answer's max-age."""
        card, ttl_ms = await self._card(Environment(self._variables, f"A2A agent {self.name!r}"))
        collector = Collector(self.name, self._limits)
        collector.add(_candidate(self.name, card))
        return [collector.listing(Server(self.name, plain(card.description), self.record, ttl_ms=ttl_ms))]

    async def _card(self, environment: Environment) -> tuple[AgentCard, int | None]:
        """The card, and for how many milliseconds it may be kept."""
        url = environment.resolve(self._entry.url)
        headers = {name: environment.resolve(value) for name, value in self._entry.headers.items()}
        try:
            async with httpx.AsyncClient(timeout=self._limits.timeout_s) as client:
                data, ttl_ms = await _fetch(client, url, headers)
            return parse_agent_card(parse_json(data, "the card")), ttl_ms
        except (httpx.HTTPError, httpx.InvalidURL, InvalidRequestError, ParseError) as error:
            told = environment.redact(str(error) or type(error).__name__)
            raise SourceError(f"A2A agent {self.name!r}: {told}") from None


def card_url(url: str) -> str:
    """Where the card of an agent's URL is."""
    parts = urlsplit(url)
    if parts.path.endswith(".json"):
        return url
    return urlunsplit(parts._replace(path=parts.path.rstrip("/") + AGENT_CARD_WELL_KNOWN_PATH))


async def _fetch(client: httpx.AsyncClient, url: str, headers: Mapping[str, str]) -> tuple[bytes, int | None]:
    """The answer's body, which is bounded after decompression, and how long it may be kept."""
    async with client.stream("GET", url, headers={"Accept": "application/json", **headers}) as response:
        if response.status_code != httpx.codes.OK:
            raise InvalidRequestError(f"its card at {url} is answered with HTTP {response.status_code}")
        data = b""
        async for part in response.aiter_bytes():
            data += part
            if len(data) > CARD_BYTES:
                raise InvalidRequestError(f"its card at {url} has more than {CARD_BYTES:,} bytes")
        return data, _max_age_ms(response.headers.get("cache-control", ""))


def _max_age_ms(cache_control: str) -> int | None:
    for directive in cache_control.lower().split(","):
        name, _, seconds = directive.strip().partition("=")
        if name == "max-age" and seconds.isdecimal():
            return int(seconds[:9]) * 1_000 or None
    return None


def _candidate(server: str, card: AgentCard) -> Candidate:
    lines = [card.description, *(f"{_titled(skill)}: {skill.description}" for skill in card.skills)]
    return Candidate(
        id=candidate_id(server, card.name),
        name=card.name,
        description="\n".join(line for line in lines if line.strip(": ")),
        type="agent",
        server=server,
        tools=tuple(_titled(skill) for skill in card.skills),
        tags=tuple(dict.fromkeys(tag for skill in card.skills for tag in skill.tags)),
    )


def _titled(skill: AgentSkill) -> str:
    return skill.name or skill.id
