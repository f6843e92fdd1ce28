"""``--open``: show the page that a command wrote."""

from __future__ import annotations

import argparse
import webbrowser
from pathlib import Path

from .output import Output


def add_open_option(group: argparse._ActionsContainer) -> None:
    """Add ``--open`` to a command that writes a page."""
    group.add_argument(
        "--open", action="store_true", help="open the page in a browser when it is written"
    )


def open_page(page: Path, output: Output) -> None:
    """Open a page in a browser, or say that there is none."""
    if not webbrowser.open(page.resolve().as_uri()):
        output.line("Note", f"no browser was found to open {page.resolve()}", wrap=False)
