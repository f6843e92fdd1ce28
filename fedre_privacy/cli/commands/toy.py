"""``fedre-benchmark --toy``: the plane of FedRE's Figure 2, over many seeds."""

from __future__ import annotations

import argparse

from fedre_privacy.core.config import build, parse_assignments
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.reproduction.toy import ToySettings, run_toy, write_toy

from ..output import Output


def run(options: argparse.Namespace, output: Output) -> int:
    """Train on points in the plane, and print and draw the means; return the exit code."""
    problems: list[str] = []
    settings = build(ToySettings, parse_assignments(options.assign), at="toy", problems=problems)
    if settings is None:
        raise ConfigError(*problems, next_step="See docs/toy.md for every setting.")
    result = run_toy(settings)
    written = write_toy(result, options.out)
    for frame in (result.means, result.differences):
        rows = [
            {str(k): f"{v:.3f}" if isinstance(v, float) else str(v) for k, v in row.items()}
            for row in frame.to_dict("records")
        ]
        output.table(rows)
        output.text()
    output.line("Files", ", ".join(path.name for path in written) + f" in {options.out}")
    output.final(options.out, {"means": result.means.to_dict("records")})
    return 0
