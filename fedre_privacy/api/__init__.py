"""The front door: train, attack and benchmark in one call each, for Python and for the commands.

The functions take what the commands take, under the same names: ``train("fedre", rounds=5)`` and
``fedre-train --protocol fedre --rounds 5`` name the same run folder, and whichever comes second
reads back what the first has done. Wherever a part is named, its name, a name with settings or an
object will do: ``"fedre"``, ``{"name": "fedre", "resample": False}``, ``FedRE(resample=False)``.
Other settings have dotted names: ``set={"train.lr": 0.1}`` is ``--set train.lr=0.1``.

Each call resolves settings once, all problems together; the functions whose names begin with
`run_` take settings that are resolved. They and the results are made in `work`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, Unpack

from fedre_privacy.active_server.base import Steering
from fedre_privacy.api.workflows import (
    AttackResult,
    BenchmarkResult,
    Run,
    attack_numbers,
    comparison,
    run_attack,
    run_benchmark,
    run_membership,
    run_training,
)
from fedre_privacy.attacks.base import Attack
from fedre_privacy.auditing.recorded_run import RunAudit, audit_run
from fedre_privacy.benchmarking.honest_twins import HonestTwins
from fedre_privacy.core.engines import IN_PROCESS
from fedre_privacy.core.events import Report, silent
from fedre_privacy.core.options import document_options, select_options
from fedre_privacy.core.os_errors import with_clear_errors as with_clear_errors
from fedre_privacy.data import loading
from fedre_privacy.data.base import Dataset
from fedre_privacy.entanglement.base import Entanglement
from fedre_privacy.experiments import attack as attacking
from fedre_privacy.experiments import user_module as own_module
from fedre_privacy.experiments.default_attack import with_usual_attack
from fedre_privacy.experiments.membership_result import MembershipResult
from fedre_privacy.experiments.shadow_federations import plan_shadow_federations
from fedre_privacy.protocols.base import Protocol
from fedre_privacy.publish import leaderboard as posting
from fedre_privacy.publish import repetition as repeating
from fedre_privacy.publish.claims import read_claim, write_claims
from fedre_privacy.publish.format import Verification
from fedre_privacy.publish.names import AGAIN, TOLERANCE
from fedre_privacy.reports.attack import attack_page
from fedre_privacy.reports.audit import write_audit_report
from fedre_privacy.reports.viewer import page as viewing
from fedre_privacy.runs import run as recorded
from fedre_privacy.runs import verification as verifying
from fedre_privacy.runs.device import choose_device
from fedre_privacy.runs.options import (
    ATTACK,
    DATASET,
    PROTOCOL,
    TARGET,
    AttackOptions,
    AuditOptions,
    BenchmarkOptions,
    MembershipOptions,
    RecordedOptions,
    Settings,
    SharedOptions,
    TrainingOptions,
    TrainOptions,
)
from fedre_privacy.runs.plain_settings import (
    attack_values,
    layer_settings,
    misplaced_settings,
    nest_assignments,
    several,
    training_values,
)
from fedre_privacy.runs.resolution import (
    check_sections,
    require_resolved,
    resolve_attack,
    resolve_training,
)
from fedre_privacy.runs.settings import ATTACK_SECTIONS, TRAIN_SECTIONS

__all__ = [
    "IN_PROCESS",
    "AttackResult",
    "BenchmarkResult",
    "Run",
    "attack",
    "attack_module",
    "attack_numbers",
    "audit",
    "benchmark",
    "comparison",
    "load_images",
    "membership",
    "run_attack",
    "run_benchmark",
    "run_membership",
    "run_training",
    "train",
    "twins",
    "verify",
    "view",
]

P = ParamSpec("P")


@document_options(TrainOptions, protocol=PROTOCOL, dataset=DATASET)
def train(
    protocol: str | Settings | Protocol | None = None,
    dataset: str | Settings | Dataset | None = None,
    **options: Unpack[TrainOptions],
) -> Run:
    """Train a federation and record what it exchanges, or return the identical earlier run.

    Args:
        {options}

    Raises:
        FedreError: whatever the command would refuse, with what is needed.
    """
    given = training_values(
        protocol=protocol, dataset=dataset, **select_options(options, TrainingOptions)
    )
    values, where = layer_settings(
        given, nest_assignments(options["set"]), presets=several(options["preset"])
    )
    problems = misplaced_settings(
        options["set"], ATTACK_SECTIONS, "a setting of fedre-attack; train only trains"
    )
    check_sections(values, where, problems)
    settings = resolve_training(values, where, problems)
    return run_training(
        require_resolved(settings, problems, see="fedre-train --explain"),
        runs=Path(options["runs"]),
        engine=options["engine"],
        **_how(options),
    )


def twins(
    steering: str | Settings | Steering | Sequence[str | Settings | Steering],
    protocol: str | Settings | Protocol | None = None,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    **options: Any,
) -> HonestTwins:
    """Train with an active server and without, for the same seeds, to compare the two.

    Every round's models are kept. `Twins.learning`, `Twins.leakage` and `Twins.detection` say what
    the steering costs, what it gains an attack, and which detectors notice it.

    Args:
        steering, protocol: as for `train`.
        seeds: of the pairs of runs.
        options: any other argument of `train`.

    Raises:
        FedreError: what `train` would refuse.
    """
    options["set"] = {"record.keep_every": 1, **(options.get("set") or {})}
    steered, honest = (
        tuple(train(protocol, seed=seed, steering=given, **options) for seed in seeds)
        for given in (steering, None)
    )
    return HonestTwins(steered, honest)


@document_options(RecordedOptions, attack=ATTACK, target=TARGET)
def attack(
    run: recorded.Run | str | Path,
    attack: str | Settings | Attack | None = None,
    target: str | None = None,
    **options: Unpack[RecordedOptions],
) -> AttackResult:
    """Attack a recorded run, score it beside its floors, and write figures and ``report.html``.

    Args:
        run: what `train` returned, or a run's folder.
        {options}

    Raises:
        FedreError: whatever the command would refuse, with what is needed.
    """
    if not isinstance(run, recorded.Run):
        run = Run(Path(run))
    given = attack_values(attack=attack, target=target, **select_options(options, AttackOptions))
    values, where = layer_settings(given, nest_assignments(options["set"]))
    problems = misplaced_settings(
        options["set"], TRAIN_SECTIONS, "a setting of the training, which is recorded"
    )
    check_sections(values, where, problems)
    uploads = run.settings.protocol.uploads
    values = with_usual_attack(values, run.settings, report=options["report"])
    settings = resolve_attack(values, where, problems, uploads=uploads)
    return run_attack(
        run,
        require_resolved(settings, problems, see="fedre-attack --explain"),
        isolation=options["isolation"],
        **_how(options),
    )


def _how(options: Mapping[str, Any]) -> dict[str, Any]:
    """Where something runs, what becomes of an earlier one, and who hears of it."""
    how = {name: options[name] for name in ("resume", "restart", "report", "log")}
    return {**how, "device": choose_device(options["device"])}


@document_options(AuditOptions)
def audit(
    run: recorded.Run,
    *,
    inside: bool = False,
    crowd: bool = False,
    **options: Unpack[AuditOptions],
) -> RunAudit:
    """Test the privacy that a run's defences claim, for one client or for one record.

    Crafted uploads or records go through the defences; right guesses bound epsilon from below. No
    federation is trained. Record, figure and page are written into the run's folder ``audits``.

    Args:
        run: with defences that state a guarantee.
        inside: by the canaries that the run was trained with (coins of game ``pair``), in place of
            crafted uploads; the lower bound then needs no claim, and `trials` is not used.
        crowd: by trainings with and without one record of a crowd, which shows what sums are
            divided by; for claims of private training.
        {options}

    Raises:
        ConfigError: too few trials, or alpha out of range.
        IncompatibleError: there is no such claim, or the run has no coins for canaries.
        MissingInputError: the run's training did not finish.
    """
    attacking.require_complete(run)
    done = audit_run(run, inside=inside, crowd=crowd, **options)
    write_audit_report(done)
    return done


@document_options(MembershipOptions)
def membership(run: recorded.Run, **options: Unpack[MembershipOptions]) -> MembershipResult:
    """Tell who trained, in shadow federations with the settings of a run.

    Samples are in or out by fair coins. Record, figures, guesses and a page are written beside the
    run, and worlds that are there already are not trained again.

    Args:
        run: whose settings are taken.
        {options}

    Raises:
        FedreError: a bad plan, or of a training or an attack.
    """
    plan = plan_shadow_federations(
        run.settings,
        worlds=options["worlds"],
        rates=options["rates"],
        chosen=options["attacks"],
    )
    device = choose_device(options["device"])
    return run_membership(plan, runs=run.folder.parent, device=device, report=options["report"])


@document_options(BenchmarkOptions)
def benchmark(
    protocols: Sequence[str | Settings | Protocol] = (),
    schemes: Sequence[str | Settings | Entanglement] = (),
    **options: Unpack[BenchmarkOptions],
) -> BenchmarkResult:
    """Train and attack variants over seeds, and set them side by side.

    Every job runs in a process of its own; what is finished is read back. A variant that fails
    does not stop the others: see `BenchmarkResult.failures`.

    Args:
        protocols, schemes: what is compared; names, ``module:Class`` (a module that a new process
            in this folder can import), names with settings (``{"name": "m-of-n", "m": 2}``), or
            objects. Schemes are those of fedre.
        {options}

    Raises:
        FedreError: settings that cannot work, before anything is trained.
    """
    given = training_values(dataset=options["dataset"], **select_options(options, SharedOptions))
    values, _ = layer_settings(given, nest_assignments(options["set"]))
    problems = misplaced_settings(
        options["set"], ATTACK_SECTIONS, "a setting of an attack; give it in 'attacks'"
    )
    attacks, sweep, out = options["attacks"], options["sweep"], options["out"]
    wanted = comparison(
        values,
        problems,
        sweep=None if sweep is None else Path(sweep),
        protocols=several(protocols),
        schemes=several(schemes),
        defenses=several(options["defenses"]),
        attackers=several(options["attackers"]),
        steerings=several(options["steerings"]),
        attacks=None if attacks is None else several(attacks),
        vary=options["vary"],
        seeds=options["seeds"],
        targets=options["targets"],
    )
    return run_benchmark(
        wanted,
        runs=Path(options["runs"]),
        out=None if out is None else Path(out),
        workers=options["jobs"],
        engine=options["engine"],
        gpu_share=options["gpu_share"],
        shard=options["shard"],
        device=options["device"],
        retry=options["retry"],
        prune=options["prune"],
        report=options["report"],
        log=options["log"],
    )


def repeat(
    file: str | Path,
    *,
    run: str | Path | None = None,
    part: str | None = None,
    runs: str | Path = AGAIN,
    data: str | Path | None = None,
    out: str | Path | None = None,
    tolerance: float = TOLERANCE,
    device: str = "auto",
    by: str = "",
    report: Report = silent,
) -> Verification:
    """Repeat what a claim's file says, compare, and write the verification.

    Args:
        file: a claim, as `claim` writes it.
        run: folder of the run that was attacked, if it is at hand; None: train again.
        part: ``split``, ``training``, ``attack``, ``scores``; None: ``attack`` of a run, or split.
        runs: folder for what is made.
        data: file or folder of the data set, where it is not built in.
        out: file of the verification; None: beside the claim.
        tolerance: see `publish.comparison`.
        device: auto, cpu, cuda or cuda:N.
        by: who repeats it.
        report: called with an `Event` now and then.

    Raises:
        FedreError: a file that is no claim, settings that are none here, or what training and
            attack refuse. That it does not repeat is no error: see `Verification.outcome`.
    """
    wanted = repeating.plan(
        read_claim(Path(file)), run=None if run is None else Path(run), part=part,
        runs=Path(runs), data=None if data is None else Path(data),
    )  # fmt: skip
    place = Path(file).with_suffix(".verification.json") if out is None else Path(out)
    return repeating.repeat(
        wanted, place, tolerance=tolerance, device=choose_device(device), by=by, report=report
    )[0]


def _with_page(
    attacked: Callable[P, own_module.ModuleResult],
) -> Callable[P, own_module.ModuleResult]:
    """The same function, which also writes the page of what is written into a folder."""

    @functools.wraps(attacked)
    def called(*args: P.args, **given: P.kwargs) -> own_module.ModuleResult:
        result = attacked(*args, **given)
        if result.written is not None:
            attack_page(result.written)
        return result

    return called


attack_module = _with_page(own_module.attack_module)
load_images = loading.load_images
verify = verifying.verify
view = viewing.view
claim = write_claims
leaderboard = posting.write_leaderboard
