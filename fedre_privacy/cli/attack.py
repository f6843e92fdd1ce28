"""``fedre-attack``: what do the uploads give away?"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.options import option_in
from fedre_privacy.core.registry import plugin_words
from fedre_privacy.runs.options import ATTACKING, ISOLATION

from .browser import add_open_option
from .command import command
from .lists import list_all
from .options import add_common_options, add_log_option, add_options, add_training_options
from .output import Output
from .subcommands import epilog, run_subcommand, usage

if TYPE_CHECKING:
    from fedre_privacy.experiments.attack import AttackResult
    from fedre_privacy.runs.run import Run
    from fedre_privacy.runs.settings import AttackSettings, TrainSettings


def parser() -> argparse.ArgumentParser:
    """Make the option parser."""
    made = argparse.ArgumentParser(
        prog="fedre-attack",
        usage=usage(
            "fedre-attack", "[RUN | --uploads PATH] [options]", words=("list [--for RUN]",)
        ),
        allow_abbrev=False,
        description="Attack what a protocol uploads: train (or reuse the identical run), attack, "
        "score against floors, draw.",
        epilog="fedre-attack list [--for RUN] shows what can attack what; "
        + epilog("fedre-attack"),
    )
    made.add_argument(
        "run",
        nargs="?",
        metavar="RUN|list",
        help="a recorded run's folder, or its name in --runs-dir; without it, one is trained",
    )
    group = made.add_argument_group("attack")
    add_options(group, {**ATTACKING, "isolation": option_in(ISOLATION)})
    group.add_argument(
        "-v", "--verbose", action="store_true", help="print every metric, and the manifest's hash"
    )
    add_open_option(group)
    add_log_option(group)
    group.add_argument("--for", dest="listed", metavar="RUN", help="with list: a run")
    group = made.add_argument_group("uploads of another system (docs/artifact_format.md)")
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
    add_training_options(made)
    add_common_options(made)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return command(parser(), run, argv, others=run_subcommand)


def _lists_all(options: argparse.Namespace) -> bool:
    """Whether a list of all parts is wanted, and nothing that it would check or leave out."""
    usual = vars(parser().parse_args(["list", *(["--json"] if options.json else [])]))
    return vars(options) == {**usual, "quiet": options.quiet}


def run(options: argparse.Namespace, output: Output) -> int:
    """Attack a run, one that is trained here, or given uploads; return the exit code."""
    if options.run != "list" and options.listed is not None:
        raise ConfigError(
            f"--for {options.listed} goes with list: fedre-attack list --for {options.listed}.",
            next_step=f"To attack that run: fedre-attack {options.listed}.",
        )
    if options.run == "list" and _lists_all(options):
        return list_all(output)

    from fedre_privacy.api import run_attack, run_training
    from fedre_privacy.experiments.attack import require_complete
    from fedre_privacy.experiments.default_attack import with_usual_attack
    from fedre_privacy.loggers.base import chosen_loggers
    from fedre_privacy.runs.device import choose_device
    from fedre_privacy.runs.plain_settings import attack_values
    from fedre_privacy.runs.resolution import (
        check_sections,
        require_resolved,
        resolve_attack,
        resolve_training,
    )
    from fedre_privacy.runs.run import find_run
    from fedre_privacy.runs.settings import TRAIN_SECTIONS
    from fedre_privacy.sandbox.client import warm

    from .shared.explain import explain, list_for
    from .shared.external_uploads import attack_external_uploads, refuse_without_uploads
    from .shared.result import print_result, print_run
    from .shared.settings import gather, refuse_training_options

    chosen_loggers(options.log)
    asked = {name: getattr(options, name) for name in ATTACKING if hasattr(options, name)}
    values, where = gather(options, attack_values(**asked))
    if options.uploads is not None:
        return attack_external_uploads(options, values, where, output)
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
    values = with_usual_attack(values, training, report=output)
    settings = resolve_attack(values, where, problems, uploads=uploads)
    training = require_resolved(training, problems, see="fedre-attack --explain")
    settings = require_resolved(settings, problems, see="fedre-attack --explain")
    if options.run == "list":
        if options.listed is None:
            return list_all(output)
        list_for(find_run(options.listed, options.runs_dir), settings.threat, output)
        return 0
    if options.explain is not None:
        explain(training, settings, output, options.explain)
        return 0
    device = choose_device(options.device)
    secrets = [options.runs_dir, *training.data.sources()]
    warm(options.isolation, device, recorded.secrets() if recorded else secrets)  # meanwhile
    if options.dry_run:
        _print_dry_run(recorded, training, settings, options, device, output)
        return 0
    how = {"device": device, "resume": options.resume, "restart": options.restart, "report": output,
           "log": options.log}  # fmt: skip
    run = recorded or run_training(training, runs=options.runs_dir, attack=settings, **how)
    require_complete(run)
    print_run(run, output, trained_now=not recorded and "train.reused" not in output.reused)
    result = run_attack(run, settings, isolation=options.isolation, **how)
    print_result(
        result,
        output,
        of={"run": run.folder},
        again=_again(run, result.folder, options)
        + plugin_words([*run.settings.plugins(), *settings.plugins()]),
        then=f"fedre-attack {_quote_path(run.folder)} {_next(result)}"
        + plugin_words(run.settings.plugins()),
        show_page=options.open,
        every=options.metrics is not None,
        verbose=options.verbose,
    )
    return 0


def _next(result: AttackResult) -> str:
    """Options worth giving next: images of what was recovered, what was sent, a stronger attacker,
    which image it was, the ceiling."""
    from fedre_privacy.attacks.base import can_read
    from fedre_privacy.experiments.targets import KINDS
    from fedre_privacy.runs.resolution import DEFAULTS

    trial = result.trial
    if result.leaks and trial.settings.attack.answers == "prototypes":
        name = trial.settings.attack.name
        via = "" if name == DEFAULTS["via"] else f" --set via.name={name}"
        return f"--target recovered-prototypes --threat {trial.observation.threat.name}{via}"
    sent = {kind for u in trial.observation.uploads for kind in map(type, u.artifacts)}
    if trial.counterfactual and any(can_read(trial.settings.attack, kind) for kind in sent):
        return "--target uploaded"
    threat = trial.observation.threat.name
    if not result.leaks and trial.kind in KINDS:
        if threat not in ("strong", "public-backbone"):
            return f"--target {trial.kind} --threat strong"
        if not trial.counterfactual and trial.settings.target != "retrieval":
            return f"--target retrieval --threat {threat}"
    return f"--target {'representations' if trial.kind != 'representations' else 'prototypes'}"


def _print_dry_run(
    recorded: Run | None,
    training: TrainSettings,
    settings: AttackSettings,
    options: argparse.Namespace,
    device: Any,
    output: Output,
) -> None:
    from fedre_privacy.experiments.attack import require_complete
    from fedre_privacy.experiments.dry_run import dry_run
    from fedre_privacy.runs.folder import COMPLETE, begin, status_of
    from fedre_privacy.runs.run import Run

    folder = options.runs_dir / training.run_name
    if recorded is None and not options.restart:
        begin(folder, resume=options.resume, restart=False, what="Run")
    done = recorded or (Run(folder) if status_of(folder) == COMPLETE else None)
    if done is not None:
        require_complete(done)
        place = done.folder / "attacks" / settings.folder_name
        if not options.restart:
            begin(place, resume=options.resume, restart=False, what="Attack")
    plan = dry_run(done or training, settings, device, options.runs_dir)
    output.estimate(plan)
    output.final(None, {"plan": vars(plan)})


def _again(run: Run, folder: Path, options: argparse.Namespace) -> str:
    """The command that repeats an attack without training again."""
    config = folder / "config.yaml"
    command = f"fedre-attack --config {_quote_path(config)}"
    if run.folder.resolve() != (options.runs_dir / run.settings.run_name).resolve():
        return f"fedre-attack {_quote_path(run.folder)} --config {_quote_path(config)}"
    if options.runs_dir != Path("runs"):
        command += f" --runs-dir {_quote_path(options.runs_dir)}"
    return command


def _quote_path(path: Path) -> str:
    return shlex.quote(str(path))


if __name__ == "__main__":
    sys.exit(main())
