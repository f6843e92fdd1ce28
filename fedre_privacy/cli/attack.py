"""``fedre-attack``: what do the uploads give away?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from fedre_privacy.core.declared import declared
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.registry import import_plugins

from . import verify
from .options import (
    add_common_options,
    add_foreign_options,
    add_training_options,
)
from .output import Output, command


def parser() -> argparse.ArgumentParser:
    """Make the option parser."""
    targets = declared("fedre_privacy.runs.settings", "TARGETS")
    made = argparse.ArgumentParser(
        prog="fedre-attack",
        usage="fedre-attack [RUN | --uploads PATH] [options]\n"
        "       fedre-attack list [--for RUN] | verify RUN [options]",
        allow_abbrev=False,
        description="Attack what a protocol uploads: train (or reuse the identical run), attack, "
        "score against floors, draw.",
        epilog="fedre-attack list [--for RUN] shows what can attack what; fedre-attack verify RUN "
        "checks that a folder is what was recorded.",
    )
    made.add_argument(
        "run",
        nargs="?",
        metavar="RUN|list",
        help="a recorded run's folder, or its name in --runs-dir; without it, one is trained",
    )
    group = made.add_argument_group("attack")
    group.add_argument(
        "--target",
        metavar="K",
        help=f"{', '.join(targets)} (default: uploaded, what the protocol really sends)",
    )
    group.add_argument(
        "--attack",
        metavar="A",
        help="attack to run (default: the usual one for the target or the upload; dip for "
        "representations)",
    )
    group.add_argument("--threat", metavar="T", help="threat model (default: fedre-paper)")
    group.add_argument(
        "--attacker",
        choices=declared("fedre_privacy.runs.settings", "ATTACKERS"),
        help="whether the attack knows the run's defences (default: adaptive, it does)",
    )
    group.add_argument("--targets", type=int, metavar="N", help="targets at most (default: 24)")
    group.add_argument("--round", type=int, metavar="R", help="round to attack (default: last)")
    group.add_argument("--metrics", metavar="M,N", help="metrics (default: psnr,ssim,mse255)")
    group.add_argument(
        "--isolation",
        choices=declared("fedre_privacy.sealed.door", "ISOLATION"),
        default=declared("fedre_privacy.sealed.door", "AUTO"),
        help="how far the attack is kept from the run: strict (a process in a sandbox, which opens "
        "nothing of the run; needs bubblewrap), process, same-process (default: the strictest that "
        "works here)",
    )
    group.add_argument(
        "-v", "--verbose", action="store_true", help="print every metric, and the manifest's hash"
    )
    group.add_argument(
        "--open", action="store_true", help="open the report in a browser when the attack is done"
    )
    group.add_argument("--for", dest="listed", metavar="RUN", help="with list: a run")
    add_foreign_options(made)
    add_training_options(made)
    add_common_options(
        made, restart="remove the identical attack (and unfinished training) and begin anew"
    )
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    given = sys.argv[1:] if argv is None else list(argv)
    if given[:1] == ["verify"]:
        return verify.main(given[1:])
    return command(parser(), _run, given)


def _chosen(options: argparse.Namespace) -> bool:
    """Whether anything is given that a list of all parts checks or leaves out."""
    usual = vars(parser().parse_args(["list", *(["--json"] if options.json else [])]))
    return vars(options) != {**usual, "quiet": options.quiet}


def _run(options: argparse.Namespace, output: Output) -> int:
    from . import lists

    import_plugins(options.plugin)
    if options.run != "list" and options.listed is not None:
        raise ConfigError(
            f"--for {options.listed} goes with list: fedre-attack list --for {options.listed}.",
            next_step=f"To attack that run: fedre-attack {options.listed}.",
        )
    if "list" in options.preset:
        return lists.list_presets(output)
    if options.run == "list" and not _chosen(options):
        return lists.list_all(output)
    from .commands import attack

    return attack.run(options, output)


if __name__ == "__main__":
    sys.exit(main())
