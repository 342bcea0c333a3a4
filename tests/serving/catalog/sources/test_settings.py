"""What is read from a mcp.json and a registry's server.json, and which of it may be kept."""

from typing import Any

import pytest

from serving.catalog.sources.base import SourceError
from serving.catalog.sources.environment import Environment
from serving.catalog.sources.mcp_config import Entry, HttpEntry, StdioEntry, entries, entry, record
from serving.catalog.sources.registry import is_server_json, registered
from serving.types import InvalidRequestError


def test_the_fields_of_several_hosts_are_read() -> None:
    found = entries(
        {
            "mcpServers": {
                "time": {"command": "uvx", "args": ["mcp-server-time"], "type": "stdio", "autoApprove": ["*"]},
                "docs": {"type": "streamable-http", "url": "https://docs.example/mcp", "headers": {"X-Key": "${KEY}"}},
                "other": {"serverUrl": "https://other.example/mcp"},
                "off": {"command": "x", "disabled": True},
            }
        },
        "mcp.json",
    )
    assert found == {
        "time": StdioEntry(command="uvx", args=["mcp-server-time"]),
        "docs": HttpEntry(type="streamable-http", url="https://docs.example/mcp", headers={"X-Key": "${KEY}"}),
        "other": HttpEntry(url="https://other.example/mcp"),
    }
    assert entries({"servers": {"a": {"command": "a"}}}, "mcp.json") == {"a": StdioEntry(command="a")}


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ({}, r"mcpServers\.x should have either a `command`"),
        ({"command": "a", "url": "b"}, r"mcpServers\.x should have either a `command`"),
        ({"command": ["a"]}, r"mcpServers\.x\.command should be a valid string"),
        ({"command": "a", "env": {"PORT": 80}}, r"mcpServers\.x\.env\.PORT should be a valid string"),
        ({"url": "http://a", "type": "websocket"}, r"mcpServers\.x\.type should be 'http'"),
        ("a", r"mcpServers\.x should be an object"),
    ],
)
def test_what_is_wrong_in_a_mcp_json_is_said_with_its_place(server: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        entries({"mcpServers": {"x": server}}, "mcp.json")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (
            StdioEntry(command="a", args=["--api-key", "S", "--token=S", "-p", "80", "${T}"], env={"K": "S"}),
            {
                "command": "a",
                "args": ["--api-key", "***", "--token=***", "-p", "80", "${T}"],
                "env": {"K": "***"},
            },
        ),
        (
            HttpEntry(url="https://u:S@h:1/mcp?api_key=S&page=2#S", headers={"A": "Bearer S", "B": "Bearer ${T}"}),
            {"url": "https://***@h:1/mcp?api_key=***&page=2", "headers": {"A": "***", "B": "Bearer ${T}"}},
        ),
        (HttpEntry(url="https://h/mcp?key=${K}"), {"url": "https://h/mcp?key=${K}"}),
    ],
)
def test_a_record_holds_references_and_no_secret(given: Entry, kept: dict[str, Any]) -> None:
    assert record(given) == {"kind": "mcp", **kept}


def test_messages_show_references_for_what_they_stood_for() -> None:
    environment = Environment({"TOKEN": "abcdef-123", "EMPTY": ""}, "MCP server 'x'")
    assert environment.resolve("Bearer ${TOKEN}${EMPTY}${env:OTHER:-d}$HOME{}") == "Bearer abcdef-123d$HOME{}"
    assert environment.redact("got abcdef-123\n\0 twice: abcdef-123") == (
        "got ${TOKEN} \N{REPLACEMENT CHARACTER} twice: ${TOKEN}"
    )
    assert len(environment.redact("word " * 10_000)) < 2_000
    with pytest.raises(SourceError, match=r"MCP server 'x': the environment variable NONE is not set"):
        environment.resolve("${NONE}")


