"""``fedre-benchmark claim``: a finished attack as a small file that others can repeat."""

from __future__ import annotations

import argparse

from fedre_privacy.api import claim
from fedre_privacy.core.units import human_bytes, plural

from ..output import Output


def run(options: argparse.Namespace, output: Output) -> int:
    """Write the claims of finished attacks; return the exit code."""
    written = claim(options.folder, options.out, runs=options.runs_dir, by=options.by)
    for path in written:
        output.line("Claim", f"{path} ({human_bytes(path.stat().st_size)})", wrap=False)
    output.line(
        "Note",
        f"{plural(len(written), 'file')} to share; the training images are in none of them. A "
        "hash in each finds careless edits, and is no signature.",
    )
    output.line("Next", f"fedre-benchmark verify {written[0]}", wrap=False)
    path = written[0] if len(written) == 1 else written[0].parent
    output.final(path, {"claims": [str(path) for path in written]})
    return 0
