"""/v1/catalogs: catalogues, their candidates and servers, with versions as ETags.

Knows requests and the store. Does not know how candidates are searched or where servers are synchronised from.
"""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, RootModel, SkipValidation
from pydantic_core import to_json
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response

from prompts.question import CandidateType
from serving.api.auth import caller_of
from serving.api.errors import documented
from serving.api.openapi import DocumentedRoute, json_body
from serving.catalog.entry import CatalogInfo, Entry
from serving.catalog.lines import EntryLine, EntryShape, line_of, read_line, read_lines, write_lines
from serving.catalog.scan_rules import Rule
from serving.catalog.screening import Screened, screen
from serving.catalog.store import IfMatch, Store
from serving.catalog.tenants import missing, shown_name, stored_name
from serving.types import (
    ConflictError,
    InvalidRequestError,
    LightRouterError,
    NotFoundError,
    StoreError,
    TooLargeError,
)
from serving.validation import parse_json, parse_object, validated

PATH = "/v1/catalogs"
MOST_OF_A_PAGE = 1_000

# RFC 9110, 13.1.1: `*`, or a list of tags. A weak one never matches, and neither does one that is no version.
_TAG = r'(?:W/)?"[^"]*"'
_TAGS = re.compile(rf"\s*{_TAG}(\s*,\s*{_TAG})*\s*")
_VERSION = re.compile(r'(?<!W/)"(\d{1,18})"')
_ANY_VERSION = range(2**63)


class _Opaque(Convertor[str]):
    """An id in a path may hold everything, slashes and line breaks too."""

    regex = "(?s:.+)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("opaque", _Opaque())


class CatalogAnswer(BaseModel):
    """A catalogue: its version, which rises with every change, and how many candidates it holds."""

    name: str
    version: int
    candidates: int


class CatalogsAnswer(BaseModel):
    """All catalogues, by name."""

    catalogs: list[CatalogAnswer]


class CandidatesBody(BaseModel):
    """Candidates to be written, all or none."""

    model_config = ConfigDict(strict=True, extra="forbid")

    candidates: Annotated[
        SkipValidation[list[EntryShape]],  # by `read_lines`
        Field(
            description="OpenAI, Anthropic or MCP tools, or catalogue lines. `id` defaults to `server/name`, or to "
            "`name` where there is no server. A line of type `server` describes a server.",
        ),
    ]


class CandidateBody(RootModel[EntryShape]):
    """One candidate: an OpenAI, Anthropic or MCP tool, or a catalogue line. Its id is the path's."""


class FindingAnswer(BaseModel):
    """What looks like poison in a candidate: the attack, the place, and what stands there."""

    id: str
    rule: Rule
    where: str
    excerpt: str


class RedescribedAnswer(BaseModel):
    """A candidate whose description is another than before."""

    id: str
    before: str
    after: str


class Noticed(BaseModel):
    """What was noticed in what was written, where there was anything."""

    findings: list[FindingAnswer] = []
    redescribed: list[RedescribedAnswer] = []


class WrittenAnswer(Noticed):
    """The catalogue's version after a write; `version` is as before where nothing has changed."""

    version: int


class EntryAnswer(EntryLine):
    """A candidate. `version` is the catalogue's at its last change; it is stale while its server cannot be read."""

    version: int
    stale: bool


class WrittenEntryAnswer(EntryAnswer, Noticed):
    """A candidate as it was written. In quarantine it is not enabled where anything was found in it."""


class PageAnswer(BaseModel):
    """A page of candidates, by id. Where there are more, `next` is what the next page is to be asked `after`."""

    candidates: list[EntryAnswer]
    next: str | None


class ServerAnswer(BaseModel):
    """A server. While `error` is set its candidates are what was last known of them."""

    name: str
    description: str
    source: dict[str, Any] | None
    synced_at: Annotated[float | None, Field(description="Unix seconds of the last success.")]
    ttl_ms: int | None
    error: str | None


class ServersAnswer(BaseModel):
    """A catalogue's servers, by name."""

    servers: list[ServerAnswer]


