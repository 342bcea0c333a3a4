"""Runs a Dockerfile's lines without Docker: enough of its language for ours, in a folder that stands for the root.

Each stage has a folder. The stage being built lies at `root`, so that an absolute path in it (a script's interpreter,
an editable install) means the same there as in the next stage, and is moved away when it is done. /app, /opt, /data
and /tmp in a RUN line or an ENV value are put below `root`. The base image is this Python without its packages;
everything else of the system is this machine's, so no line may need more than Python and the usual shell commands.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dockerfile_parse import DockerfileParser

OURS = re.compile(r"(?<![\w.:/$])/(?=(?:app|opt|data|tmp)\b)")
# They change nothing of the files that a stage holds.
METADATA = {"LABEL", "USER", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD", "COMMENT"}
# How this machine reaches package registries.
KEPT = {"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "http_proxy", "https_proxy", "no_proxy"}
NPMRC = Path.home() / ".npmrc"


@dataclass
class Stage:
    """One FROM and what follows it, as (instruction, value)."""

    name: str
    parent: str
    lines: list[tuple[str, str]] = field(default_factory=list)


def stages(file: Path) -> dict[str, Stage]:
    """A Dockerfile's stages by name."""
    found: dict[str, Stage] = {}
    with file.open("rb") as opened:
        structure = DockerfileParser(fileobj=opened).structure
    for line in structure:
        instruction, value = line["instruction"].upper(), line["value"]
        if instruction == "FROM":
            parent, _, name = value.partition(" AS ")
            found[name] = Stage(name, parent)
        elif found:
            list(found.values())[-1].lines.append((instruction, value))
    return found


def last(all_stages: dict[str, Stage], target: str, instruction: str) -> str:
    """The value of an instruction that holds in a target: its own, or that of the stage it is made from."""
    stage = all_stages[target]
    values = [value for name, value in stage.lines if name == instruction]
    return values[-1] if values else last(all_stages, stage.parent, instruction)


class Ignored:
    """A .dockerignore: the last pattern that fits a path or a folder above it counts."""

    def __init__(self, text: str) -> None:
        lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
        self._patterns = [(not line.startswith("!"), re.compile(_pattern(line.lstrip("!")))) for line in lines]

    def __call__(self, path: Path) -> bool:
        above = [str(path), *(str(folder) for folder in path.parents if folder != Path())]
        ignored = False
        for ignores, pattern in self._patterns:
            if any(pattern.fullmatch(one) for one in above):
                ignored = ignores
        return ignored


def _pattern(text: str) -> str:
    parts = re.split(r"(\*\*/|\*|\[[^]]+\])", text)
    known = {"**/": "(?:.*/)?", "*": "[^/]*"}
    return "".join(known.get(part, part if part.startswith("[") else re.escape(part)) for part in parts)


