"""``fedre-attack verify``: is a run's folder what was recorded?"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from fedre_privacy.core.errors import DamagedInputError
from fedre_privacy.core.units import plural

from .command import command
from .options import add_output_options
from .output import Output


def parser() -> argparse.ArgumentParser:
    """Make the option parser."""
    made = argparse.ArgumentParser(
        prog="fedre-attack verify",
        allow_abbrev=False,
        description="Check every file of a run and of its attacks against the hashes that were "
        "recorded with them. Exit code 0: all are as recorded; 4: not all are.",
    )
    made.add_argument("run", metavar="RUN", help="a run's folder, or its name in --runs-dir")
    made.add_argument("--runs-dir", type=Path, default=Path("runs"), metavar="DIR")
    made.add_argument(
        "--expect", metavar="SHA256", help="the SHA-256 of the run's manifest that was published"
    )
    made.add_argument(
        "--accept", action="store_true", help="cover the folder as it is now, if you trust it"
    )
    made.add_argument("--all", action="store_true", help="list unchanged files too")
    add_output_options(made)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return command(parser(), run, argv)


def run(options: argparse.Namespace, output: Output) -> int:
    """Check a folder against what was recorded; return the exit code."""
    from fedre_privacy.api import verify
    from fedre_privacy.runs.run import find_run

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
