"""``fedre-benchmark claim``: a finished attack as a small file that others can repeat."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import shtab

from fedre_privacy.core.registry import import_plugins
from fedre_privacy.core.units import human_bytes, plural

from .command import command
from .options import add_output_options, add_plugin_option
from .output import Output


def parser() -> argparse.ArgumentParser:
    """Make the option parser."""
    made = argparse.ArgumentParser(
        prog="fedre-benchmark claim",
        allow_abbrev=False,
        description="Write what a finished attack found into a small JSON file: measures beside "
        "their floors, all settings, seeds, versions, hashes, the command. Others repeat it with "
        "fedre-benchmark verify FILE.",
    )
    made.add_argument(
        "folder", type=Path, metavar="FOLDER",
        help="of an attack (RUN/attacks/NAME), of a run or of a benchmark (all their attacks)",
    ).complete = shtab.DIRECTORY  # type: ignore[attr-defined]  # fmt: skip
    made.add_argument(
        "--out", type=Path, default=Path("claims"), metavar="FILE.json|DIR",
        help="where to write: a file for one claim, or a folder (default: claims)",
    )  # fmt: skip
    made.add_argument("--by", default="", metavar="NAME", help="who claims it")
    made.add_argument(
        "--runs-dir", type=Path, default=Path("runs"), metavar="DIR",
        help="folder of the run folders of a benchmark (default: runs)",
    )  # fmt: skip
    add_plugin_option(made)
    add_output_options(made)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return command(parser(), run, argv)


def run(options: argparse.Namespace, output: Output) -> int:
    """Write the claims of finished attacks; return the exit code."""
    from fedre_privacy.api import claim

    import_plugins(options.plugin)
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
