"""``fedre-audit``: does what the defences let through keep what they promise?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from fedre_privacy.api import audit, run_training
from fedre_privacy.auditing.mechanism import LEAST_TRIALS
from fedre_privacy.core.errors import ConfigError, RefutedError
from fedre_privacy.core.registry import import_plugins
from fedre_privacy.eval.lower_bounds import ALPHA
from fedre_privacy.runs.device import choose_device
from fedre_privacy.runs.folder import find_run
from fedre_privacy.runs.settings import check_sections, required, resolve_training

from .explain import list_presets
from .options import add_common_options, add_training_options, gather, refuse_training_options
from .output import Output, guarded
from .train import print_run


def parser() -> argparse.ArgumentParser:
    """Make the option parser."""
    made = argparse.ArgumentParser(
        prog="fedre-audit",
        usage="fedre-audit [RUN] [options]",
        allow_abbrev=False,
        description="Test the privacy that a run's defences claim for one client: crafted uploads "
        "go through the defences, and right guesses bound epsilon from below.",
    )
    made.add_argument(
        "run",
        nargs="?",
        metavar="RUN",
        help="a recorded run's folder, or its name in --runs-dir; without it, one is trained",
    )
    group = made.add_argument_group("audit")
    group.add_argument(
        "--trials", type=int, default=1000, metavar="N", help="canary clients (default: 1000)"
    )
    group.add_argument(
        "--alpha", type=float, default=ALPHA, metavar="A",
        help=f"chance that the lower bound is above the truth (default: {ALPHA:g})",
    )  # fmt: skip
    group.add_argument("--audit-seed", type=int, default=0, metavar="S", help="seed of the coins")
    add_training_options(made)
    add_common_options(made, restart="remove the run of these settings and train it anew")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    options = parser().parse_args(argv)
    output = Output(as_json=options.json, quiet=options.quiet)
    return guarded(lambda out: _run(options, out), output, lambda: options.runs_dir / "log.txt")


def _run(options: argparse.Namespace, output: Output) -> int:
    import_plugins(options.plugin)
    if "list" in options.preset:
        return list_presets(output)
    if options.trials < LEAST_TRIALS or not 0 < options.alpha < 1:
        raise ConfigError(
            f"--trials {options.trials} --alpha {options.alpha:g}: at least {LEAST_TRIALS} trials, "
            "and an alpha between 0 and 1, are needed."
        )
    if options.run is not None:
        run = find_run(options.run, options.runs_dir)
        refuse_training_options(options, run)
    else:
        values, where = gather(options)
        problems: list[str] = []
        check_sections(values, where, problems)
        resolved = resolve_training(values, where, problems)
        settings = required(resolved, problems, see="fedre-train --explain")
        run = run_training(
            settings,
            runs=options.runs_dir,
            device=choose_device(options.device),
            resume=options.resume,
            restart=options.restart,
            report=output,
        )
    print_run(run, output, trained_now=options.run is None and "train.reused" not in output.reused)
    done = audit(run, trials=options.trials, alpha=options.alpha, seed=options.audit_seed)
    for heading, text in done.lines().items():
        output.line(heading, text)
    output.text()
    output.line("RESULT", f"{done.found.trials} independent trials")
    output.table(done.table())
    output.line("Verdict", done.verdict())
    output.line("Files", f"{done.folder}/{{epsilon.png,record.json}}", wrap=False)
    output.final(done.folder, done.record())
    if done.found.verdict == "refuted":
        raise RefutedError(
            f"The claim of {run.name} is refuted: {done.verdict()}.",
            next_step="Look at what the defence adds, bounds and counts before you rely on it.",
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