class Builder:
    """Builds stages of one Dockerfile below `folder`."""

    def __init__(self, file: Path, context: Path, folder: Path) -> None:
        self.stages = stages(file)
        self._context = context
        self._ignored = Ignored((context / ".dockerignore").read_text(encoding="utf-8"))
        self._folder = folder
        self.root = folder / "root"
        self.ran: list[str] = []
        """The RUN lines that were executed, as they stand in the file."""
        self._environments: dict[str, dict[str, str]] = {}
        base = folder / "base" / "python"
        base.parent.mkdir(parents=True)
        base.write_text(f'#!/bin/sh\nexec {shlex.quote(_base_python())} "$@"\n', encoding="utf-8")
        base.chmod(0o755)

    def build(self, name: str) -> None:
        """Build a stage and what it needs. Raises CalledProcessError where a line fails."""
        stage = self.stages[name]
        if name in self._environments:
            return
        needed = [stage.parent, *(source for kind, value in stage.lines if kind == "COPY" and (source := _from(value)))]
        for other in needed:
            if other in self.stages:
                self.build(other)
        if stage.parent in self.stages:
            _copy(self._stored(stage.parent), self.root)
            environment = dict(self._environments[stage.parent])
        else:
            (self.root / "tmp").mkdir(parents=True)
            (self.root / "opt").mkdir()
            environment = {"PATH": f"{self._folder / 'base'}:{os.defpath}", "PWD": "/"}
        for instruction, value in stage.lines:
            self._execute(instruction, value, environment)
        self._environments[name] = environment
        self._stored(name).parent.mkdir(exist_ok=True)
        self.root.rename(self._stored(name))

    @contextmanager
    def entered(self, name: str) -> Iterator[Builder]:
        """Build a stage where it is not built yet, and have it at `root`, where its paths are right."""
        self.build(name)
        self._stored(name).rename(self.root)
        try:
            yield self
        finally:
            self.root.rename(self._stored(name))

    def environment(self, name: str) -> dict[str, str]:
        """The variables of a process in a stage."""
        return _variables(self._environments[name])

    def here(self, text: str) -> str:
        """A text with the image's paths put below `root`."""
        return OURS.sub(f"{self.root}/", text)

    def command(self, target: str, *arguments: str) -> list[str]:
        """A target's ENTRYPOINT with other arguments than its CMD."""
        return [*json.loads(last(self.stages, target, "ENTRYPOINT")), *arguments]

    def _stored(self, name: str) -> Path:
        return self._folder / "stages" / name

    def _execute(self, instruction: str, value: str, environment: dict[str, str]) -> None:
        if instruction == "WORKDIR":
            environment["PWD"] = self.here(value)
            Path(environment["PWD"]).mkdir(parents=True, exist_ok=True)
        elif instruction == "ENV":
            for pair in shlex.split(value):
                key, _, text = pair.partition("=")
                environment[key] = self.here(text.replace("$PATH", environment["PATH"]))
        elif instruction == "COPY":
            self._copy(value, environment)
        elif instruction == "RUN":
            command = re.sub(r"--mount=\S+\s+", "", value)
            process = _variables(environment)
            subprocess.run(["sh", "-c", self.here(command)], env=process, cwd=environment["PWD"], check=True)
            self.ran.append(value)
        elif instruction not in METADATA | {"ARG"}:
            raise NotImplementedError(f"{instruction} {value}")

    def _copy(self, value: str, environment: dict[str, str]) -> None:
        parts = [part for part in shlex.split(value) if not part.startswith("--")]
        *sources, target = parts
        into = Path(self.here(target)) if target.startswith("/") else Path(environment["PWD"], target)
        stage = _from(value)
        for source in sources:
            if stage:
                _copy(self._stored(stage) / source.lstrip("/"), into)
            else:
                self._copy_context(Path(source), into, is_folder=target.endswith("/") or len(sources) > 1)

    def _copy_context(self, source: Path, into: Path, *, is_folder: bool) -> None:
        """A file goes into a folder or becomes it; a folder's contents go into it. Links are copied as files."""
        found = self._context / source
        files = [file for file in found.rglob("*") if file.is_file()] if found.is_dir() else [found]
        for file in files:
            if not self._ignored(file.relative_to(self._context)):
                inside = file.relative_to(found) if found.is_dir() else Path(file.name if is_folder else "")
                destination = into / inside
                destination.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, destination)


def _variables(environment: dict[str, str]) -> dict[str, str]:
    """An image's variables, and those of this machine that say where packages come from."""
    passed = {key: value for key, value in os.environ.items() if key in KEPT or key.startswith("PIP_")}
    npm = {"npm_config_userconfig": str(NPMRC)} if NPMRC.exists() else {}
    return {**passed, **npm, **environment}


def _from(value: str) -> str:
    found = re.search(r"--from=(\S+)", value)
    return found[1] if found else ""


def _copy(source: Path, into: Path) -> None:
    """Like COPY --from, with hard links: no stage writes into a file that another made."""
    shutil.copytree(source, into, symlinks=True, dirs_exist_ok=True, copy_function=_link)


def _link(source: str, into: str) -> None:
    Path(into).unlink(missing_ok=True)
    if Path(source).is_symlink():
        Path(into).symlink_to(Path(source).readlink())
    else:
        os.link(source, into)


def _base_python() -> str:
    return str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())
