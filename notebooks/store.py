"""Run notebooks from top to bottom and keep what they show.

    pip install -e '.[notebooks]'
    python notebooks/store.py first_attack own_module     (none named: all)

A notebook runs in an empty folder, with the sizes that it says; with ``--quick`` with those of the
tests, which it then tells. It is stored only if no cell failed, warned or shows a path of this
machine.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import json
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

HERE = Path(__file__).parent
MOST = 500_000
"""Largest notebook (bytes)."""
PLACE = re.compile(r"(?<![\w.:/<])/(?:home|root|tmp|work|mnt|usr|var|opt|Users)\b|\b[A-Z]:\\\\")
"""The beginning of a path of a machine."""


def fingerprint(book: dict[str, Any]) -> str:
    """SHA-256 of the code of all cells: what the outputs were made by."""
    code = [cell["source"] for cell in book["cells"] if cell["cell_type"] == "code"]
    texts = [one if isinstance(one, str) else "".join(one) for one in code]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def shown(output: dict[str, Any]) -> str:
    """The text of an output, pictures left out."""
    texts = [output.get("text", "")]
    texts += [text for kind, text in output.get("data", {}).items() if kind.startswith("text/")]
    joined = "".join(one if isinstance(one, str) else "".join(one) for one in texts)
    return re.sub(r"base64,[A-Za-z0-9+/=]+", "", joined)


def problems(book: dict[str, Any]) -> list[str]:
    """What keeps a notebook that was run from being stored."""
    found = []
    for cell in book["cells"]:
        for output in cell.get("outputs", []):
            if output["output_type"] == "error":
                found.append(f"{cell['id']} failed: {output['ename']}: {output['evalue']}")
            elif output.get("name") == "stderr":
                found.append(f"{cell['id']} warned: {shown(output)[:300]}")
            elif PLACE.search(shown(output)):
                found.append(f"{cell['id']} shows a path: {shown(output)[:300]}")
    return found


def smaller(png: str) -> str:
    """A picture (base64) with 256 colours, which is enough for figures."""
    picture = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
    held = io.BytesIO()
    picture.quantize(256).save(held, format="png", optimize=True)
    return base64.b64encode(held.getvalue()).decode("ascii")


def run(path: Path, folder: Path) -> dict[str, Any]:
    """Run a notebook in a folder; return it with its outputs."""
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(folder)}}
    NotebookClient(book, timeout=None, resources=where, record_timing=False).execute()
    return json.loads(nbformat.writes(book))  # type: ignore[no-any-return]


def store(path: Path, book: dict[str, Any]) -> None:
    """Write a notebook that was run.

    Raises:
        SystemExit: it is not fit to be stored.
    """
    book["metadata"] = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "fedre": {"outputs_of": fingerprint(book)},
    }
    for cell in book["cells"]:
        cell["metadata"] = {}
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                output["data"]["image/png"] = smaller(output["data"]["image/png"])
    text = json.dumps(book, indent=1, ensure_ascii=False) + "\n"
    wrong = problems(book) + ([f"{len(text):,} bytes"] if len(text) > MOST else [])
    if wrong:
        raise SystemExit("\n".join([f"{path.name} is not stored:", *wrong]))
    path.write_text(text, encoding="utf-8")
    print(f"{path.name}: {len(text):,} bytes")


def main(argv: Sequence[str] | None = None) -> None:
    """Run and store the notebooks that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="notebooks, without .ipynb (default: all)")
    parser.add_argument("--quick", action="store_true", help="few small images, few steps")
    options = parser.parse_args(argv)
    names = options.names or sorted(path.stem for path in HERE.glob("*.ipynb"))
    os.environ["FEDRE_QUICK"] = "1" if options.quick else ""
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            store(HERE / f"{name}.ipynb", run(HERE / f"{name}.ipynb", Path(folder)))


if __name__ == "__main__":
    main()
