"""Which kind of source a path or URL is.

Knows what each kind looks like. The environment is its caller's to read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from serving.catalog.sources.a2a import A2ASource
from serving.catalog.sources.base import Limits, Source
from serving.catalog.sources.files import FileSource
from serving.catalog.sources.mcp import McpSource
from serving.catalog.sources.mcp_config import HttpEntry, entries
from serving.catalog.sources.registry import is_server_json, registered
from serving.catalog.sources.skills import SkillSource
from serving.types import InvalidRequestError
from serving.validation import parse_json

Kind = Literal["mcp", "a2a"]
# A mcp.json or a server.json is short; a longer file is a catalogue.
_SETTINGS_BYTES = 4 * 2**20


def sources_at(
    place: str,
    variables: Mapping[str, str],
    *,
    kind: Kind | None = None,
    name: str | None = None,
    run_packages: bool = False,
    limits: Limits | None = None,
) -> list[Source]:
    """The sources that a path or URL stands for.

    A folder is skills; a JSON file is a mcp.json, a registry's server.json or candidates, by what is in it; a URL
    that names an agent card is an agent, any other URL a MCP server, unless `kind` says it.

    Args:
        variables: the environment that `${NAME}` in a mcp.json refers to.
        name: of the server, for places that are one.
        run_packages: whether packages that a server.json names may be downloaded and run.

    Raises:
        InvalidRequestError: nothing is there, or it has another shape.
    """
    bounds = limits or Limits()
    if urlsplit(place).scheme in {"http", "https"}:
        if (kind or ("a2a" if "agent-card" in place or "agent.json" in place else "mcp")) == "a2a":
            return [A2ASource(place, variables, name=name, limits=bounds)]
        server = name or urlsplit(place).hostname or place
        return [McpSource(server, HttpEntry(url=place), variables, limits=bounds)]
    path = Path(place)
    if path.is_dir():
        return [SkillSource(path, name=name, limits=bounds)]
    if not path.is_file():
        raise InvalidRequestError(f"{place} is neither a file, nor a folder, nor a URL that begins with http")
    value = _settings(path)
    if isinstance(value, dict) and isinstance(value.get("mcpServers", value.get("servers")), dict):
        return [McpSource(key, entry, variables, limits=bounds) for key, entry in entries(value, place).items()]
    if is_server_json(value):
        return [
            McpSource(server.name, server.entry, variables, description=server.description, limits=bounds)
            for server in registered(value, place, run_packages=run_packages)
        ]
    return [FileSource(path, name=name, limits=limits)] if limits else [FileSource(path, name=name)]


def _settings(path: Path) -> object:
    """The file's JSON where it is short and one value; None for everything that only FileSource reads."""
    if path.suffix == ".gz" or path.stat().st_size > _SETTINGS_BYTES:
        return None
    try:
        return parse_json(path.read_bytes(), str(path))
    except InvalidRequestError:
        return None
