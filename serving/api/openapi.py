"""The OpenAPI document: request bodies that are parsed by hand, and the key that a server may ask for.

Knows pydantic models and OpenAPI. Does not know what the routes do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from serving.api.limits import TIMEOUT_HEADER

_REFERENCE = "#/components/schemas/{model}"


class DocumentedRoute(APIRoute):
    """A route whose endpoint takes the request and makes the response by itself; FastAPI only describes it."""

    def get_route_handler(self) -> Callable[..., Any]:
        """The endpoint."""
        return self.endpoint


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """A route's `openapi_extra` for a JSON body of this model; the model must be among `describe`'s."""
    schema = {"$ref": _REFERENCE.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def decision_body(model: type[BaseModel]) -> dict[str, Any]:
    """As `json_body`, of a route that asks for a decision and may say how long it waits for it."""
    timeout = {
        "name": TIMEOUT_HEADER,
        "in": "header",
        "description": "Seconds after which the answer is of no use; then 504. At most the server's own, which counts "
        "where this is left out.",
        "schema": {"type": "number", "exclusiveMinimum": 0},
    }
    return {"parameters": [timeout], **json_body(model)}


def describe(app: FastAPI, bodies: list[type[BaseModel]], *, with_key: bool, open_paths: Collection[str] = ()) -> None:
    """Make `app` describe itself with the models of its request bodies, and with its key where it asks for one.

    `open_paths` need none.
    """

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            described = get_openapi(
                title=app.title, version=app.version, description=app.description, routes=app.routes
            )
            _, schemas = models_json_schema([(body, "validation") for body in bodies], ref_template=_REFERENCE)
            described["components"]["schemas"] |= schemas["$defs"]
            if with_key:
                described["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
                for path, operations in described["paths"].items():
                    for operation in operations.values():
                        operation["security"] = [] if path in open_paths else [{"key": []}]
            app.openapi_schema = described
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]
