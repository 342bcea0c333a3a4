"""Skills from folders with a SKILL.md each, as agentskills.io lays them out.

Knows front matter and folders. Reads no more of a skill than its front matter: the rest is for who uses it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import anyio.to_thread
import yaml

from serving.catalog.entry import Server
from serving.catalog.sources.base import DEFAULT_LIMITS, Collector, Limits, Listing, Source, SourceError, candidate_id
from serving.types import Candidate

FILE_NAME = "SKILL.md"
# Front matter is a name and a paragraph.
FRONT_MATTER_BYTES = 64 * 2**10
# Folders below folders: `skills/team/skill/SKILL.md` and a little more.
DEPTH = 4
# What the specification allows.
_NAME = re.compile(r"(?!-)(?!.*--)[a-z0-9-]{1,64}(?<!-)")
_DESCRIPTION_CHARACTERS = 1_024


class SkillSource(Source):
    """A folder of skills, or one skill's folder.

    Args:
        name: of the server in the catalogue; by default the folder's name.
    """

    def __init__(self, folder: Path, *, name: str | None = None, limits: Limits = DEFAULT_LIMITS) -> None:
        self.name = name or folder.resolve().name
        self.record = {"kind": "skills", "path": str(folder.resolve())}
        self._folder = folder
        self._limits = limits

    async def read(self) -> list[Listing]:
        """Reads the front matter of every skill, in the order of their folders' names."""
        return await anyio.to_thread.run_sync(self._read)

    def _read(self) -> list[Listing]:
        if not self._folder.is_dir():
            raise SourceError(f"skills: {self._folder} is no folder; name one with a {FILE_NAME} in it or below it")
        collector = Collector(self.name, self._limits)
        for path in _skill_files(self._folder):
            shown = path.relative_to(self._folder)
            try:
                fields = _front_matter(path)
            except (OSError, ValueError, yaml.YAMLError) as error:
                collector.report(f"{shown}: {' '.join(str(error).split())[:200]}; it is left out")
                continue
            name, description = fields["name"], fields.get("description") or ""
            for fault in _faults(name, description, path.parent.name):
                collector.report(f"{shown}: {fault}")
            collector.add(Candidate(candidate_id(self.name, name), name, description, type="skill", server=self.name))
        return [collector.listing(Server(self.name, source=self.record))]


def _skill_files(folder: Path) -> list[Path]:
    """Every SKILL.md, without hidden folders, links and what lies inside of a skill."""
    found: list[Path] = []
    for root, folders, files in os.walk(folder):
        here = Path(root)
        folders.sort()
        if FILE_NAME in files:
            found.append(here / FILE_NAME)
            folders.clear()
        elif len(here.relative_to(folder).parts) >= DEPTH:
            folders.clear()
        folders[:] = [name for name in folders if not name.startswith(".")]
    return found


def _front_matter(path: Path) -> dict[str, Any]:
    """The YAML between the first two lines of `---`. Raises ValueError where there is none, or no name in it."""
    with path.open("rb") as file:
        text = file.read(FRONT_MATTER_BYTES).decode("utf-8-sig")
    lines = text.splitlines()
    if not lines or lines[0].rstrip() != "---":
        raise ValueError("has no front matter; begin it with a line of ---")
    end = next((i for i, line in enumerate(lines[1:], 1) if line.rstrip() == "---"), None)
    if end is None:
        raise ValueError(f"has no second line of --- in its first {FRONT_MATTER_BYTES:,} bytes")
    fields = yaml.safe_load("\n".join(lines[1:end]))
    if not isinstance(fields, dict) or not isinstance(fields.get("name"), str) or not fields["name"].strip():
        raise ValueError("has no `name` in its front matter")
    if not isinstance(fields.get("description", ""), str | None):
        raise ValueError("has a `description` that is no text")
    return fields


def _faults(name: str, description: str, folder: str) -> list[str]:
    """What a host that follows the specification would object to; the skill is taken all the same."""
    faults = []
    if not _NAME.fullmatch(name):
        faults.append(f"the name {name[:80]!r} should be up to 64 small letters, digits and single hyphens")
    elif name != folder:
        faults.append(f"the name {name!r} should be its folder's, {folder!r}")
    if not description.strip():
        faults.append("has no description, by which it could be found")
    elif len(description) > _DESCRIPTION_CHARACTERS:
        faults.append(f"has a description of {len(description):,} characters; hosts take {_DESCRIPTION_CHARACTERS:,}")
    return faults
