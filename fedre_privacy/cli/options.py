"""Options that the commands share, and how they become settings."""

from __future__ import annotations

import argparse
from pathlib import Path

import shtab

from fedre_privacy import __version__


def add_training_options(parser: argparse.ArgumentParser) -> None:
    """Everything that decides a training run."""
    group = parser.add_argument_group("training")
    group.add_argument("--protocol", metavar="P", help="what clients upload (default: fedre)")
    group.add_argument(
        "--dataset",
        metavar="D[:PATH]",
        help="digits, photos (both built in), npz:FILE, imagefolder:DIR, tinyimagenet, cifar10, "
        "cifar100, mnist, fashion-mnist (default: digits)",
    )
    group.add_argument(
        "--data-dir", metavar="DIR", help="where the data set's files are"
    ).complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    group.add_argument(
        "--partition",
        metavar="NAME[:VALUE]",
        help="pra:ALPHA (Dirichlet), pat:CLASSES, classes:CLASSES (random ones), "
        "longtail:IMBALANCE, iid (default: pra:0.1)",
    )
    group.add_argument(
        "--models",
        metavar="M",
        help="architecture, family (het10, cnn5, ...) or comma list (default: cnn4)",
    )
    group.add_argument(
        "--scheme",
        metavar="S",
        help="entanglement scheme of fedre, a name or module:Class (default: rap)",
    )
    group.add_argument(
        "--defense",
        action="append",
        default=[],
        metavar="NAME[:KEY=VALUE,...]",
        help="what clients do to their training or uploads, e.g. gaussian:clip=1,epsilon=8; "
        "repeatable, applied in order",
    )
    group.add_argument(
        "--steering",
        action="append",
        default=[],
        metavar="NAME[:KEY=VALUE,...]",
        help="what a malicious server does, e.g. null-head:rounds=1; repeatable, applied in order "
        "(default: the server is honest)",
    )
    group.add_argument("--clients", type=int, metavar="N", help="number of clients (default: 10)")
    group.add_argument("--rounds", type=int, metavar="T", help="rounds (default: 20)")
    group.add_argument("--seed", type=int, metavar="N", help="seed of the training (default: 0)")
    group.add_argument(
        "--secret",
        metavar="new|FILE",
        help="what the split and all hidden draws follow from, so that nobody who guesses the seed "
        "can repeat them: 128 new bits, kept in the run's private/secret, or those of a file "
        "(default: the seed)",
    )
    group.add_argument(
        "--no-truth", action="store_true", help="do not keep what is needed to score attacks"
    )


def add_plugin_option(group: argparse._ActionsContainer) -> None:
    """Which modules of one's own the names in files may lead to."""
    group.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="MODULE",
        help="import a module of your own, so that names in files (runs, --config, sweeps) may "
        "lead to its parts; repeatable",
    )


def add_settings_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Where settings come from, where runs go, and on which device."""
    group = parser.add_argument_group("running")
    group.add_argument(
        "--preset",
        action="append",
        default=[],
        metavar="NAME|list",
        help="named settings, such as those of a published table; repeatable, later ones win, "
        "--config and options win over all",
    )
    group.add_argument(
        "--config", type=Path, metavar="FILE", help="settings in YAML; options win"
    ).complete = shtab.FILE  # type: ignore[attr-defined]
    add_plugin_option(group)
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="assign",
        help="any setting, e.g. attack.steps=500; see --explain",
    )
    group.add_argument(
        "--runs-dir",
        type=Path,
        default=Path("runs"),
        metavar="DIR",
        help="folder of run folders (default: runs)",
    )
    group.add_argument(
        "--device", default="auto", metavar="D", help="auto, cpu, cuda or cuda:N (default: auto)"
    )
    shtab.add_argument_to(
        parser, "--print-completion", help="print a completion script of a shell, and stop"
    )
    return group


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """What is printed, and what only tells of the command itself."""
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print one JSON object per event")
    output.add_argument("--quiet", action="store_true", help="print the final path only")
    parser.add_argument(
        "--version", action="version", version=f"%(prog)s, fedre-privacy {__version__}"
    )


def add_common_options(parser: argparse.ArgumentParser, *, restart: str) -> None:
    """How to run and what to print.

    Args:
        restart: what ``--restart`` does, for the help.
    """
    group = add_settings_options(parser)
    group.add_argument("--resume", action="store_true", help="go on with what was interrupted")
    group.add_argument("--restart", action="store_true", help=restart)
    group.add_argument(
        "--dry-run",
        action="store_true",
        help="all checks and one step of each loop; writes nothing",
    )
    group.add_argument(
        "--explain",
        action="store_true",
        help="describe the chosen parts and their settings, and stop",
    )
    add_output_options(parser)


def add_foreign_options(parser: argparse.ArgumentParser) -> None:
    """Options for uploads that another system recorded."""
    group = parser.add_argument_group("uploads of another system (docs/artifact_format.md)")
    group.add_argument("--uploads", type=Path, metavar="PATH", help="folder, index.json or file")
    group.add_argument("--extractor", metavar="PKG:FN", help="function that returns an nn.Module")
    group.add_argument("--weights", type=Path, metavar="FILE", help="safetensors of its state")
    group.add_argument(
        "--network", metavar="PKG:FN", help="the whole model's function, for gradients and updates"
    )
    group.add_argument("--image-shape", metavar="CxHxW", help="size of the images, e.g. 3x32x32")
    group.add_argument("--classes", type=int, metavar="N", help="classes (default: as uploaded)")
    group.add_argument("--aux", metavar="npz:FILE", help="public images (and labels)")
    group.add_argument("--truth", metavar="npz:FILE", help="true images, to score (needs --aux)")
