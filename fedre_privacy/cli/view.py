"""``fedre-view``: every result below a folder, as one page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import shtab

from fedre_privacy.core.units import human_bytes, plural

from .browser import add_open_option, open_page
from .command import command
from .options import add_output_options
from .output import Output


class _StoreIfGiven(argparse.Action):
    """Store a word where there is one; argparse stores the default of one that is absent."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any,
        option_string: str | None = None,
    ) -> None:  # fmt: skip
        if values is not None:
            setattr(namespace, self.dest, values)


def parser() -> argparse.ArgumentParser:
    """Make the option parser."""
    made = argparse.ArgumentParser(
        prog="fedre-view",
        allow_abbrev=False,
        description="Write one page that shows every run, attack, audit and benchmark below a "
        "folder: to search, filter, look at and compare target by target. It needs no server and "
        "no network. Give the command again and reload to see what has come since.",
    )
    made.add_argument(
        "--runs-dir", dest="runs", type=Path, default=Path("runs"), metavar="DIR",
        help="the same as RUNS, by the option that other commands have",
    ).complete = shtab.DIRECTORY  # type: ignore[attr-defined]  # fmt: skip
    made.add_argument(
        "runs", nargs="?", type=Path, action=_StoreIfGiven, metavar="RUNS",
        help="folder of runs, or of folders of runs (default: runs)",
    ).complete = shtab.DIRECTORY  # type: ignore[attr-defined]  # fmt: skip
    made.add_argument(
        "--out", type=Path, metavar="FILE.html|DIR",
        help="where to write: one file, or a folder with the pictures beside the page (default: "
        "view.html in RUNS, or the folder view there where pictures exceed 64 MiB)",
    )  # fmt: skip
    made.add_argument(
        "--without-truth", action="store_true",
        help="leave out what is private: training images, members, counts of classes",
    )  # fmt: skip
    add_open_option(made)
    shtab.add_argument_to(
        made, "--print-completion", help="print a completion script of a shell, and stop"
    )
    add_output_options(made)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return command(parser(), run, argv, folder="runs")


def run(options: argparse.Namespace, output: Output) -> int:
    """Write the page of all results; return the exit code."""
    from fedre_privacy.api import view
    from fedre_privacy.reports.viewer.entries import DAMAGED

    made = view(options.runs, options.out, truth=not options.without_truth)
    counts = made.counts()
    bad = counts.pop(DAMAGED, 0)
    nouns = {"membership": "membership game"}
    output.line("Shown", ", ".join(plural(n, nouns.get(kind, kind)) for kind, n in counts.items()))
    for entry in [one for one in made.entries if one.status == DAMAGED][:5]:
        output.line("Damaged", f"{entry.path}: {entry.problem}")
    if bad > 5:
        output.line("Damaged", f"and {bad - 5} more")
    output.line(
        "Truth",
        "PRIVATE: the page holds training images; --without-truth leaves them out"
        if made.truth
        else "left out; what a strong attack recovered may show it all the same",
    )
    output.line("Page", f"{made.path} ({human_bytes(made.path.stat().st_size)})", wrap=False)
    output.final(
        made.path,
        {"path": str(made.path), "shown": counts, "damaged": bad, "truth": made.truth},
    )
    if options.open:
        open_page(made.path, output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