REMOTE = {
    "name": "com.example/acme",
    "title": "Acme",
    "description": "Analytics",
    "version": "2.0.0",
    "remotes": [
        {"type": "sse", "url": "https://acme.example/sse"},
        {
            "type": "streamable-http",
            "url": "https://{tenant}.acme.example/mcp",
            "variables": {"tenant": {"isRequired": True}},
            "headers": [
                {"name": "X-API-Key", "isRequired": True, "isSecret": True},
                {"name": "X-Region", "default": "eu"},
                {"name": "X-Unused"},
                {"name": "Authorization", "value": "Bearer {token}", "variables": {"token": {"isSecret": True}}},
            ],
        },
    ],
}
PACKAGE = {
    "name": "io.github.someone/files",
    "description": "Files",
    "packages": [
        {
            "registryType": "npm",
            "identifier": "@someone/files",
            "version": "1.0.2",
            "transport": {"type": "stdio"},
            "runtimeArguments": [{"type": "named", "name": "--silent", "isRequired": True}],
            "packageArguments": [
                {"type": "positional", "valueHint": "root dir", "isRequired": True},
                {"type": "named", "name": "--mode", "value": "read"},
                {"type": "named", "name": "--unused"},
            ],
            "environmentVariables": [{"name": "FILES_TOKEN", "isRequired": True}],
        }
    ],
}


def test_a_remote_of_a_server_json_is_reached_over_streamable_http() -> None:
    assert is_server_json(REMOTE)
    (server,) = registered(REMOTE, "server.json")
    assert (server.name, server.description) == ("com.example/acme", "Acme\nAnalytics")
    assert server.entry == entry(
        {
            "url": "https://${COM_EXAMPLE_ACME__TENANT}.acme.example/mcp",
            "headers": {
                "X-API-Key": "${COM_EXAMPLE_ACME__X_API_KEY}",
                "X-Region": "${COM_EXAMPLE_ACME__X_REGION:-eu}",
                "Authorization": "Bearer ${COM_EXAMPLE_ACME__TOKEN}",
            },
            "type": "streamable-http",
        },
        "",
    )


def test_a_package_of_a_server_json_is_run_only_where_that_is_allowed() -> None:
    with pytest.raises(InvalidRequestError, match=r"would be downloaded and run here.*npm: @someone/files"):
        registered(PACKAGE, "server.json")
    (server,) = registered({"servers": [{"server": PACKAGE, "_meta": {}}]}, "server.json", run_packages=True)
    prefix = "IO_GITHUB_SOMEONE_FILES__"
    assert server.entry == StdioEntry(
        command="npx",
        args=["-y", "--silent", "@someone/files@1.0.2", f"${{{prefix}ROOT_DIR}}", "--mode", "read"],
        env={"FILES_TOKEN": f"${{{prefix}FILES_TOKEN}}"},
    )


def test_a_container_is_told_its_variables_by_name() -> None:
    image = {
        "registryType": "oci",
        "identifier": "docker.io/someone/files:1",
        "transport": {"type": "stdio"},
        "environmentVariables": [{"name": "TOKEN", "isRequired": True}],
    }
    (server,) = registered({"name": "a/b", "packages": [image]}, "server.json", run_packages=True)
    assert isinstance(server.entry, StdioEntry)
    assert server.entry.args == ["run", "-i", "--rm", "-e", "TOKEN", "docker.io/someone/files:1"]


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ({"name": "a/b", "remotes": [{"type": "sse", "url": "https://x/${AWS_SECRET}"}]}, "asks for variables of this"),
        ({"name": "a/b", "packages": []}, "has neither a remote nor a package"),
        ({"name": "a/b", "remotes": [{"type": "ws", "url": "x"}]}, r"remotes\[0\]\.type should be"),
        ({"name": "a/b", "remotes": [{"type": "streamable-http"}]}, r"url should have at least 1 character"),
        ({"name": 1, "remotes": []}, r"name should be a valid string"),
    ],
)
def test_what_is_wrong_in_a_server_json_is_said(server: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        registered(server, "server.json")
