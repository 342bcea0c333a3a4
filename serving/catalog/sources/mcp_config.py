"""Where MCP servers are: the entries of a `mcp.json` as hosts write it.

Knows the file's shape and which of it may be kept. Does not connect to anything.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, model_validator

from serving.catalog.sources.environment import refers
from serving.validation import validated

# Options, query parameters and variables whose value is kept out of the record wherever it was written literally.
_SECRET = re.compile(r"key|token|secret|passw|pwd|auth|credential|bearer|session", re.IGNORECASE)
WITHHELD = "***"

Text = Annotated[str, Field(min_length=1)]


class _Entry(BaseModel):
    """Fields of one host only, such as `autoApprove`, may stand there and are not read."""

    model_config = ConfigDict(strict=True, frozen=True)


class StdioEntry(_Entry):
    """A server that is started as a process of this machine and spoken to over its standard input and output."""

    command: Text
    args: list[str] = []
    env: dict[str, str] = {}
    cwd: str | None = None


class HttpEntry(_Entry):
    """A server that listens; Streamable HTTP unless `type` says otherwise."""

    url: Text = Field(validation_alias=AliasChoices("url", "serverUrl", "httpUrl"))
    headers: dict[str, str] = {}
    type: Literal["http", "streamable-http", "streamable_http", "streamableHttp", "sse"] = "http"


Entry = StdioEntry | HttpEntry


class _Server(_Entry):
    """One value of `mcpServers`, before it is known which of the two it is."""

    model_config = ConfigDict(extra="allow")

    disabled: bool = False
    command: Any = None
    url: Any = Field(default=None, validation_alias=AliasChoices("url", "serverUrl", "httpUrl"))

    @model_validator(mode="after")
    def _one_way(self) -> _Server:
        if (self.command is None) == (self.url is None):
            raise ValueError("should have either a `command` (a process to start) or a `url` (Streamable HTTP)")
        return self


class _File(_Entry):
    servers: dict[Text, dict[str, Any]] = Field(validation_alias=AliasChoices("mcpServers", "servers"))


def entries(value: Any, where: str) -> dict[str, Entry]:
    """The servers of a parsed mcp.json by their names; disabled ones are left out.

    Raises:
        InvalidRequestError: it has another shape.
    """
    found: dict[str, Entry] = {}
    for name, fields in validated(_File.model_validate, value, where).servers.items():
        path = f"{where}: mcpServers.{name}"
        server = validated(_Server.model_validate, fields, path)
        if not server.disabled:
            found[name] = entry(fields, path)
    return found


def entry(fields: dict[str, Any], where: str) -> Entry:
    """One entry. Raises as `entries`."""
    if "command" in fields:
        return validated(StdioEntry.model_validate, fields, where)
    return validated(HttpEntry.model_validate, fields, where)


def record(entry: Entry) -> dict[str, Any]:
    """The entry as a catalogue may keep it: references stay references, what was written out may be withheld.

    Of variables and headers every literal value is withheld; of arguments and URLs the ones whose name sounds secret.
    """
    if isinstance(entry, StdioEntry):
        kept: dict[str, Any] = {"kind": "mcp", "command": entry.command, "args": _arguments(entry.args)}
        if entry.env:
            kept["env"] = _values(entry.env)
        if entry.cwd:
            kept["cwd"] = entry.cwd
        return kept
    kept = {"kind": "mcp", "url": _url(entry.url)}
    if entry.headers:
        kept["headers"] = _values(entry.headers)
    if entry.type == "sse":
        kept["type"] = "sse"
    return kept


def _values(values: dict[str, str]) -> dict[str, str]:
    return {name: value if refers(value) else WITHHELD for name, value in values.items()}


def _arguments(args: list[str]) -> list[str]:
    """`--api-key VALUE` and `--api-key=VALUE` without VALUE."""
    kept: list[str] = []
    previous = ""
    for argument in args:
        name, equals, _ = argument.partition("=")
        if refers(argument):
            kept.append(argument)
        elif equals and _SECRET.search(name):
            kept.append(f"{name}={WITHHELD}")
        elif previous.startswith("-") and "=" not in previous and _SECRET.search(previous):
            kept.append(WITHHELD)
        else:
            kept.append(argument)
        previous = argument
    return kept


def _url(url: str) -> str:
    """The URL without a literal password or key in it."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return WITHHELD
    user, at, host = parts.netloc.rpartition("@")
    if at and not refers(user):
        host = f"{WITHHELD}@{host}"
    elif at:
        host = parts.netloc
    query = parts.query
    if any(_SECRET.search(name) and not refers(value) for name, value in parse_qsl(query, keep_blank_values=True)):
        query = urlencode(
            [
                (name, WITHHELD if _SECRET.search(name) and not refers(value) else value)
                for name, value in parse_qsl(query, keep_blank_values=True)
            ],
            safe="*${}:",
        )
    return urlunsplit(parts._replace(netloc=host, query=query, fragment=""))
