"""``fedre-attack``: what do the uploads give away?"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from fedre_privacy.api import run_attack, run_training
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.registry import import_plugins, plugin_words
from fedre_privacy.play.attack import require_complete
from fedre_privacy.play.rehearse import rehearse
from fedre_privacy.runs.device import choose_device
from fedre_privacy.runs.folder import COMPLETE, begin, status_of
from fedre_privacy.runs.resolving import check_sections, required, resolve_attack, resolve_training
from fedre_privacy.runs.run import Run, find_run
from fedre_privacy.runs.settings import (
    ATTACKERS,
    TARGETS,
    TRAIN_SECTIONS,
    AttackSettings,
    TrainSettings,
)
from fedre_privacy.runs.values import attack_values
from fedre_privacy.sealed.door import AUTO, ISOLATION, SAME, chosen, warm

from . import verify
from .explain import explain, list_all, list_for, list_presets
from .foreign import add_foreign_options, refuse_without_uploads, run_foreign
from .options import (
    TRAINING_OPTIONS,
    add_common_options,
    add_training_options,
    gather,
    refuse_training_options,
)
from .output import Output, command
from .result import print_result
from .train import print_run


def parser() -> argparse.ArgumentParser:
    """Make the option parser."""
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
        help=f"{', '.join(TARGETS)} (default: uploaded, what the protocol really sends)",
    )
    group.add_argument("--attack", metavar="A", help="attack to run (default: dip)")
    group.add_argument("--threat", metavar="T", help="threat model (default: fedre-paper)")
    group.add_argument(
        "--attacker",
        choices=ATTACKERS,
        help="whether the attack knows the run's defences (default: adaptive, it does)",
    )
    group.add_argument("--targets", type=int, metavar="N", help="targets at most (default: 24)")
    group.add_argument("--round", type=int, metavar="R", help="round to attack (default: last)")
    group.add_argument("--metrics", metavar="M,N", help="metrics (default: psnr,ssim,mse255)")
    group.add_argument(
        "--isolation",
        choices=ISOLATION,
        default=AUTO,
        help="how far the attack is kept from the run: strict (a process of its own that can open "
        "nothing of the run), process, same-process (default: the strictest that works here)",
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


def _run(options: argparse.Namespace, output: Output) -> int:
    import_plugins(options.plugin)
    if options.run != "list" and options.listed is not None:
        raise ConfigError(
            f"--for {options.listed} goes with list: fedre-attack list --for {options.listed}.",
            next_step=f"To attack that run: fedre-attack {options.listed}.",
        )
    if "list" in options.preset:
        return list_presets(output)
    asked = attack_values(
        attack=options.attack, target=options.target, threat=options.threat,
        attacker=options.attacker, targets=options.targets, round=options.round,
        metrics=options.metrics,
    )  # fmt: skip
    values, where = gather(options, asked)
    if options.uploads is not None:
        return run_foreign(options, values, where, TRAINING_OPTIONS, output)
    refuse_without_uploads(options)
    recorded = None
    if options.run not in (None, "list"):
        recorded = find_run(options.run, options.runs_dir)
        refuse_training_options(options, recorded)
        values = {key: value for key, value in values.items() if key not in TRAIN_SECTIONS}
    problems: list[str] = []
    check_sections(values, where, problems)
    training = recorded.settings if recorded else resolve_training(values, where, problems)
    uploads = training.protocol.uploads if training else ()
    settings = resolve_attack(values, where, problems, uploads=uploads)
    training = required(training, problems, see="fedre-attack --explain")
    settings = required(settings, problems, see="fedre-attack --explain")
    if options.run == "list":
        if options.listed is None:
            list_all(output)
        else:
            list_for(find_run(options.listed, options.runs_dir), settings.threat, output)
        return 0
    if options.explain:
        explain(training, settings, output)
        return 0
    device = choose_device(options.device)
    if chosen(options.isolation, device) != SAME:
        warm()  # while the run is trained or read
    if options.dry_run:
        _rehearse(recorded, training, settings, options, device, output)
        return 0
    how = {"device": device, "resume": options.resume, "restart": options.restart, "report": output}
    run = recorded or run_training(training, runs=options.runs_dir, attack=settings, **how)
    require_complete(run)
    print_run(run, output, trained_now=not recorded and "train.reused" not in output.reused)
    result = run_attack(run, settings, isolation=options.isolation, **how)
    other = "representations" if result.trial.kind != "representations" else "prototypes"
    print_result(
        result,
        output,
        of={"run": run.folder},
        again=_again(run, result.folder, options)
        + plugin_words([*run.settings.plugins(), *settings.plugins()]),
        then=f"fedre-attack {_quoted(run.folder)} --target {other}"
        + plugin_words(run.settings.plugins()),
        open_page=options.open,
    )
    return 0


def _rehearse(
    recorded: Run | None,
    training: TrainSettings,
    settings: AttackSettings,
    options: argparse.Namespace,
    device: torch.device,
    output: Output,
) -> None:
    folder = options.runs_dir / training.run_name
    if recorded is None and not options.restart:
        begin(folder, resume=options.resume, restart=False, what="Run")
    done = recorded or (Run(folder) if status_of(folder) == COMPLETE else None)
    if done is not None:
        require_complete(done)
        place = done.folder / "attacks" / settings.folder_name
        if not options.restart:
            begin(place, resume=options.resume, restart=False, what="Attack")
    plan = rehearse(done or training, settings, device)
    for heading, text in plan.lines.items():
        output.line(heading, text)
    output.final(None, {"plan": vars(plan)})


def _again(run: Run, folder: Path, options: argparse.Namespace) -> str:
    """The command that repeats an attack without training again."""
    config = folder / "config.yaml"
    command = f"fedre-attack --config {_quoted(config)}"
    if run.folder.resolve() != (options.runs_dir / run.settings.run_name).resolve():
        return f"fedre-attack {_quoted(run.folder)} --config {_quoted(config)}"
    if options.runs_dir != Path("runs"):
        command += f" --runs-dir {_quoted(options.runs_dir)}"
    return command


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


if __name__ == "__main__":
    sys.exit(main())
