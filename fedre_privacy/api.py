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
from typing import Any, ParamSpec

from fedre_privacy.attacks.base import Attack
from fedre_privacy.auditing.recorded import RunAudit, audit_run
from fedre_privacy.core.engines import IN_PROCESS
from fedre_privacy.core.events import Report, silent
from fedre_privacy.core.secrets import chosen_secret
from fedre_privacy.core.system import clearly as clearly
from fedre_privacy.core.types import ThreatModel
from fedre_privacy.data import loading
from fedre_privacy.data.base import Dataset
from fedre_privacy.defenses.base import Defense
from fedre_privacy.entanglement.base import Entanglement
from fedre_privacy.eval.lower_bounds import ALPHA
from fedre_privacy.eval.metrics.base import Metric
from fedre_privacy.models.families import ModelSettings
from fedre_privacy.pages.attack import attack_page
from fedre_privacy.pages.audit import write_audit_report
from fedre_privacy.partition.base import Partition
from fedre_privacy.play import attack as attacking
from fedre_privacy.play import own_module
from fedre_privacy.play.usual import with_usual_attack
from fedre_privacy.play.worlds import plan_worlds
from fedre_privacy.play.worlds_result import WorldsResult
from fedre_privacy.protocols.base import Protocol
from fedre_privacy.publish import leaderboard as posting
from fedre_privacy.publish import repeating
from fedre_privacy.publish.claims import read_claim, write_claims
from fedre_privacy.publish.format import Verification
from fedre_privacy.publish.names import AGAIN, TOLERANCE
from fedre_privacy.runs import run as recorded
from fedre_privacy.runs import verifying
from fedre_privacy.runs.device import choose_device
from fedre_privacy.runs.resolving import check_sections, required, resolve_attack, resolve_training
from fedre_privacy.runs.settings import ATTACK_SECTIONS, TRAIN_SECTIONS
from fedre_privacy.runs.values import (
    assigned,
    attack_values,
    layered,
    misplaced,
    several,
    training_values,
)
from fedre_privacy.sealed.door import AUTO
from fedre_privacy.steering.base import Steering
from fedre_privacy.study.twins import Twins
from fedre_privacy.viewing import page as viewing
from fedre_privacy.work import (
    AttackResult,
    BenchmarkResult,
    Run,
    comparison,
    run_attack,
    run_benchmark,
    run_membership,
    run_training,
)