class PageQuery(BaseModel):
    """Which candidates a page has."""

    model_config = ConfigDict(extra="forbid")

    limit: Annotated[int, Field(ge=1, le=MOST_OF_A_PAGE, description="At most this many.")] = 100
    after: Annotated[str | None, Field(description="Those whose ids come after this one: `next` of a page.")] = None
    server: Annotated[str | None, Field(description="Those of this server.")] = None
    type: Annotated[CandidateType | None, Field(description="Those of this type.")] = None
    tag: Annotated[str | None, Field(description="Those with this tag.")] = None
    text: Annotated[str | None, Field(description="Those with this in name or description, in any case.")] = None


BODIES: list[type[BaseModel]] = [CandidatesBody, CandidateBody]


def if_match(http: Request, candidate: str | None = None) -> IfMatch | None:
    """The condition in the request's If-Match, on the catalogue or on one candidate of it.

    Raises:
        InvalidRequestError: the header is neither `*` nor a list of quoted versions.
    """
    header = ", ".join(http.headers.getlist("if-match"))
    if not header:
        return None
    versions: Container[int] = _ANY_VERSION
    if header.strip() != "*":
        if not _TAGS.fullmatch(header):
            raise InvalidRequestError(
                'If-Match should be * or versions in quotes as ETag has them, like "12"', "If-Match"
            )
        versions = {int(version) for version in _VERSION.findall(header)}
    return IfMatch(versions, candidate)


def _answer(value: Any, version: int | None = None, status: int = 200) -> Response:
    """`value` as JSON, with a version as its ETag."""
    headers = {} if version is None else {"etag": f'"{version}"'}
    return Response(to_json(value), status, headers, media_type="application/json")


def _shown(entry: Entry) -> dict[str, Any]:
    return {**line_of(entry), "version": entry.version, "stale": entry.stale}


def _noticed(screened: Screened) -> dict[str, Any]:
    noticed = {"findings": screened.findings, "redescribed": screened.redescribed}
    return {name: found for name, found in noticed.items() if found}


def _parameters(*names: str, query: type[BaseModel] | None = None, conditional: bool = False) -> dict[str, Any]:
    """The OpenAPI description of what a route reads by hand: path, query and If-Match."""
    text = {"type": "string", "minLength": 1}
    described: list[dict[str, Any]] = [{"name": name, "in": "path", "required": True, "schema": text} for name in names]
    if query:
        for name, schema in query.model_json_schema()["properties"].items():
            described.append({"name": name, "in": "query", "required": False, "schema": schema})
    if conditional:
        about = "Writes only where this is still the ETag; `*` where there is one at all."
        header = {"name": "If-Match", "in": "header", "required": False, "schema": {"type": "string"}}
        described.append({**header, "description": about})
    return {"parameters": described}


def _responses(*errors: type[LightRouterError]) -> dict[int | str, dict[str, Any]]:
    return documented(StoreError, *errors, path=PATH)


def _named(http: Request) -> str:
    """The store's name of the catalogue in the path: of the caller's tenant, whatever the path says."""
    return stored_name(caller_of(http).tenant, http.path_params["name"])


async def _entry(store: Store, http: Request) -> Entry:
    name, id = http.path_params["name"], http.path_params["id"]
    found = await store.get(_named(http), [id])
    if not found:
        raise NotFoundError(f"the catalogue {name!r} has no candidate {id[:100]!r}; {PATH}/{name}/candidates lists all")
    return found[0]


async def _own(store: Store, http: Request) -> list[CatalogInfo]:
    """The caller's catalogues, called as the caller calls them."""
    known = await store.catalogs(caller_of(http).tenant)
    return [replace(info, name=shown_name(info.name)) for info in known]


