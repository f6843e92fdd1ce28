"""``fedre-attack verify``: is a run's folder what was recorded?"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from fedre_privacy.api import verify
from fedre_privacy.core.errors import DamagedInputError
from fedre_privacy.core.units import plural
from fedre_privacy.runs.run import find_run

from ..output import Output


def run(options: argparse.Namespace, output: Output) -> int:
    """Check a folder against what was recorded; return the exit code."""
    given = Path(options.run)
    folder = given if given.is_dir() else find_run(given, options.runs_dir).folder
    found = verify(folder, accept=options.accept, expect=options.expect)
    bad = found.bad()
    output.line("Run", str(folder), wrap=False)
    output.line("Manifest", found.sha256 or "none", wrap=False)
    output.line(
        "Files", f"{len(found.findings) - len(bad)} of {plural(len(found.findings), 'file')} are "
        "as they were recorded" if bad else f"all {len(found.findings)} are as they were recorded",
    )  # fmt: skip
    output.table(found.table(everything=options.all))
    output.event(
        "verify",
        {"folder": folder, "manifest": found.sha256, "files": [asdict(f) for f in found.findings]},
    )
    if bad:
        raise DamagedInputError(
            f"{plural(len(bad), 'file')} of {folder} "
            f"{'is' if len(bad) == 1 else 'are'} not as recorded, the first {bad[0].file}: "
            f"{bad[0].state}.",
            next_step=found.next_step,
        )
    output.final(folder, {"manifest": found.sha256, "files": len(found.findings), "bad": 0})
    return 0
