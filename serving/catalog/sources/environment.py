"""`${NAME}` in a source's settings: replaced when a source is opened, and never shown again.

Knows a mapping of environment variables that it was given. Does not know what the settings are for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from serving.catalog.sources.base import ERROR_CHARACTERS, SourceError, plain

# `${NAME}` and `${NAME:-default}` as Claude Code writes them, `${env:NAME}` as VS Code and Cursor do.
_REFERENCE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
# Shorter values stand in ordinary words; replacing them would make a message unreadable and hide nothing.
_SECRET_CHARACTERS = 6


class Environment:
    """Resolves references and takes what they stood for back out of messages.

    Args:
        variables: the environment, as the caller read it.
        where: what the settings belong to, for messages.
    """

    def __init__(self, variables: Mapping[str, str], where: str) -> None:
        self._variables = variables
        self._where = where
        self._shown: dict[str, str] = {}

    def resolve(self, text: str) -> str:
        """The text with each reference replaced by its variable's value, or by its default.

        Raises:
            SourceError: a variable is not set and its reference has no default.
        """

        def value(reference: re.Match[str]) -> str:
            name, default = reference.groups()
            found = self._variables.get(name, default)
            if found is None:
                raise SourceError(
                    f"{self._where}: the environment variable {name} is not set; set it, or write ${{{name}:-default}}"
                )
            self.hide(found, f"${{{name}}}")
            return found

        return _REFERENCE.sub(value, text)

    def hide(self, secret: str, shown: str = "***") -> None:
        """From now on messages show `shown` instead of the secret."""
        if len(secret) >= _SECRET_CHARACTERS:
            self._shown[secret] = shown

    def redact(self, text: str) -> str:
        """The text as a message may show it: without secrets, without characters that no database takes, not long."""
        for secret in sorted(self._shown, key=len, reverse=True):
            text = text.replace(secret, self._shown[secret])
        text = " ".join(plain(text).split())
        return text if len(text) <= ERROR_CHARACTERS else f"{text[:ERROR_CHARACTERS]}..."


def refers(text: str) -> bool:
    """Whether the text takes a value from the environment."""
    return _REFERENCE.search(text) is not None
