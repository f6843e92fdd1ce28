"""``fedre-benchmark leaderboard``: a folder of claims as one page."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import shtab

from fedre_privacy.core.units import human_bytes, plural
from fedre_privacy.publish.names import OTHERWISE, REPEATS, WITHIN

from .browser import add_open_option, open_page
from .command import command
from .options import add_output_options
from .output import Output


def parser() -> argparse.ArgumentParser:
    """Make the option parser."""
    made = argparse.ArgumentParser(
        prog="fedre-benchmark leaderboard",
        allow_abbrev=False,
        description="Write one page of the claims and verifications in a folder: claimed beside "
        "re-attacked, with a flag for what did not repeat. It needs no server and no network.",
    )
    made.add_argument(
        "folder", type=Path, nargs="?", default=Path("claims"), metavar="FOLDER",
        help="holds claims and their verifications (default: claims)",
    ).complete = shtab.DIRECTORY  # type: ignore[attr-defined]  # fmt: skip
    made.add_argument(
        "--out", type=Path, metavar="FILE.html",
        help="where to write (default: leaderboard.html in FOLDER)",
    )  # fmt: skip
    add_open_option(made)
    add_output_options(made)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return command(parser(), run, argv, folder="folder")


def run(options: argparse.Namespace, output: Output) -> int:
    """Write the page of a folder of claims; return the exit code."""
    from fedre_privacy.api import leaderboard
    from fedre_privacy.publish.leaderboard import UNCHECKED

    path, board = leaderboard(options.folder, options.out)
    output.line(
        "Claims",
        f"{len(board.posted)} in {plural(len(board.questions()), 'table')}: "
        f"{board.count(REPEATS, WITHIN)} repeated, {board.count(OTHERWISE)} did not repeat, "
        f"{board.count(UNCHECKED)} not repeated yet",
    )
    for file, reason in list(board.refused.items())[:5]:
        output.line("Refused", f"{file} {reason}")
    if len(board.refused) > 5:
        output.line("Refused", f"and {len(board.refused) - 5} more")
    output.line("Page", f"{path} ({human_bytes(path.stat().st_size)})", wrap=False)
    output.final(path, {"path": str(path), "claims": len(board.posted),
                        "refused": dict(board.refused)})  # fmt: skip
    if options.open:
        open_page(path, output)
    return 0