def routes(store: Store, *, quarantine: bool = False) -> APIRouter:
    """Everything below /v1/catalogs; `quarantine` disables what looks like poison."""
    surface = APIRouter(tags=["catalogues"], route_class=DocumentedRoute)
    catalog, candidates = f"{PATH}/{{name}}", f"{PATH}/{{name}}/candidates"
    candidate = f"{candidates}/{{id:opaque}}"
    invalid = (InvalidRequestError, NotFoundError)
    written = (*invalid, ConflictError, TooLargeError)

    @surface.get(PATH, response_model=CatalogsAnswer, responses=_responses())
    async def catalogs(http: Request) -> Response:
        """All catalogues of the key's tenant."""
        return _answer({"catalogs": await _own(store, http)})

    @surface.put(
        catalog,
        response_model=CatalogAnswer,
        responses=_responses(InvalidRequestError),
        openapi_extra=_parameters("name"),
    )
    async def create(http: Request) -> Response:
        """Make an empty catalogue, or leave the one there is. Names are 1 to 64 of a-z, A-Z, 0-9, '.', '_' and '-'."""
        await store.create(_named(http))
        return await show(http)

    @surface.get(
        catalog, response_model=CatalogAnswer, responses=_responses(NotFoundError), openapi_extra=_parameters("name")
    )
    async def show(http: Request) -> Response:
        """One catalogue; its version is the ETag."""
        name = http.path_params["name"]
        for info in await _own(store, http):
            if info.name == name:
                return _answer(info, info.version)
        raise missing(name)

    @surface.delete(
        catalog,
        status_code=204,
        responses=_responses(*invalid, ConflictError),
        openapi_extra=_parameters("name", conditional=True),
    )
    async def drop(http: Request) -> Response:
        """Remove a catalogue with everything in it."""
        await store.drop(_named(http), if_match=if_match(http))
        return Response(status_code=204)

    @surface.get(
        candidates,
        response_model=PageAnswer,
        responses=_responses(*invalid),
        openapi_extra=_parameters("name", query=PageQuery),
    )
    async def page(http: Request) -> Response:
        """A page of candidates, in the order of their ids."""
        asked = validated(PageQuery.model_validate, dict(http.query_params))
        found = await store.page(_named(http), **asked.model_dump())
        return _answer({"candidates": [_shown(entry) for entry in found.entries], "next": found.next})

    @surface.post(
        candidates,
        response_model=WrittenAnswer,
        responses=_responses(*written),
        openapi_extra=json_body(CandidatesBody) | _parameters("name", conditional=True),
    )
    async def upsert(http: Request) -> Response:
        """Write candidates, all or none. A catalogue that does not exist is made; If-Match is about the catalogue.

        What looks like poison in what is new is told in `findings`, and changed descriptions in `redescribed`.
        """
        body = parse_object(CandidatesBody, await http.body())
        lines = read_lines(body.candidates)
        screened = await screen(store, _named(http), lines.entries, quarantine=quarantine)
        lines = replace(lines, entries=screened.entries)
        version = await write_lines(store, _named(http), lines, if_match=if_match(http))
        return _answer({"version": version, **_noticed(screened)}, version)

    @surface.get(
        candidate,
        response_model=EntryAnswer,
        responses=_responses(*invalid),
        openapi_extra=_parameters("name", "id"),
    )
    async def read(http: Request) -> Response:
        """One candidate; the version of its last change is the ETag."""
        entry = await _entry(store, http)
        return _answer(_shown(entry), entry.version)

    @surface.put(
        candidate,
        response_model=WrittenEntryAnswer,
        responses=_responses(*written),
        openapi_extra=json_body(CandidateBody) | _parameters("name", "id", conditional=True),
    )
    async def write(http: Request) -> Response:
        """Write one candidate into a catalogue that exists.

        One that was quarantined is enabled by writing it again as it is.
        """
        id = http.path_params["id"]
        entry = read_line(parse_json(await http.body()), id)
        screened = await screen(store, _named(http), [entry], quarantine=quarantine, enabling=True)
        await store.upsert(_named(http), screened.entries, if_match=if_match(http, id), create=False)
        written = await _entry(store, http)
        return _answer({**_shown(written), **_noticed(screened)}, written.version)

    @surface.delete(
        candidate,
        status_code=204,
        responses=_responses(*invalid, ConflictError),
        openapi_extra=_parameters("name", "id", conditional=True),
    )
    async def remove(http: Request) -> Response:
        """Remove one candidate."""
        id = http.path_params["id"]
        await _entry(store, http)
        await store.remove(_named(http), [id], if_match=if_match(http, id))
        return Response(status_code=204)

    @surface.get(
        f"{catalog}/servers",
        response_model=ServersAnswer,
        responses=_responses(NotFoundError),
        openapi_extra=_parameters("name"),
    )
    async def servers(http: Request) -> Response:
        """The servers of a catalogue's candidates, and whether they could be read."""
        known = await store.servers(_named(http))
        return _answer({"servers": known})

    return surface
