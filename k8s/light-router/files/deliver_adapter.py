"""Puts a LoRA adapter into a folder: `deliver_adapter.py SOURCE SHA256 TARGET NAME`, with nothing but Python.

SOURCE is the URL or the path of a .tar.gz that holds the adapter's files, at its top or in one folder. Nothing of it
is unpacked before the digest of the whole archive is right; TARGET/NAME appears whole or not at all.
"""

import hashlib
import shutil
import sys
import tarfile
import tempfile
import urllib.request
from pathlib import Path

TIMEOUT_S = 60
NEEDED = ("adapter_config.json",)


def deliver(source: str, sha256: str, target: Path, name: str) -> None:
    """Raises SystemExit, with what was wrong, where the archive is not what was promised."""
    adapter = target / name
    if adapter.exists():  # the pod's volume outlives a container that is started again
        return
    with tempfile.TemporaryDirectory(dir=target) as scratch:
        archive, unpacked = Path(scratch, "archive"), Path(scratch, "unpacked")
        url = source if "://" in source else Path(source).resolve().as_uri()
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as reading, archive.open("wb") as writing:  # noqa: S310
            shutil.copyfileobj(reading, writing)
        with archive.open("rb") as written:
            digest = hashlib.file_digest(written, "sha256").hexdigest()
        if digest != sha256:
            raise SystemExit(f"{source} has sha256 {digest}, but adapter.sha256 is {sha256}: nothing was unpacked")
        with tarfile.open(archive, "r:gz") as packed:
            packed.extractall(unpacked, filter="data")
        inside = list(unpacked.iterdir())
        folder = inside[0] if len(inside) == 1 and inside[0].is_dir() else unpacked
        missing = [file for file in NEEDED if not (folder / file).is_file()]
        if missing:
            raise SystemExit(f"{source} is no LoRA adapter: it holds no {', '.join(missing)}")
        folder.rename(adapter)


if __name__ == "__main__":
    deliver(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4])
