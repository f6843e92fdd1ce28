"""``fedre-benchmark leaderboard``: a folder of claims as one page."""

from __future__ import annotations

import argparse
import webbrowser

from fedre_privacy.api import leaderboard
from fedre_privacy.core.units import human_bytes, plural
from fedre_privacy.publish.format import OTHERWISE, REPEATS, WITHIN
from fedre_privacy.publish.leaderboard import UNCHECKED

from ..output import Output


def run(options: argparse.Namespace, output: Output) -> int:
    """Write the page of a folder of claims; return the exit code."""
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
        webbrowser.open(path.resolve().as_uri())
    return 0
