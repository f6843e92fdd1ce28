"""``fedre-train``: train a federation and record everything it exchanges."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from fedre_privacy.core.engines import IN_PROCESS, training_engines
from fedre_privacy.core.registry import import_plugins

from . import curves
from .options import add_common_options, add_training_options
from .output import Output, command


def parser() -> argparse.ArgumentParser:
    """Make the option parser."""
    made = argparse.ArgumentParser(
        prog="fedre-train",
        usage="fedre-train [options]\n       fedre-train curves RUN [RUN ...] [--out FILE]",
        allow_abbrev=False,
        description="Train a federation and record every upload and broadcast in a run folder.",
    )
    add_training_options(made)
    made.add_argument(
        "--engine",
        choices=list(training_engines()),
        default=IN_PROCESS,
        help="where clients are: in this process, each in its own on a Flower federation that "
        "is started on this machine, or in Flower's simulation; the run is the same "
        f"(default: {IN_PROCESS})",
    )
    add_common_options(made, restart="remove the run of these settings and train it anew")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    given = sys.argv[1:] if argv is None else list(argv)
    if given[:1] == ["curves"]:
        return curves.main(given[1:])
    return command(parser(), _run, given)


def _run(options: argparse.Namespace, output: Output) -> int:
    from . import lists

    import_plugins(options.plugin)
    if "list" in options.preset:
        return lists.list_presets(output)
    from .commands import train

    return train.run(options, output)


if __name__ == "__main__":
    sys.exit(main())
