"""``fedre-view``: every result below a folder, as one page."""

from __future__ import annotations

import argparse
import webbrowser

from fedre_privacy.api import view
from fedre_privacy.core.units import human_bytes, plural
from fedre_privacy.viewing.entries import DAMAGED

from ..output import Output


def run(options: argparse.Namespace, output: Output) -> int:
    """Write the page of all results; return the exit code."""
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
        webbrowser.open(made.path.resolve().as_uri())
    return 0
