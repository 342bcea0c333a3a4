"""Imports run adapters -> serving -> prompts, never back; and what each file says of itself."""

import ast
from pathlib import Path

import pytest

from tests.conftest import ROOT

MAY_IMPORT = {"prompts": {"prompts"}, "serving": {"serving", "prompts"}, "adapters": {"adapters", "serving", "prompts"}}
FILES = [file for room in MAY_IMPORT for file in sorted((ROOT / room).rglob("*.py"))]


def imported_rooms(source: str) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
    return {name.partition(".")[0] for name in names} & {*MAY_IMPORT, "tests"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_file_imports_forward_only_and_says_what_it_is_for(file: Path) -> None:
    source = file.read_text(encoding="utf-8")
    room = file.relative_to(ROOT).parts[0]
    assert imported_rooms(source) <= MAY_IMPORT[room]
    assert ast.get_docstring(ast.parse(source)), "every module says what it knows"


def test_a_backward_import_would_be_seen() -> None:
    assert imported_rooms("def f():\n    from adapters.train import x\nimport serving.types") == {"adapters", "serving"}


@pytest.mark.parametrize("module", ["serving.api.app", "serving.cli"])
def test_the_api_needs_no_torch_where_the_engine_is_remote(module: str) -> None:
    import subprocess
    import sys

    code = f"import {module}, sys; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
