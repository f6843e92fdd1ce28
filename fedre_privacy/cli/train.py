"""``fedre-train``: train a federation and record everything it exchanges."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence

from fedre_privacy.core.options import options_of
from fedre_privacy.core.registry import plugin_words
from fedre_privacy.runs.options import TrainOptions

from .command import command
from .options import add_common_options, add_log_option, add_options, add_training_options
from .output import Output
from .subcommands import run_subcommand, usage


def parser() -> argparse.ArgumentParser:
    """Make the option parser."""
    made = argparse.ArgumentParser(
        prog="fedre-train",
        usage=usage("fedre-train", "[options]"),
        allow_abbrev=False,
        description="Train a federation and record every upload and broadcast in a run folder.",
    )
    add_training_options(made)
    add_options(made, {"engine": options_of(TrainOptions)["engine"]})
    add_log_option(made)
    add_common_options(made)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return command(parser(), run, argv, others=run_subcommand)


def run(options: argparse.Namespace, output: Output) -> int:
    """Train a federation, or say what training it would do; return the exit code."""
    from fedre_privacy.api import run_training
    from fedre_privacy.loggers.base import chosen_loggers
    from fedre_privacy.reports.run_figures import draw
    from fedre_privacy.runs.device import choose_device
    from fedre_privacy.runs.settings import ATTACK_SECTIONS

    from .shared.explain import explain
    from .shared.result import print_dry_run, print_run
    from .shared.settings import settings_in_sections, training_settings

    problems = [
        f"--set {item} is a setting of fedre-attack; fedre-train only trains."
        for item in settings_in_sections(options, ATTACK_SECTIONS)
    ]
    settings = training_settings(options, problems, see="fedre-train --explain")
    if options.explain is not None:
        explain(settings, None, output, options.explain)
        return 0
    chosen_loggers(options.log)
    device = choose_device(options.device)
    if options.dry_run:
        plan = print_dry_run(settings, options, device, output)
        output.final(None, {"plan": vars(plan)})
        return 0
    run = run_training(
        settings,
        runs=options.runs_dir,
        device=device,
        resume=options.resume,
        restart=options.restart,
        report=output,
        engine=options.engine,
        log=options.log,
    )
    print_run(run, output, trained_now="train.reused" not in output.reused)
    best = run.best_round()
    if best is not None and best[0] != settings.train.rounds:
        output.line(
            "Best round",
            f"{best[0]}, with accuracy {best[1]:.3f} (chosen on the test images, so it flatters)",
        )
    pictures = draw(run)
    if pictures:
        names = ",".join(path.stem for path in pictures)
        output.line("Figures", f"{run.folder}/{{{names}}}.png", wrap=False)
    again = f"fedre-attack {shlex.quote(str(run.folder))}{plugin_words(settings.plugins())}"
    output.line("Manifest", run.manifest.sha256, wrap=False)
    output.line("Next", again, wrap=False)
    output.final(
        run.folder,
        {"final": run.record["final"], "figures": pictures, "manifest": run.manifest.sha256},
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
