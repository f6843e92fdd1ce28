"""``fedre-train curves``: the accuracy of several recorded trainings in one figure."""

from __future__ import annotations

import argparse

from fedre_privacy.core.registry import import_plugins
from fedre_privacy.pages.run_curves import compare
from fedre_privacy.runs.run import find_run

from ..output import Output


def run(options: argparse.Namespace, output: Output) -> int:
    """Draw the accuracy of recorded trainings; return the exit code."""
    import_plugins(options.plugin)
    runs = [find_run(given, options.runs_dir) for given in options.run]
    found = compare(runs, options.moment)
    out = options.out.with_suffix("") if options.out.suffix in (".png", ".pdf") else options.out
    written = found.draw(out, across=options.over, target=options.target, title=options.title)
    output.table(found.table(options.target))
    output.line("Figure", str(written[0]), wrap=False)
    output.final(written[0], {"table": found.table(options.target), "files": written})
    return 0