__all__ = [
    "IN_PROCESS",
    "AttackResult",
    "BenchmarkResult",
    "Run",
    "attack",
    "attack_module",
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

Settings = Mapping[str, Any]
P = ParamSpec("P")


def train(
    protocol: str | Settings | Protocol | None = None,
    dataset: str | Settings | Dataset | None = None,
    *,
    clients: int | None = None,
    rounds: int | None = None,
    partition: str | Settings | Partition | None = None,
    models: str | Settings | ModelSettings | None = None,
    scheme: str | Settings | Entanglement | None = None,
    defense: str | Settings | Defense | Sequence[str | Settings | Defense] | None = None,
    seed: int | None = None,
    secret: str | Path | None = None,
    steering: str | Settings | Steering | Sequence[str | Settings | Steering] | None = None,
    preset: str | Sequence[str] = (),
    set: Settings | None = None,
    runs: str | Path = "runs",
    device: str = "auto",
    resume: bool = False,
    restart: bool = False,
    report: Report = silent,
    engine: str = IN_PROCESS,
) -> Run:
    """Train a federation and record what it exchanges, or return the identical earlier run.

    Args:
        protocol, dataset, clients, rounds, partition, models, scheme, defense, seed: as in
            ``fedre-train --help``, parts also as objects; None is the command's default (fedre,
            digits, 10 clients, 20 rounds, ``pra:0.1``, cnn4, rap, no defence, 0). Your own
            protocol, scheme or defence may be ``module:Class``.
        secret: ``new`` or a file, as ``--secret``; None: all follows from the seed.
        steering: what a malicious server does, as ``--steering``; None: the server is honest.
        preset: named settings, the later ones win; options win over all.
        set: any other setting by its dotted name, for example ``{"train.lr": 0.05}``.
        runs: folder of the run folders.
        device: auto, cpu, cuda or cuda:N.
        resume: go on with an unfinished run of these settings.
        restart: remove an earlier run of these settings first.
        report: called with an `Event` for every round.
        engine: where clients are: ``in-process``; ``flower``, each in a process of its own on a
            federation that is started on this machine; or ``flower-simulation``, Flower's own
            simulation on Ray. The run is the same either way.

    Raises:
        FedreError: whatever the command would refuse, with what is needed.
    """
    given = training_values(
        protocol=protocol, dataset=dataset, clients=clients, rounds=rounds, partition=partition,
        models=models, scheme=scheme, defense=defense, seed=seed, steering=steering,
        secret=None if secret is None else chosen_secret(str(secret)),
    )  # fmt: skip
    values, where = layered(given, assigned(set), presets=several(preset))
    problems = misplaced(set, ATTACK_SECTIONS, "a setting of fedre-attack; train only trains")
    check_sections(values, where, problems)
    settings = resolve_training(values, where, problems)
    return run_training(
        required(settings, problems, see="fedre-train --explain"), runs=Path(runs),
        device=choose_device(device), resume=resume, restart=restart, report=report, engine=engine,
    )  # fmt: skip


def twins(
    steering: str | Settings | Steering | Sequence[str | Settings | Steering],
    protocol: str | Settings | Protocol | None = None,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    **options: Any,
) -> Twins:
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
    return Twins(steered, honest)


def attack(
    run: recorded.Run | str | Path,
    attack: str | Settings | Attack | None = None,
    target: str | None = None,
    *,
    threat: str | ThreatModel | None = None,
    attacker: str | None = None,
    targets: int | None = None,
    round: int | None = None,
    metrics: Sequence[str | Settings | Metric] | None = None,
    via: str | Settings | Attack | None = None,
    set: Settings | None = None,
    device: str = "auto",
    resume: bool = False,
    restart: bool = False,
    report: Report = silent,
    isolation: str = AUTO,
) -> AttackResult:
    """Attack a recorded run, score it beside its floors, and write figures and ``report.html``.

    Args:
        run: what `train` returned, or a run's folder.
        attack: an object, a name or ``module:Class``; None: the usual one for the target or the
            upload (``dip`` for representations).
        target: what is attacked, as in ``fedre-attack --help``; None: what was uploaded.
        threat: what the attacker knows; None: ``fedre-paper``.
        attacker: ``adaptive`` (knows the run's defences) or ``naive``; None: adaptive.
        targets: targets at most; None: 24.
        round: round to attack; None: the last one.
        metrics: names or objects; None: PSNR, SSIM and MSE.
        via: with target ``recovered-prototypes`` the attack that recovers them; None:
            ``disentangle``.
        set: any other setting by its dotted name, for example ``{"attack.steps": 300}``.
        device: auto, cpu, cuda or cuda:N.
        resume: go on with an unfinished attack of these settings.
        restart: remove an earlier attack of these settings first.
        report: called with an `Event` now and then.
        isolation: how far the attack is kept from the run: strict, process or same-process; auto:
            the strictest that works here.

    Raises:
        FedreError: whatever the command would refuse, with what is needed.
    """
    if not isinstance(run, recorded.Run):
        run = Run(Path(run))
    given = attack_values(
        attack=attack, target=target, threat=threat, attacker=attacker, targets=targets,
        round=round, metrics=metrics, via=via,
    )  # fmt: skip
    values, where = layered(given, assigned(set))
    problems = misplaced(set, TRAIN_SECTIONS, "a setting of the training, which is recorded")
    check_sections(values, where, problems)
    uploads = run.settings.protocol.uploads
    values = with_usual_attack(values, run.settings, report=report)
    settings = resolve_attack(values, where, problems, uploads=uploads)
    return run_attack(
        run, required(settings, problems, see="fedre-attack --explain"),
        device=choose_device(device), resume=resume, restart=restart, report=report,
        isolation=isolation,
    )  # fmt: skip


def audit(
    run: recorded.Run,
    *,
    unit: str | None = None,
    inside: bool = False,
    trials: int = 1000,
    alpha: float = ALPHA,
    seed: int = 0,
) -> RunAudit:
    """Test the privacy that a run's defences claim, for one client or for one record.

    Crafted uploads or records go through the defences; right guesses bound epsilon from below. No
    federation is trained. Record, figure and page are written into the run's folder ``audits``.

    Args:
        run: with defences that state a guarantee.
        unit: ``client`` or ``record``; None: for a client where there is one, else for a record.
        inside: by the canaries that the run was trained with (coins of game ``pair``), in place of
            crafted uploads; the lower bound then needs no claim.
        trials: canary clients, or canary records; those inside a run are counted there.
        alpha: chance that the lower bound is above the truth.

    Raises:
        ConfigError: too few trials, or alpha out of range.
        IncompatibleError: there is no such claim, or the run has no coins for canaries.
        MissingInputError: the run's training did not finish.
    """
    attacking.require_complete(run)
    done = audit_run(run, unit=unit, inside=inside, trials=trials, alpha=alpha, seed=seed)
    write_audit_report(done)
    return done


def membership(
    run: recorded.Run,
    *,
    worlds: int = 16,
    rates: Sequence[float] = (),
    attacks: Sequence[str] = (),
    device: str = "auto",
    report: Report = silent,
) -> WorldsResult:
    """Tell who trained, in shadow federations with the settings of a run.

    Samples are in or out by fair coins. Record, figures, guesses and a page are written beside the
    run, and worlds that are there already are not trained again.

    Args:
        worlds: federations to train.
        rates: of false alarms; none: 1 % and 0.1 %, with a reason where one cannot be shown.
        attacks: on signals of worlds, each a name or ``name:setting=value``; none: all of them.

    Raises:
        FedreError: a bad plan, or of a training or an attack.
    """
    plan = plan_worlds(run.settings, worlds=worlds, rates=rates, chosen=attacks)
    runs = run.folder.parent
    return run_membership(plan, runs=runs, device=choose_device(device), report=report)


def benchmark(
    protocols: Sequence[str | Settings | Protocol] = (),
    schemes: Sequence[str | Settings | Entanglement] = (),
    *,
    defenses: Sequence[str | Settings | Defense] = (),
    steerings: Sequence[str | Settings | Steering] = (),
    vary: Mapping[str, Settings] | None = None,
    sweep: str | Path | None = None,
    seeds: Sequence[int] | None = None,
    attacks: Sequence[str | Settings | Attack] | None = None,
    targets: int | None = None,
    dataset: str | Settings | Dataset | None = None,
    clients: int | None = None,
    rounds: int | None = None,
    partition: str | Settings | Partition | None = None,
    models: str | Settings | ModelSettings | None = None,
    set: Settings | None = None,
    runs: str | Path = "runs",
    out: str | Path | None = None,
    jobs: int = 1,
    engine: str = "local",
    device: str = "auto",
    retry: bool = False,
    prune: bool = False,
    report: Report = silent,
) -> BenchmarkResult:
    """Train and attack variants over seeds, and set them side by side.

    Every job runs in a process of its own; what is finished is read back. A variant that fails
    does not stop the others: see `BenchmarkResult.failures`.

    Args:
        protocols, schemes, defenses, steerings: what is compared; names, ``module:Class`` (a module
            that a new process in this folder can import), names with settings
            (``{"name": "m-of-n", "m": 2}``), or objects. Schemes are those of fedre; defences
            and steerings multiply the rest, ``none`` among them stands for an honest server.
        vary: further variants, label to settings: ``{"one epoch": {"train": {"epochs": 1}}}``.
        sweep: a sweep file in place of what to compare and attacks; seeds and targets that are
            given beside it win over its own.
        seeds: of the trainings; None: those of the sweep file, or 0, 1, 2.
        attacks: ``attack``, ``attack@target``, ``attack@target@threat``, objects, or settings such
            as ``{"attack": DeepImagePrior(steps=300), "target": "prototypes"}``; None: those that
            fit each variant's uploads.
        targets: targets per attack that is given by name or object.
        dataset, clients, rounds, partition, models, set: of all trainings, as for `train`.
        runs: folder of the run folders.
        out: folder of the benchmark; None: one in `runs`.
        jobs: trainings at once.
        engine: where jobs run, ``local`` or ``ray``.
        device: auto, cpu, cuda or cuda:N.
        retry: run again what failed before.
        prune: remove models and uploads of finished runs.
        report: called with an `Event` for every finished job.

    Raises:
        FedreError: settings that cannot work, before anything is trained.
    """
    given = training_values(
        dataset=dataset, clients=clients, rounds=rounds, partition=partition, models=models
    )
    values, _ = layered(given, assigned(set))
    problems = misplaced(set, ATTACK_SECTIONS, "a setting of an attack; give it in 'attacks'")
    wanted = comparison(
        values, problems, sweep=None if sweep is None else Path(sweep),
        protocols=several(protocols), schemes=several(schemes), defenses=several(defenses),
        steerings=several(steerings), vary=vary, seeds=seeds,
        attacks=None if attacks is None else several(attacks), targets=targets,
    )  # fmt: skip
    return run_benchmark(
        wanted, runs=Path(runs), out=None if out is None else Path(out), jobs=jobs,
        engine=engine, device=choose_device(device), retry=retry, prune=prune, report=report,
    )  # fmt: skip


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
        tolerance: see `publish.comparing`.
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
