"""What serves here: /v1/models in OpenAI's shape, /version and /info.

Knows the configuration and the router's own description. Makes no decision.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Literal

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request

from prompts.template import Layout, Readout
from serving.api.errors import documented
from serving.api.service import Service
from serving.types import ModelNotFoundError

if TYPE_CHECKING:
    from serving.router import Router

VERSION = version("light-router")


class Model(BaseModel):
    """A model. An adapter's `parent` is the base model that it changes; only the model that decides may be asked."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["light-router"] = "light-router"
    root: str
    parent: str | None


class ModelList(BaseModel):
    """All models: the base model, and the adapter where one is served."""

    object: Literal["list"] = "list"
    data: list[Model]


class Version(BaseModel):
    """The server's version."""

    version: str


class ModelInfo(BaseModel):
    """What decides. Without an adapter it is the bare base model, and `note` says so."""

    name: str
    base: str
    adapter: str | None
    note: str


class TemplateInfo(BaseModel):
    """How a question is worded. Two servers with one fingerprint ask the same question in the same tokens."""

    chat: str
    fingerprint: str


class PrefilterInfo(BaseModel):
    """How a long candidate list is bounded."""

    method: str
    k: int
    history_messages: int


class Limits(BaseModel):
    """What one request may hold, and how many decisions, and tokens of theirs, may be in progress.

    `max_k` null means any number.
    """

    max_body_bytes: int
    max_candidates: int
    max_messages: int
    max_concurrent: int
    max_tokens: int
    max_k: int | None
    timeout_s: float


class Info(BaseModel):
    """What this server is and takes."""

    version: str
    model: ModelInfo
    engine: str
    readout: Readout
    layout: Layout
    template: TemplateInfo
    prefilter: PrefilterInfo
    limits: Limits


def check_model(router: Router, name: str) -> None:
    """Raises ModelNotFoundError where `name` is not the model that decides here."""
    if name == router.model:
        return
    if name == router.base_model:
        raise ModelNotFoundError(f"the base model {name!r} is not asked by itself here; ask for {router.model!r}")
    raise ModelNotFoundError(f"the model {name[:100]!r} does not exist here; ask for {router.model!r}")


def _models(service: Service) -> list[Model]:
    router = service.router
    models = [Model(id=router.base_model, created=service.started_at, root=router.base_model, parent=None)]
    if router.model != router.base_model:
        models.append(Model(id=router.model, created=service.started_at, root=router.model, parent=router.base_model))
    return models


def _info(service: Service) -> Info:
    config, router = service.config, service.router
    note = f"adapter {router.adapter}" if router.adapter else "bare model: no adapter is served, the base model decides"
    return Info(
        version=VERSION,
        model=ModelInfo(name=router.model, base=router.base_model, adapter=router.adapter, note=note),
        engine=config.engine.kind,
        readout=router.template.readout,
        layout=router.template.layout,
        template=TemplateInfo(chat=router.template.chat.name, fingerprint=router.template.fingerprint()),
        prefilter=PrefilterInfo(
            method=config.prefilter.method, k=config.prefilter.k, history_messages=config.prefilter.history_messages
        ),
        limits=Limits(
            max_body_bytes=config.server.max_body_bytes,
            max_candidates=config.server.max_candidates,
            max_messages=config.server.max_messages,
            max_concurrent=config.server.max_concurrent,
            max_tokens=config.server.max_tokens,
            max_k=router.max_k,
            timeout_s=config.engine.timeout_s,
        ),
    )


def routes(service: Service) -> APIRouter:
    """/v1/models, /v1/models/{id}, /version, /info."""
    surface = APIRouter()

    @surface.get("/v1/models", tags=["openai"], responses=documented(path="/v1/models"))
    async def models() -> ModelList:
        """The models, in OpenAI's shape."""
        return ModelList(data=_models(service))

    # A path, because a model's name may hold slashes. Declared by hand: no text is an invalid one.
    parameter = {"name": "name", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}

    @surface.get(
        "/v1/models/{name:path}",
        tags=["openai"],
        responses=documented(ModelNotFoundError, path="/v1/models"),
        openapi_extra={"parameters": [parameter]},
    )
    async def model(http: Request) -> Model:
        """One model, in OpenAI's shape."""
        name = http.path_params["name"]
        found = next((known for known in _models(service) if known.id == name), None)
        if found is None:
            raise ModelNotFoundError(f"the model {name[:100]!r} does not exist here; /v1/models lists those that do")
        return found

    @surface.get("/version", tags=["operations"], responses=documented(path="/version"))
    async def server_version() -> Version:
        """The server's version."""
        return Version(version=VERSION)

    @surface.get("/info", tags=["operations"], responses=documented(path="/info"))
    async def info() -> Info:
        """Model, readout, template, prefilter and limits."""
        return _info(service)

    return surface
