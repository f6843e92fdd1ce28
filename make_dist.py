"""Build wheel and sdist of a commit, the same bytes whoever builds them, and print their SHA-256.

Usage: python make_dist.py [OUT]   (default: dist)

Files are those of the commit, dated by it. Nothing is downloaded: setuptools 77 or newer has to be
installed, and the same version gives the same bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent
BACKEND = (
    "import os, sys; os.umask(0o022); out = sys.argv[1]; from setuptools import build_meta; "
    "build_meta.build_wheel(out); build_meta.build_sdist(out)"
)


def build(source: Path, out: Path, epoch: int) -> dict[str, str]:
    """Build both from a clean copy of the sources; return SHA-256 by file name.

    Args:
        source: a folder that holds the files of a commit and nothing else; it is written into.
        epoch: time of all files (seconds).

    Raises:
        subprocess.CalledProcessError: setuptools refused, with what it said on stderr.
    """
    out.mkdir(parents=True, exist_ok=True)
    for path in source.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "PYTHONHASHSEED": "0"}
    subprocess.run(
        [sys.executable, "-c", BACKEND, str(out.resolve())],
        cwd=source, env=environment, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    (sdist,) = out.glob("*.tar.gz")
    sdist.write_bytes(same_bytes(sdist.read_bytes(), epoch))
    made = [*out.glob("*.whl"), sdist]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in made}


def same_bytes(archive: bytes, epoch: int) -> bytes:
    """The files of a .tar.gz in order of their names, of one time, owner and mode.

    setuptools dates the folders and the archive by the clock.
    """
    packed = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive)) as given,
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=epoch) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as sorted_,
    ):
        for member in sorted(given.getmembers(), key=lambda one: one.name):
            own = tarfile.TarInfo(member.name)
            own.type, own.size, own.mtime = member.type, member.size, epoch
            own.mode = 0o755 if member.isdir() else 0o644
            sorted_.addfile(own, given.extractfile(member) if member.isfile() else None)
    return packed.getvalue()


def main() -> None:
    """Build the commit that is checked out."""
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "dist")
    told = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    epoch = int(subprocess.run(told, check=True, capture_output=True, text=True).stdout)
    with tempfile.TemporaryDirectory() as folder:
        packed = subprocess.run(
            ["git", "-C", str(ROOT), "archive", "HEAD"], check=True, capture_output=True
        ).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
        for name, digest in build(Path(folder), out, epoch).items():
            print(f"{digest}  {name}")


if __name__ == "__main__":
    main()
