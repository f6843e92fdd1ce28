"""``fedre-attack``: what do the uploads give away?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from fedre_privacy.core.config import load_yaml, merge
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.units import human_seconds
from fedre_privacy.pipeline.attack import AttackResult, attack, check_fit
from fedre_privacy.pipeline.rehearse import rehearse
from fedre_privacy.pipeline.runs import Run
from fedre_privacy.pipeline.settings import (
    TARGETS,
    AttackSettings,
    TrainSettings,
    check_sections,
    resolve_attack,
    resolve_training,
)
from fedre_privacy.pipeline.train import train

from .explain import explain, list_all, list_for
from .options import add_common_options, add_training_options, choose_device, gather
from .output import Output, guarded, print_table
from .train import print_run


def parser() -> argparse.ArgumentParser:
    """Make the option parser."""
    made = argparse.ArgumentParser(
        prog="fedre-attack",
        description="Attack what a protocol uploads: train (or reuse the identical run), attack, "
        "score against floors, draw.",
        epilog="fedre-attack list [--for RUN] shows what can attack what.",
    )
    made.add_argument(
        "run",
        nargs="?",
        metavar="RUN|list",
        help="a recorded run's folder; without it, one is trained",
    )
    group = made.add_argument_group("attack")
    group.add_argument(
        "--target",
        metavar="K",
        help=f"{', '.join(TARGETS)} (default: uploaded, what the protocol really sends)",
    )
    group.add_argument("--attack", metavar="A", help="attack to run (default: dip)")
    group.add_argument("--threat", metavar="T", help="threat model (default: fedre-paper)")
    group.add_argument("--targets", type=int, metavar="N", help="targets at most (default: 24)")
    group.add_argument("--round", type=int, metavar="R", help="round to attack (default: last)")
    group.add_argument("--metrics", metavar="M,N", help="metrics (default: psnr,ssim,mse255)")
    group.add_argument("--for", type=Path, dest="listed", metavar="RUN", help="with list: a run")
    add_training_options(made)
    add_common_options(made)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    options = parser().parse_args(argv)
    output = Output(as_json=options.json, quiet=options.quiet)
    return guarded(lambda out: _run(options, out), output, lambda: options.runs_dir / "log.txt")


def _run(options: argparse.Namespace, output: Output) -> int:
    if options.run == "list":
        if options.listed is None:
            list_all(output)
        else:
            list_for(Run(options.listed), options.threat or "fedre-paper", output)
        return 0
    recorded = Run(Path(options.run)) if options.run else None
    values, where = gather(options)
    values = merge(values, _attack_values(options))
    if recorded is not None:
        _refuse_training_options(options)
        loaded = load_yaml(recorded.folder / "config.yaml")
        values = {**values, **loaded.values}
    problems: list[str] = []
    check_sections(values, where, problems)
    training = recorded.settings if recorded else resolve_training(values, where, problems)
    settings = resolve_attack(values, where, problems)
    if problems or training is None or settings is None:
        raise ConfigError(*problems, next_step="See fedre-attack --explain for every setting.")
    if options.explain:
        explain([settings.attack, training.protocol], training, output)
        return 0
    device = choose_device(options.device)
    if options.dry_run:
        plan = rehearse(recorded or training, settings, device)
        for heading, text in plan.lines.items():
            output.line(heading, text)
        return 0
    run = recorded or _trained(training, settings, options, device, output)
    print_run(run, output)
    fitted = resolve_attack(values, where, problems, image_shape=run.image_shape)
    if fitted is None:
        raise ConfigError(*problems)
    result = attack(
        run,
        fitted,
        device=device,
        resume=options.resume,
        restart=options.restart and recorded is not None,
        report=output,
    )
    print_result(result, output)
    output.final(
        result.folder,
        {"table": result.table(), "verdict": result.scores["target"].summary["verdict"]},
    )
    return 0


def _attack_values(options: argparse.Namespace) -> dict[str, object]:
    evaluation = {"targets": options.targets, "round": options.round, "metrics": options.metrics}
    values: dict[str, object] = {
        "target": options.target,
        "threat": options.threat,
        "attack": {"name": options.attack} if options.attack else None,
        "eval": {key: value for key, value in evaluation.items() if value is not None},
    }
    return {key: value for key, value in values.items() if value}


def _refuse_training_options(options: argparse.Namespace) -> None:
    names = (
        "protocol",
        "dataset",
        "data_dir",
        "partition",
        "models",
        "scheme",
        "clients",
        "rounds",
        "seed",
    )
    given = [f"--{n.replace('_', '-')}" for n in names if getattr(options, n) is not None]
    if given:
        raise ConfigError(
            f"{', '.join(given)} would train a new run, but the recorded run {options.run} was "
            "given.",
            next_step="Leave out one or the other.",
        )


def _trained(
    training: TrainSettings,
    settings: AttackSettings,
    options: argparse.Namespace,
    device: torch.device,
    output: Output,
) -> Run:
    check_fit(training.protocol, settings)
    return train(
        training,
        runs=options.runs_dir,
        device=device,
        resume=options.resume,
        restart=options.restart,
        report=output,
    )


def print_result(result: AttackResult, output: Output) -> None:
    """Print the result table, the verdict, the files and what to do next."""
    game, summary = result.game, result.scores["target"].summary
    lost = f", {summary['diverged']} diverged" if summary["diverged"] else ""
    output.text()
    output.line(
        "RESULT", f"{summary['n']} of {summary['targets']} targets{lost}; {summary['rule_text']}"
    )
    rows = result.table()
    for row in rows:
        row["this attack"] = row.pop("attack")
    order = [
        "metric",
        "this attack",
        *[key for key in rows[0] if key not in ("metric", "this attack")],
    ]
    print_table([{key: row[key] for key in order} for row in rows], output.text)
    output.line("Verdict", f"{summary['verdict']}: {summary['verdict_because']}")
    output.line(
        "Files",
        f"{result.folder}/{{figure.png,figure.pdf,scores.csv,record.json}}   "
        f"took {human_seconds(result.record['wall_s'])}",
    )
    output.line("Again", f"fedre-attack --config {result.folder / 'config.yaml'}")
    other = "representations" if game.kind != "representations" else "prototypes"
    output.line("Next", f"fedre-attack {game.run.folder} --target {other}")


if __name__ == "__main__":
    sys.exit(main())
