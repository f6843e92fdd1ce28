"""``fedre-benchmark verify``: repeat what somebody claims, and print claimed beside repeated."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import shtab

from fedre_privacy.core.options import Constant
from fedre_privacy.core.registry import import_plugins

from .command import command
from .index import loaded
from .options import add_output_options, add_plugin_option
from .output import Output


def parser() -> argparse.ArgumentParser:
    """Make the option parser."""
    parts = loaded(Constant("fedre_privacy.publish.format:PARTS"))
    tolerance = loaded(Constant("fedre_privacy.publish.comparing:TOLERANCE"))
    again = loaded(Constant("fedre_privacy.publish.repeating:AGAIN"))
    made = argparse.ArgumentParser(
        prog="fedre-benchmark verify",
        allow_abbrev=False,
        description="Repeat what a claim's file says: train and attack again by its settings, or "
        "with --run only what is asked for. Prints claimed beside repeated and writes the outcome "
        "into a small file. Exit code 0: it repeats; 8: it does not.",
    )
    made.add_argument(
        "claim", type=Path, metavar="FILE", help="a claim, as fedre-benchmark claim writes it"
    ).complete = shtab.FILE  # type: ignore[attr-defined]
    made.add_argument(
        "--run", type=Path, metavar="RUN",
        help="the run that was attacked, if you have its folder: it is attacked again, not trained",
    ).complete = shtab.DIRECTORY  # type: ignore[attr-defined]  # fmt: skip
    made.add_argument(
        "--repeat", choices=parts, metavar="PART",
        help="split (train with the images shared out anew, and attack), training (with the same "
        "split, and attack), attack, or scores of the answers that lie in RUN (default: split; "
        "with --run, attack)",
    )  # fmt: skip
    made.add_argument(
        "--tolerance", type=float, default=tolerance, metavar="SHARE",
        help="by how much numbers may differ on another machine, as a share of the half-width of "
        f"their interval (default: {tolerance:g})",
    )  # fmt: skip
    made.add_argument(
        "--data-dir",
        type=Path,
        metavar="PATH",
        help="file or folder of the data set, if it has one",
    )
    made.add_argument(
        "--runs-dir", type=Path, default=again, metavar="DIR",
        help=f"folder for what is made (default: {again})",
    )  # fmt: skip
    made.add_argument(
        "--out", type=Path, metavar="FILE.json",
        help="where to write the verification (default: beside FILE)",
    )  # fmt: skip
    made.add_argument("--by", default="", metavar="NAME", help="who repeats it")
    made.add_argument("--device", default="auto", metavar="D", help="auto, cpu, cuda or cuda:N")
    made.add_argument(
        "--dry-run", action="store_true",
        help="check the file, say what would be done, measure one step of it, and stop",
    )  # fmt: skip
    add_plugin_option(made)
    add_output_options(made)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return command(parser(), _run, argv)


def _run(options: argparse.Namespace, output: Output) -> int:
    import_plugins(options.plugin)
    from .commands import repeat

    return repeat.run(options, output)
