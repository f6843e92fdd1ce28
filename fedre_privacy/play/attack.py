"""Attack recorded uploads: the only place where attacks and truth meet, on opposite sides."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from fedre_privacy.attacks.base import (
    Context,
    attacks,
    can_read,
    lacking,
    mismatch,
    needed_for,
    readers_of_any,
)
from fedre_privacy.core import files
from fedre_privacy.core.artifacts import Holds
from fedre_privacy.core.errors import (
    ConfigError,
    DamagedInputError,
    IncompatibleError,
    MissingInputError,
)
from fedre_privacy.core.events import Event, Report, silent
from fedre_privacy.core.manifest import MADE_FROM, cover, covering
from fedre_privacy.core.memory import peak_bytes
from fedre_privacy.core.outcomes import Outcome
from fedre_privacy.core.schema import Count, Hash, Seconds, Word
from fedre_privacy.core.units import plural
from fedre_privacy.data.base import ImageData
from fedre_privacy.defenses.base import Defense
from fedre_privacy.eval import Card
from fedre_privacy.eval.report import save_figure
from fedre_privacy.federation.loop import select
from fedre_privacy.runs.folder import (
    COMPLETE,
    PARTIAL,
    Status,
    begin,
    device_name,
    logging_to,
    taken,
    versions,
    write_end,
)
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.settings import ATTACKS_FOR, AttackSettings, TrainSettings
from fedre_privacy.runs.training import loaded
from fedre_privacy.sealed.door import AUTO, chosen, play
from fedre_privacy.steering.apply import alone
from fedre_privacy.threats.base import threats

from .observe import effective, stale
from .questions.base import Trial, is_uploaded, question_of

PICTURES = "pictures.safetensors"
"""Private: the images that answers were scored against, and their floors (`Scores.pictures`)."""


class Finished(TypedDict):
    """``record.json`` of a finished attack, as far as it is read back."""

    status: Status
    started: Word
    device: Word
    versions: dict[Word, Word]
    attack_s: Seconds
    wall_s: Seconds
    peak_memory: NotRequired[dict[Word, Count]]
    run_manifest: NotRequired[Hash | None]


def prepare_attack(run: Run, settings: AttackSettings, *, data: ImageData | None = None) -> Trial:
    """Check that the attack fits the run, choose targets, and build the observation.

    Raises:
        IncompatibleError: the attack cannot read the target, or the threat model is too weak.
        MissingInputError: the run lacks a round, an extractor, or its truth.
        DamagedInputError: the data set is not the one the run was trained on.
    """
    require_complete(run)
    check_fit(run.settings, settings)
    check_sums(run.settings, settings)
    data = data or loaded(run.settings)[0]
    if data.sha256 != run.record["data_sha256"]:
        raise DamagedInputError(
            f"The data set '{data.name}' has changed since {run.name} was trained (SHA-256 "
            f"{data.sha256[:12]}..., then {run.record['data_sha256'][:12]}...).",
            next_step="Restore the data, or train again with fedre-train --restart.",
        )
    if data.image_shape != run.image_shape or list(data.classes) != run.record["classes"]:
        raise DamagedInputError(
            f"{run.folder / 'record.json'} tells of other images or classes than the data set "
            f"'{data.name}' holds.",
            next_step="Restore it, or train again with fedre-train --restart.",
        )
    return question_of(settings).prepare(run, settings, data)


def require_complete(run: Run) -> None:
    """Refuse a run that cannot be attacked whatever the attack.

    Raises:
        MissingInputError: its training did not finish.
        DamagedInputError: its record is not as it was written.
    """
    if run.record["status"] != COMPLETE:
        raise MissingInputError(
            f"Run {run.name} is {run.record['status']}: training did not finish.",
            next_step="Give the training command again with --resume.",
        )


def check_ahead(training: TrainSettings, settings: AttackSettings) -> None:
    """Refuse, before anything is trained, an attack that the trained run could not serve.

    Raises:
        IncompatibleError: see `check_fit`.
        ConfigError: the round would not exist or not be kept, or the truth would be missing.
    """
    check_fit(training, settings)
    check_sums(training, settings)
    last, every = training.train.rounds, training.record.keep_every
    wanted = settings.evaluation.round or (1 if settings.earliest else last)
    problems = []
    if wanted > last:
        problems.append(f"'eval.round' is {wanted}; the training has {plural(last, 'round')}.")
    elif not training.record.keeps(wanted, last) and not only_recorded(training, settings):
        add = "record.keep_first=true" if wanted == 1 else f"record.keep_every={wanted}"
        asked = "'eval.round' is" if settings.evaluation.round else "The attack is on round"
        problems.append(
            f"{asked} {wanted}, whose extractors would not be kept: record.keep_every is {every}. "
            f"Add --set {add}."
        )
    if settings.attack.several_rounds and wanted > 1 and not (every and every < wanted):
        problems.append(
            f"Attack '{settings.attack.name}' reads several rounds through clients' models, and "
            f"those of one round would be kept: record.keep_every is {every}. Add --set "
            "record.keep_every=1, or read one round alone: --set attack.rounds=1."
        )
    if not training.record.truth:
        problems.append(
            "Without the truth (--no-truth) no attack can be scored. Leave it out, or train alone "
            "with fedre-train."
        )
    if problems:
        raise ConfigError(*problems)
    age = settings.evaluation.staleness
    if age:
        kept = [r for r in range(1, last + 1) if training.record.keeps(r, last)]
        threat = effective(settings.threat, training.protocol.uploads, training.model)
        stale(threat, training.protocol, wanted, age, kept)


def only_recorded(training: TrainSettings, settings: AttackSettings) -> bool:
    """Whether any recorded round can be attacked, its extractors kept or not.

    So it is of images behind parameters, which hold what an attack reads; all of a client's images
    made them.
    """
    question = question_of(settings)
    kinds = question.kinds(training.protocol, settings)
    sent = all(kind.updates and kind.holds is not Holds.GRADIENT for kind in kinds)
    return settings.attack.answers == "images" and bool(kinds) and sent


def check_fit(training: TrainSettings, settings: AttackSettings) -> None:
    """Refuse an attack that cannot read the target, before anything is trained or loaded.

    Raises:
        IncompatibleError: with the attacks or the threat model that would do.
    """
    protocol = training.protocol
    if not protocol.uploads and is_uploaded(settings.target):
        raise IncompatibleError(
            f"Protocol '{protocol.name}' uploads nothing, so target '{settings.target}' is empty.",
            next_step="Ask what it would leak if it did: --target representations, prototypes or "
            "entangled (counterfactual).",
        )
    kinds = question_of(settings).kinds(protocol, settings)
    if not kinds:
        raise IncompatibleError(
            f"Protocol '{protocol.name}' uploads "
            f"{', '.join(kind.__name__ for kind in protocol.uploads) or 'nothing'}, none of which "
            f"is a target '{settings.target}'.",
            next_step="Attack what it uploads (--target uploaded), or ask what it would leak if "
            "it uploaded more: --target representations, prototypes or entangled (counterfactual).",
        )
    simulated = question_of(settings).simulates and any(kind.updates for kind in kinds)
    if training.unseen and simulated:
        raise IncompatibleError(
            "Attacks on parameters repeat the training of clients, or compute its loss, on images "
            f"they try; '{protocol.name}' {training.unseen}.",
            next_step=f"Ask for what can be read: fedre-attack --protocol {protocol.name} --target "
            "labels.",
        )
    threat = effective(settings.threat, protocol.uploads, training.model)
    problems = mismatch(settings.attack, threat, kinds)
    if settings.via is not None:
        problems += lacking(settings.via, threat, set(settings.via.consumes))
        if not any(can_read(settings.via, kind) for kind in protocol.uploads):
            problems.append(
                f"Attack '{settings.via.name}', which would recover the prototypes, reads "
                f"{', '.join(k.__name__ for k in settings.via.consumes)}; '{protocol.name}' "
                f"uploads {', '.join(k.__name__ for k in protocol.uploads) or 'nothing'}."
            )
    if not problems:
        return
    step = "See: fedre-attack list."
    fitting = [
        name
        for name, read in readers_of_any(kinds).items()
        if attacks.get(name).answers == settings.attack.answers and name != settings.attack.name
    ]
    needed = needed_for(settings.attack, kinds)
    if needed & settings.threat.grants - threat.grants:
        step = (
            "Each client draws its own initial weights (model.init=private), so nobody knows them. "
            "Attack from random weights, as that attacker has to: --threat no-extractor --set "
            "attack.start=random. Or train with model.init=shared."
        )
    elif needed - threat.grants:
        options = [
            f"--threat {name}" for name in threats.names() if needed <= threats.get(name).grants
        ][:1]
        options += [
            f"--attack {n}" for n in fitting if needed_for(attacks.get(n), kinds) <= threat.grants
        ]
        step = f"Use {', or '.join(options)}." if options else step
    elif fitting and settings.target == "uploaded" and all(kind.updates for kind in kinds):
        step = f"Use --target update, or --attack {' or '.join(fitting)}."
    elif fitting and settings.target in ATTACKS_FOR:
        step = f"Use --attack {' or '.join(fitting)}."
    elif not fitting:
        step = (
            "Ask what it would leak if it uploaded them: --target representations, prototypes or "
            "entangled (counterfactual)."
        )
    raise IncompatibleError(*problems, next_step=step)


def check_sums(training: TrainSettings, settings: AttackSettings) -> None:
    """Refuse an attack on single clients where the server sees their sum only.

    A sum of gradients or parameters is that of one larger batch and can be attacked as such.

    Raises:
        IncompatibleError: the attack asks about single clients.
    """
    summed = [d.name for d in training.defense if type(d).seen is not Defense.seen]
    joined = len(select(training.train, 1))
    last = settings.evaluation.round or training.train.rounds
    if alone(training.steering, training.train.clients, joined, range(1, last + 1)):
        return  # the server took what its own clients sent out of every sum
    updates = any(kind.updates for kind in training.protocol.uploads)
    on_updates = settings.target == "update" or (settings.target == "uploaded" and updates)
    if not summed or (on_updates and settings.attack.answers == "images"):
        return
    raise IncompatibleError(
        f"Under defence '{summed[0]}' the server sees one sum over clients a round; attack "
        f"'{settings.attack.name}' on target '{settings.target}' asks about single clients.",
        next_step="Attack the sum as one update of more images (--attack inverting-gradients "
        "--target update, for protocols that send gradients or parameters), or a run without "
        f"{summed[0]}.",
    )


@dataclass(frozen=True, eq=False)
class AttackResult:
    """What an attack recovered, how well, and where it was written.

    Args:
        folder: the attack's folder inside the run.
        trial: what was played.
        outcome: what the attack returned.
        card: its scores beside their floors.
        record: the contents of ``record.json``.
    """

    folder: Path
    trial: Trial
    outcome: Outcome
    card: Card
    record: dict[str, Any] = field(default_factory=dict)

    def table(self) -> list[dict[str, str]]:
        """The result table, row by row."""
        return self.card.table()

    def verdict(self) -> str:
        """The verdict and its reason."""
        return str(self.card.verdict)

    def frame(self) -> pd.DataFrame:
        """Scores of single targets."""
        return self.card.rows

    def figures(self) -> dict[str, Figure]:
        """Figures by file name, the main one first."""
        return self.trial.figures(self.outcome, self.card)

    def figure(self) -> Figure:
        """The main figure."""
        return next(iter(self.figures().values()))

    def __repr__(self) -> str:
        verdict = self.card.verdict
        return (
            f"AttackResult({self.trial.settings.attack.name} on {self.trial.kind} of "
            f"{self.trial.run.name}: {verdict.word}; {verdict.because})"
        )


class _FolderCache:
    """Finished tiles in the attack's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, name: str) -> dict[str, Tensor] | None:
        path = self.folder / f"{name}.safetensors"
        return files.read_tensors(path) if path.is_file() else None

    def save(self, name: str, tensors: dict[str, Tensor]) -> None:
        files.write_tensors(self.folder / f"{name}.safetensors", tensors)

    def clear(self) -> None:
        for path in self.folder.glob("*.safetensors"):
            path.unlink()
        if self.folder.is_dir():
            self.folder.rmdir()


