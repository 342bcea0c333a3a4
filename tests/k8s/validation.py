"""Strict validation of Kubernetes documents: the API's own kinds, and custom ones by the schemas beside this file."""

from __future__ import annotations

import json
from pathlib import Path

import kubernetes_validate
from jsonschema import Draft202012Validator

from tests.k8s.charts import Document

SCHEMAS = Path(__file__).parent / "schemas"
# The oldest version that the chart allows, and the newest one known.
VERSIONS = ("1.30", kubernetes_validate.latest_version())


def faults(document: Document) -> list[str]:
    """What is wrong with a document. A kind without a schema is wrong."""
    api, kind = document["apiVersion"], document["kind"]
    where = f"{kind}/{document.get('metadata', {}).get('name')}"
    file = SCHEMAS / f"{kind.lower()}-{api.replace('/', '-')}.json"
    if file.exists():
        validator = Draft202012Validator(json.loads(file.read_text(encoding="utf-8")))
        return [f"{where}: {error.json_path}: {error.message}" for error in validator.iter_errors(document)]
    found = []
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            found.append(f"{where}: {'.'.join(map(str, error.path))}: {error.message}")
        except kubernetes_validate.SchemaNotFoundError as error:
            found.append(f"{where}: no schema for {error.api_version} {error.kind}: add {file.name}")
    return found
