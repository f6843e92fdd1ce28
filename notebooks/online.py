"""Write into every notebook where it runs online, and into pages what to clone.

    python notebooks/online.py

The address is `repository-code` in CITATION.cff, the one place that names it: a repository on
GitHub, from which Colab opens notebooks. Calling again after it has changed writes the new one.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

HERE = Path(__file__).resolve().parent
CITATION = HERE.parent / "CITATION.cff"
GITHUB = re.compile(r"https://github\.com/([\w.-]+/[\w.-]+?)(?:\.git)?/?")
MARK = "[Run it online]("
"""How the line begins that a notebook's first cell ends with."""

PAGES = ("README.md", "docs/installation.md")
CLONE = re.compile(r"(?<=git clone )(?:<address of the repository>|https://github\.com/\S+)")
"""What pages name to be cloned."""


def address(citation: Path = CITATION) -> str:
    """Owner and name of the repository, as ``owner/name``.

    Raises:
        ValueError: the file names no repository on GitHub.
    """
    given = yaml.safe_load(citation.read_text(encoding="utf-8")).get("repository-code")
    found = GITHUB.fullmatch(str(given or ""))
    if found is None:
        raise ValueError(
            f"'repository-code' in {citation.name} is {given!r}; a notebook runs online from "
            "https://github.com/OWNER/NAME. Set it, and give the command again."
        )
    return found[1]


def with_link(text: str, name: str, repository: str) -> str:
    """A notebook with the line at the end of its first cell, in place of an earlier one.

    Args:
        text: the notebook as JSON. name: of its file.

    Raises:
        ValueError: its first cell is no text.
    """
    book = json.loads(text)
    first = book["cells"][0]
    if first["cell_type"] != "markdown":
        raise ValueError(f"{name} begins with code; the line belongs into a text cell.")
    source = first["source"]
    prose = (source if isinstance(source, str) else "".join(source)).split(f"\n\n{MARK}")[0]
    colab = f"https://colab.research.google.com/github/{repository}/blob/main/notebooks/{name}"
    line = f"{MARK}{colab}): first `%pip install git+https://github.com/{repository}`."
    first["source"] = f"{prose}\n\n{line}".splitlines(keepends=True)
    return json.dumps(book, indent=1, ensure_ascii=False) + "\n"


def main(arguments: Sequence[str] = ()) -> int:
    """Write all notebooks of this folder and the pages; 2 where the address is not known."""
    if arguments:
        print(__doc__)
        return 0 if list(arguments) in (["-h"], ["--help"]) else 2
    try:
        repository = address()
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    for path in sorted(HERE.glob("*.ipynb")):
        path.write_text(with_link(path.read_text("utf-8"), path.name, repository), "utf-8")
        print(path.name)
    for path in (HERE.parent / name for name in PAGES):
        text = CLONE.sub(f"https://github.com/{repository}", path.read_text("utf-8"))
        path.write_text(text, "utf-8")
        print(path.name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
