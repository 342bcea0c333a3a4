"""How an MCP registry's `server.json` says that a server is reached, as an entry of a mcp.json.

Knows the registry's format (schema 2025-12-11 and its neighbours). A registry's entries are strangers' words: a
package becomes a command only where the caller asks for it, because starting it runs code that the file named; and no
entry reads a variable of the environment but those that carry the server's own name, so that none can ask for
another's secret.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from serving.catalog.sources.environment import refers
from serving.catalog.sources.mcp_config import Entry, entry
from serving.types import InvalidRequestError
from serving.validation import validated

# What starts a package of each registry, and how that names package and version.
_RUNTIMES = {
    "npm": ("npx", ["-y"], "{identifier}@{version}"),
    "pypi": ("uvx", [], "{identifier}@{version}"),
    "oci": ("docker", ["run", "-i", "--rm"], "{identifier}"),
    "nuget": ("dnx", ["--yes"], "{identifier}@{version}"),
}
_BRACES = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9]+")


class _Part(BaseModel):
    model_config = ConfigDict(strict=True)


class _Input(_Part):
    """A value, or what to ask for where there is none."""

    value: str | None = None
    default: str | None = None
    required: bool = Field(default=False, alias="isRequired")


class _Argument(_Input):
    type: Literal["positional", "named"] = "positional"
    name: str = ""
    hint: str = Field(default="", alias="valueHint")
    variables: dict[str, _Input] = {}


class _Pair(_Input):
    name: str = Field(min_length=1)
    variables: dict[str, _Input] = {}


class _Transport(_Part):
    type: Literal["stdio", "streamable-http", "sse"]
    url: str = ""
    headers: list[_Pair] = []
    variables: dict[str, _Input] = {}


class _Package(_Part):
    registry: str = Field(alias="registryType")
    identifier: str = Field(min_length=1)
    version: str = "latest"
    runtime_arguments: list[_Argument] = Field(default=[], alias="runtimeArguments")
    arguments: list[_Argument] = Field(default=[], alias="packageArguments")
    variables: list[_Pair] = Field(default=[], alias="environmentVariables")
    transport: _Transport


class _ServerJson(_Part):
    name: str = Field(min_length=1)
    title: str | None = None
    description: str = ""
    remotes: list[_Transport] = []
    packages: list[_Package] = []


@dataclass(frozen=True, slots=True)
class Registered:
    """A server of a registry, and how it is reached."""

    name: str
    description: str
    entry: Entry


def is_server_json(value: Any) -> bool:
    """Whether a parsed file is a server.json, or a registry's answer with a list of them."""
    if isinstance(value, dict) and isinstance(value.get("servers"), list):
        return True
    return isinstance(value, dict) and "name" in value and ("remotes" in value or "packages" in value)


def registered(value: Any, where: str, *, run_packages: bool = False) -> list[Registered]:
    """The servers of a server.json, or of a registry's list, in its order.

    Of a server's remotes the first that speaks Streamable HTTP is taken; packages count where there is none and
    `run_packages` says that they may be started. What the file leaves open is read from the environment, by server
    and name: the header `X-API-Key` of `com.example/acme` is `${COM_EXAMPLE_ACME__X_API_KEY}`.

    Raises:
        InvalidRequestError: another shape, or a server that cannot be reached in these ways.
    """
    if "servers" not in value:
        return [_one(value, where, run_packages)]
    found = []
    for position, item in enumerate(value["servers"]):
        # A registry wraps each in {"server": ..., "_meta": ...}.
        inner = item["server"] if isinstance(item, dict) and "server" in item else item
        found.append(_one(inner, f"{where}: servers[{position}]", run_packages))
    return found


def _one(value: Any, where: str, run_packages: bool) -> Registered:
    server = validated(_ServerJson.model_validate, value, where)
    if refers(server.model_dump_json(include={"remotes", "packages"})):
        raise InvalidRequestError(
            f"{where}: {server.name} asks for variables of this machine with ${{...}}, which a registry's entry may "
            "not; write it into a mcp.json where it should"
        )
    description = "\n".join(filter(None, [server.title, server.description]))
    fill = _Fill(server.name)
    remotes = sorted(server.remotes, key=lambda remote: remote.type != "streamable-http")
    if remotes:
        return Registered(server.name, description, entry(fill.remote(remotes[0]), where))
    packages = [package for package in server.packages if package.transport.type == "stdio"]
    known = [package for package in packages if package.registry in _RUNTIMES]
    if not known:
        raise InvalidRequestError(
            f"{where}: {server.name} has neither a remote nor a package that is started over stdio from "
            f"{', '.join(_RUNTIMES)}"
        )
    if not run_packages:
        raise InvalidRequestError(
            f"{where}: {server.name} is a package that would be downloaded and run here "
            f"({known[0].registry}: {known[0].identifier}); allow packages to be run, or write it into a mcp.json"
        )
    return Registered(server.name, description, entry(fill.package(known[0]), where))


class _Fill:
    """Fills in what a server's entry leaves open: with its own values and defaults, else with references."""

    def __init__(self, server: str) -> None:
        self._prefix = _variable(server)

    def remote(self, transport: _Transport) -> dict[str, Any]:
        return {
            "url": self._filled(transport.url, transport.variables),
            "headers": self._pairs(transport.headers),
            "type": transport.type,
        }

    def package(self, package: _Package) -> dict[str, Any]:
        command, options, pattern = _RUNTIMES[package.registry]
        environment = self._pairs(package.variables)
        arguments = [*options, *self._arguments(package.runtime_arguments)]
        if command == "docker":  # a container sees only the variables that it is given by name
            arguments += [part for name in environment for part in ("-e", name)]
        arguments.append(pattern.format(identifier=package.identifier, version=package.version))
        return {"command": command, "args": [*arguments, *self._arguments(package.arguments)], "env": environment}

    def _pairs(self, pairs: list[_Pair]) -> dict[str, str]:
        """Names and values; those with neither a value nor a need are left out."""
        return {pair.name: self._value(pair, pair.name, pair.variables) for pair in pairs if _wanted(pair)}

    def _arguments(self, arguments: list[_Argument]) -> list[str]:
        parts: list[str] = []
        for argument in filter(_wanted, arguments):
            if argument.type == "named":
                parts.append(argument.name)
            if argument.type == "positional" or _given(argument):  # one that is neither is a flag
                parts.append(self._value(argument, argument.hint or argument.name, argument.variables))
        return parts

    def _value(self, value: _Input, name: str, variables: dict[str, _Input]) -> str:
        if value.value is not None:
            return self._filled(value.value, variables)
        return self._reference(name, value.default)

    def _filled(self, text: str, variables: dict[str, _Input]) -> str:
        """`{name}` as the variable's own value, or as a reference to the environment."""

        def one(match: re.Match[str]) -> str:
            variable = variables.get(match[1])
            if variable is None:
                return match[0]
            return variable.value if variable.value is not None else self._reference(match[1], variable.default)

        return _BRACES.sub(one, text)

    def _reference(self, name: str, default: str | None) -> str:
        variable = f"{self._prefix}__{_variable(name)}"
        return f"${{{variable}}}" if default is None else f"${{{variable}:-{default}}}"


def _wanted(value: _Input) -> bool:
    return _given(value) or value.required


def _given(value: _Input) -> bool:
    return value.value is not None or value.default is not None


def _variable(name: str) -> str:
    """The name as environment variables are written; one that begins with a digit gets an underscore."""
    return re.sub(r"^(?=[0-9])", "_", _NOT_A_NAME.sub("_", name).strip("_").upper())