def attack(
    run: Run,
    settings: AttackSettings,
    *,
    device: torch.device = torch.device("cpu"),  # noqa: B008
    resume: bool = False,
    restart: bool = False,
    report: Report = silent,
    trial: Trial | None = None,
    wait: bool = False,
    isolation: str = AUTO,
) -> AttackResult:
    """Attack a recorded run, score the result, and write the attack's folder.

    All groups of targets go through the attack in one call. An identical finished attack is read
    back, not repeated.

    Args:
        wait: wait for another process that runs it, and go on with what that leaves.
        isolation: how far the attack is kept from the run, see `sealed.door.ISOLATION`.

    Raises:
        FedreError: anything that `prepare_attack` refuses, an unfinished identical attack, or one
            that another process runs.
    """
    return attack_into(
        run.folder / "attacks" / settings.folder_name,
        settings,
        lambda: trial or prepare_attack(run, settings),
        device=device,
        resume=resume,
        restart=restart,
        report=report,
        wait=wait,
        isolation=isolation,
    )


def attack_into(
    folder: Path,
    settings: AttackSettings,
    prepare: Callable[[], Trial],
    *,
    device: torch.device,
    resume: bool = False,
    restart: bool = False,
    report: Report = silent,
    wait: bool = False,
    isolation: str = AUTO,
) -> AttackResult:
    """Attack what a trial holds, of whatever recording, and write a folder; see `attack`.

    Args:
        folder: where a finished attack of these settings is, or will be.
        prepare: makes the trial; called once nothing unfinished is in the way.
    """
    chosen(isolation, device)
    if begin(folder, resume=resume, restart=restart, what="Attack", wait=wait):
        return _reused(folder, settings, prepare(), report)
    trial = prepare()
    with taken(folder, resume=resume, restart=restart, what="Attack", wait=wait) as finished:
        if finished:
            return _reused(folder, settings, trial, report)
        with logging_to(folder):
            return _attack(folder, settings, trial, device, report, isolation)


