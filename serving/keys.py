"""API keys: who a key stands for, and what it may do.

Knows keys, scopes and tenants. Does not know requests. A key is 256 random bits, and only its SHA-256 is kept: nobody
can try out so many, so a salt or a slow hash, which protect what people can remember, would protect nothing here and
cost every request.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError
from pydantic_core import to_json

from serving.types import ForbiddenError

Scope = Literal["route", "search", "agent", "catalog:read", "catalog:write", "metrics"]
"""What a key may do: ask for decisions; search; use the agent; read and write its tenant's catalogues, with everything
in them whoever else may see it; read the server's metrics, which count all tenants."""
SCOPES: frozenset[Scope] = frozenset(get_args(Scope))

# Tells people and scanners of leaked secrets what they have found.
PREFIX = "lr_"
_KEY_BYTES = 32
_Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,63}$")]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks.

    Attributes:
        name: the key's, as the audit log shows it.
        tenant: whose catalogues it sees; "" where nobody is told apart.
        scopes: what it may do.
        principals: as whom it sees candidates that not everyone may see.
        salt: the same for all who see the same candidates, and for nobody else: what is remembered for one salt
            (prefixes of prompts, embeddings, parsed tools) makes no request of another faster.
    """

    name: str = ""
    tenant: str = ""
    scopes: frozenset[Scope] = SCOPES
    principals: frozenset[str] = frozenset()
    salt: str = ""

    @property
    def owner(self) -> str:
        """Whose share of the server, and whose threads, a request's are."""
        return f"{self.tenant}/{self.name}" if self.tenant else self.name

    def require(self, scope: Scope | None, what: str) -> None:
        """Raises ForbiddenError where `what` asks for a scope that this caller lacks."""
        if scope is not None and scope not in self.scopes:
            raise ForbiddenError(f"the key {self.name!r} lacks the scope {scope}, which {what} asks for")


ANYONE = Caller()
"""Who asks where no keys are asked for."""


class Key(BaseModel):
    """One entry of a keys file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: _Name
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    scopes: frozenset[Scope] = Field(min_length=1)
    tenant: _Name | Literal[""] = ""
    principals: frozenset[str] = frozenset()

    def caller(self) -> Caller:
        """Who presents it."""
        view = to_json([self.tenant, sorted(self.principals)])
        salt = hashlib.sha256(view).hexdigest()
        return Caller(self.name, self.tenant, self.scopes, self.principals, salt)


class _KeysFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    keys: list[Key]


class Keys:
    """The keys of a server; empty where none is asked for.

    Args:
        plain: keys of one tenant, which may do everything. Nothing is remembered between two of them.
        path: a YAML or JSON file of entries; None where there is none.

    Raises:
        ValueError: the file cannot be read, is no such file, or has two entries of one name or one key.
    """

    def __init__(self, plain: Sequence[SecretStr] = (), path: str | None = None) -> None:
        self.from_file = path is not None
        """Whether scopes are told apart; only then the metrics ask for theirs."""
        self._callers: list[tuple[bytes, Caller]] = []
        for key in plain:
            secret = key.get_secret_value()
            # Keyed for this purpose, so that it is no plain hash of a key that a person may have made up.
            name = hashlib.blake2b(secret.encode(), digest_size=32, person=b"light-router").hexdigest()[:16]
            self._callers.append((_digest(secret), Caller(name, principals=frozenset({name}), salt=name)))
        if path is not None:
            self._callers += [(bytes.fromhex(key.sha256), key.caller()) for key in read_keys(Path(path))]

    def __bool__(self) -> bool:
        return bool(self._callers)

    def caller(self, key: str) -> Caller | None:
        """Who presents this key; None for nobody known.

        Every key is compared, each in constant time, so that time does not tell which one came close.
        """
        given = _digest(key)
        matching = [caller for known, caller in self._callers if hmac.compare_digest(given, known)]
        return matching[0] if matching else None


def read_keys(path: Path) -> list[Key]:
    """The entries of a keys file. Raises ValueError as `Keys`; no message quotes more of the file than names."""
    try:
        read = yaml.safe_load(path.read_text(encoding="utf-8"))
        keys = _KeysFile.model_validate(read).keys
    except OSError as error:
        raise ValueError(f"cannot read server.keys_file {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"server.keys_file {path} is neither YAML nor JSON") from error
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc'])) or 'it'}: {fault['msg']}" for fault in error.errors())
        raise ValueError(f"server.keys_file {path} is invalid: {faults}") from error
    if not keys:
        raise ValueError(f"server.keys_file {path} has no keys, so that nobody could ask; leave it out to open the API")
    for what in ("name", "sha256"):
        values = [getattr(key, what) for key in keys]
        if twice := next((value for value in values if values.count(value) > 1), None):
            raise ValueError(f"server.keys_file {path} has two keys of the {what} {twice!r}; give each its own")
    return keys


def create_key(name: str, scopes: Iterable[str], tenant: str, principals: Iterable[str]) -> tuple[str, Key]:
    """A new key, and the entry that lets it in. Raises pydantic's ValidationError where a name or scope is none."""
    key = PREFIX + secrets.token_urlsafe(_KEY_BYTES)
    entry = {"name": name, "sha256": _digest(key).hex(), "tenant": tenant}
    sets = {"scopes": frozenset(scopes), "principals": frozenset(principals)}
    return key, Key.model_validate({**entry, **sets})


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
