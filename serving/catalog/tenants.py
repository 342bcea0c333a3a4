"""Catalogues of tenants: the store's names are `tenant/name`, callers' are `name` alone.

Knows names. A caller's name holds no slash, so that nobody can say another tenant's; without a tenant both are the
same. Operators, who use the database itself, see and say the store's names.
"""

from __future__ import annotations

from serving.types import NotFoundError

SEPARATOR = "/"


def stored_name(tenant: str, name: str) -> str:
    """The store's name of what a tenant calls `name`.

    Raises:
        NotFoundError: no catalogue of this tenant can be called so.
    """
    if SEPARATOR in name:
        raise missing(name)
    return f"{tenant}{SEPARATOR}{name}" if tenant else name


def tenant_of(stored: str) -> str:
    """The tenant of a catalogue; "" where it has none."""
    return stored.rpartition(SEPARATOR)[0]


def shown_name(stored: str) -> str:
    """What its tenant calls a catalogue."""
    return stored.rpartition(SEPARATOR)[2]


def missing(name: str) -> NotFoundError:
    """The one answer to a catalogue that is not there and to one that is not the caller's."""
    return NotFoundError(f"the catalogue {name[:100]!r} does not exist; /v1/catalogs lists those that do")