def _reused(folder: Path, settings: AttackSettings, trial: Trial, report: Report) -> AttackResult:
    """A finished attack, read back and scored again."""
    report(Event("attack.trial", {"lines": trial.lines()}))
    listed = covering(folder)
    for name in {*listed.entries, "record.json", "recovered.safetensors"}:
        listed.check(folder / name)
    record = dict(files.read_json(folder / "record.json", Finished))
    now, then = trial.run.identity().get(MADE_FROM), record.get(MADE_FROM)
    if now != then:
        raise DamagedInputError(
            f"{folder} was made from another recording than the one that {trial.run.name} holds "
            f"now (manifest {str(now)[:12]}..., then {str(then)[:12]}...).",
            next_step="Attack again with --restart.",
        )
    report(Event("attack.reused", {"folder": str(folder)}))
    outcome = _read_back(folder, trial)
    report(Event("attack.scoring"))
    card = trial.score(outcome)
    report(Event("attack.done", {"folder": str(folder), "wall_s": record["wall_s"]}))
    return AttackResult(folder, trial, outcome, card, record)


def _attack(
    folder: Path,
    settings: AttackSettings,
    trial: Trial,
    device: torch.device,
    report: Report,
    isolation: str,
) -> AttackResult:
    report(Event("attack.trial", {"lines": trial.lines()}))
    started = time.monotonic()
    record: dict[str, Any] = {
        "status": PARTIAL,
        **trial.run.identity(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "device": device_name(device),
        **trial.settings.plain(),
        "kind": trial.kind,
        "counterfactual": trial.counterfactual,
        **({"active_server": trial.run.active} if trial.run.active else {}),
        "trial": trial.lines(),
        "adaptation": [asdict(one) for stage in trial.adaptations() for one in stage],
    }
    cache = _FolderCache(folder / "checkpoints")
    config = {**trial.run.plain(), **settings.plain()}
    files.write_yaml(folder / "config.yaml", config)
    files.write_json(folder / "record.json", record)
    context = Context(trial.attack_seed, device, report, cache)
    try:
        played = play(
            settings.attack,
            trial.observation,
            context,
            outcome=question_of(settings).outcome(),
            isolation=isolation,
            hidden=[*trial.hidden(), folder.parent.resolve()],
        )
    except BaseException as error:
        write_end(folder, record, error)
        raise
    outcome = played.outcome
    record |= {"isolation": played.how}
    tensors, texts = outcome.save()
    files.write_tensors(folder / "recovered.safetensors", tensors, metadata=texts)
    attack_s = time.monotonic() - started
    report(Event("attack.scoring"))
    card = trial.score(outcome)
    result = AttackResult(folder, trial, outcome, card, record)
    record |= {
        "status": COMPLETE,
        "attack_s": attack_s,
        "wall_s": time.monotonic() - started,
        "peak_memory": peak_memory(device, played.peak_bytes),
        **{k: v for k, v in outcome.save()[1].items() if k == "stopped_because"},
        **card.record(),
    }
    _write(result)
    cache.clear()
    cover(folder, record)
    report(Event("attack.done", {"folder": str(folder), "wall_s": record["wall_s"]}))
    return result


def _read_back(folder: Path, trial: Trial) -> Outcome:
    path, kind = folder / "recovered.safetensors", question_of(trial.settings).outcome()
    try:
        outcome = kind.load(files.read_tensors(path), files.read_metadata(path))
        problems = outcome.problems(trial.observation)
    except (ValueError, TypeError, IndexError, RuntimeError) as error:
        raise DamagedInputError(f"{path} is not a recorded result: {error}.") from None
    if problems:
        raise DamagedInputError(f"{path} is not a recorded result: it {problems[0]}")
    return outcome


def _write(result: AttackResult) -> None:
    folder = result.folder
    files.write_frame(folder / "scores.csv", result.frame())
    if pictures := result.card.pictures():
        files.write_tensors(folder / PICTURES, pictures)
    result.trial.write(folder, result.outcome)
    for name, figure in result.figures().items():
        save_figure(figure, folder / name)


def peak_memory(device: torch.device, attack_bytes: int = 0) -> dict[str, int]:
    """Peak memory of the larger process, and of the GPU where one is used (bytes)."""
    out = {"process_bytes": max(peak_bytes(), attack_bytes)}
    if device.type == "cuda":
        out["device_bytes"] = peak_bytes(device)
    return out
