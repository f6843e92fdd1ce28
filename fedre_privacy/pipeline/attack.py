"""Attack a recorded run: the only place where attacks and truth meet, on opposite sides."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from fedre_privacy.attacks.base import Context, attacks, mismatch, readers
from fedre_privacy.blocks.local import represent
from fedre_privacy.blocks.state import Samples
from fedre_privacy.core import files
from fedre_privacy.core.errors import (
    ConfigError,
    DamagedInputError,
    FedreError,
    IncompatibleError,
    MissingInputError,
)
from fedre_privacy.core.events import Event, Report, silent
from fedre_privacy.core.rng import stream
from fedre_privacy.core.types import (
    ORACLES,
    THREAT_MODELS,
    Knowledge,
    Observation,
    Reconstruction,
    Truth,
)
from fedre_privacy.core.units import human_bytes, plural
from fedre_privacy.data.base import ImageData
from fedre_privacy.eval import PublicImages, Scores, evaluate
from fedre_privacy.eval.metrics.base import metrics as metric_registry
from fedre_privacy.eval.report import attack_trace, reconstruction_sheet, save_figure
from fedre_privacy.eval.score import NOT_BETTER
from fedre_privacy.federation.recorder import read_messages
from fedre_privacy.protocols.base import Protocol

from .runs import COMPLETE, FAILED, PARTIAL, Run, begin, device_name, logging_to, versions
from .settings import AttackSettings, TrainSettings
from .targets import KINDS, TargetGroup, TargetSource, resolve_kind
from .train import write_csv

TARGET, ACTUAL, CEILING = "target", "actual", "ceiling"
NAMES = {"entangled": "entangled representations"}
"""Kinds whose name does not say what they are."""


@dataclass(frozen=True, eq=False)
class Game:
    """An attack ready to run: what the attacker gets, and what the evaluator keeps."""

    run: Run
    settings: AttackSettings
    kind: str
    groups: dict[str, TargetGroup]
    observation: Observation
    public: PublicImages
    data: ImageData

    @property
    def counterfactual(self) -> bool:
        """Whether the protocol does not upload what is attacked."""
        return self.groups[TARGET].counterfactual

    def lines(self) -> dict[str, str]:
        """The game in words: what was uploaded, who attacks, what is sought."""
        run, target = self.run, self.groups[TARGET]
        channels, height, width = run.image_shape
        dim = self.observation.target_rows()[0].shape[1]
        oracles = sorted(self.settings.threat.grants & ORACLES)
        attacker = self.settings.threat.summary
        if oracles:
            attacker += f". ORACLE: {', '.join(oracles)}"
        kind = NAMES.get(target.kind, target.kind)
        named = f"{kind} of round {target.uploads[0].round}"
        if target.counterfactual:
            named += f"   COUNTERFACTUAL: not uploaded by {run.settings.protocol.name}"
        return {
            "Uploaded": self._uploaded(),
            "Attacker": attacker,
            "Target": named,
            "Unknown": f"{len(target)} x {channels}x{height}x{width} values from {len(target)} x "
            f"{dim} observed",
        }

    def _uploaded(self) -> str:
        round = self.groups[TARGET].uploads[0].round
        uploads, _ = read_messages(self.run.folder / "uploads", [round])
        first = next((u for u in uploads if u.artifacts), None)
        if first is None:
            return f"nothing: {self.run.settings.protocol.name} uploads no artifact"
        what = " + ".join(
            f"{count} {content.replace('_', ' ')} values"
            for artifact in first.artifacts
            for content, count in artifact.scalars().items()
        )
        names = " + ".join(type(a).__name__ for a in first.artifacts)
        size = sum(a.nbytes() for a in first.artifacts)
        sizes = {sum(a.nbytes() for a in u.artifacts) for u in uploads}
        whom = "per client and round"
        if len(sizes) > 1:
            whom = f"by client {first.client} in round {round}, others differ"
        return f"{names}: {what} {whom} ({human_bytes(size)})"


def prepare_attack(run: Run, settings: AttackSettings, *, data: ImageData | None = None) -> Game:
    """Check that the attack fits the run, choose targets, and build the observation.

    Raises:
        IncompatibleError: the attack cannot read the target, or the threat model is too weak.
        MissingInputError: the run lacks a round, an extractor, or its truth.
        DamagedInputError: the data set is not the one the run was trained on.
    """
    protocol = run.settings.protocol
    require_complete(run)
    check_fit(protocol, settings)
    data = data or run.settings.data.load()
    if data.sha256 != run.record["data_sha256"]:
        raise DamagedInputError(
            f"The data set '{data.name}' has changed since {run.name} was trained (SHA-256 "
            f"{data.sha256[:12]}..., then {run.record['data_sha256'][:12]}...).",
            next_step="Restore the data, or train again with fedre-train --restart.",
        )
    evaluation = settings.evaluation
    source = TargetSource(run, data, round=evaluation.round, seed=evaluation.seed)
    kind = resolve_kind(source, settings.target, protocol.name)
    groups = {TARGET: source.group(kind, evaluation.targets)}
    actual = source.uploaded_kind()
    if actual is not None and actual != kind:
        groups[ACTUAL] = source.group(actual, evaluation.targets)
    if kind != "representations" and actual != "representations" and evaluation.ceiling:
        groups[CEILING] = source.group("representations", evaluation.ceiling)
    public, aux = _held_out(source, evaluation.public, evaluation.seed)
    for metric in settings.metrics.values():
        metric.check(run.image_shape)
    observation = _observe(run, settings, source, groups, aux)
    return Game(run, settings, kind, groups, observation, public, data)


def require_complete(run: Run) -> None:
    """Refuse a run that cannot be attacked whatever the attack.

    Raises:
        MissingInputError: its training did not finish.
        DamagedInputError: its record lacks what every record has.
    """
    absent = [key for key in ("status", "image_shape", "classes") if key not in run.record]
    if absent:
        raise DamagedInputError(
            f"{run.folder / 'record.json'} lacks {', '.join(absent)}: it is not a run's record, "
            "or it was changed.",
            next_step="Train again with fedre-train --restart.",
        )
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
    check_fit(training.protocol, settings)
    last, every = training.train.rounds, training.record.keep_every
    wanted = settings.evaluation.round or last
    problems = []
    if wanted > last:
        problems.append(f"'eval.round' is {wanted}; the training has {plural(last, 'round')}.")
    elif wanted != last and not (every and wanted % every == 0):
        problems.append(
            f"'eval.round' is {wanted}, whose extractors would not be kept: record.keep_every is "
            f"{every}. Add --set record.keep_every={wanted}."
        )
    if not training.record.truth:
        problems.append(
            "Without the truth (--no-truth) no attack can be scored. Leave it out, or train alone "
            "with fedre-train."
        )
    if problems:
        raise ConfigError(*problems)


def check_fit(protocol: Protocol, settings: AttackSettings) -> None:
    """Refuse an attack that cannot read the target, before anything is trained or loaded.

    Raises:
        IncompatibleError: with the attacks or the threat model that would do.
    """
    wanted = KINDS.get(settings.target)
    kinds = {wanted} if wanted else set(protocol.uploads)
    if not kinds:
        raise IncompatibleError(
            f"Protocol '{protocol.name}' uploads nothing, so target 'uploaded' is empty.",
            next_step="Ask what it would leak if it did: --target representations, prototypes or "
            "entangled (counterfactual).",
        )
    problems = mismatch(type(settings.attack), settings.threat, kinds)
    if not problems:
        return
    step = "See: fedre-attack list."
    if settings.attack.needs - settings.threat.grants:
        granted = settings.threat.grants
        options = [
            f"--threat {name}"
            for name, threat in THREAT_MODELS.items()
            if settings.attack.needs <= threat.grants
        ][:1]
        options += [f"--attack {n}" for n in readers(kinds) if attacks.get(n).needs <= granted]
        step = f"Use {', or '.join(options)}." if options else step
    raise IncompatibleError(*problems, next_step=step)


def _observe(
    run: Run,
    settings: AttackSettings,
    source: TargetSource,
    groups: Mapping[str, TargetGroup],
    aux: PublicImages,
) -> Observation:
    """Let through what the threat model grants, and nothing else."""
    threat = settings.threat
    observed = [source.round] if threat.rounds == "last" else None
    uploads, broadcasts = read_messages(run.folder / "uploads", observed)
    extractors = {}
    clients = sorted({u.client for group in groups.values() for u in group.uploads})
    if Knowledge.EXTRACTOR in threat.grants:
        rounds = run.kept_rounds() if Knowledge.ALL_EXTRACTORS in threat.grants else [source.round]
        if source.round not in rounds:
            rounds.append(source.round)  # raises below with the nearest kept round
        extractors = {(k, r): run.model(k, r).extractor for r in rounds for k in clients}
    return Observation(
        threat=threat,
        targets=tuple(upload for group in groups.values() for upload in group.uploads),
        uploads=tuple(u for u in uploads if u.round <= source.round),
        broadcasts=tuple(
            b for b in broadcasts if b.round <= source.round and Knowledge.HEAD in threat.grants
        ),
        extractors=extractors,
        image_shape=run.image_shape,
        num_classes=len(run.record["classes"]),
        aux=aux.images if Knowledge.AUX_DATA in threat.grants else None,
        aux_labels=aux.labels if Knowledge.AUX_DATA in threat.grants else None,
    )


def _held_out(source: TargetSource, limit: int, seed: int) -> tuple[PublicImages, PublicImages]:
    """Images that no client trained on, in two halves: for floors, and for the attacker."""
    pool = torch.cat(source.test)
    if len(pool) < 2:
        raise IncompatibleError(
            "No held-out images are left for the floors: the clients' test parts are empty.",
            next_step="Lower train.train_ratio, or use more images.",
        )
    order = pool[torch.randperm(len(pool), generator=stream(seed, "held out"))]
    half = len(order) // 2
    parts = (order[:half][:limit], order[half:][:limit])
    made = [PublicImages(source.data.floats(p), source.data.labels[p]) for p in parts]
    return made[0], made[1]


@dataclass(frozen=True, eq=False)
class AttackResult:
    """What an attack recovered, how well, and where it was written.

    Args:
        folder: the attack's folder inside the run.
        game: what was played.
        scores: "target", and where they apply "actual" (the real upload) and "ceiling" (single
            representations), each with its floors.
        recovered: the reconstructions of each.
    """

    folder: Path
    game: Game
    scores: dict[str, Scores]
    recovered: dict[str, Reconstruction]
    record: dict[str, Any] = field(default_factory=dict)

    def headings(self) -> dict[str, Scores]:
        """Columns of the result table beside the target's own."""
        out = {}
        if ACTUAL in self.scores:
            out[f"{self.game.groups[ACTUAL].kind} upload (actual)"] = self.scores[ACTUAL]
        if CEILING in self.scores:
            out["single representation (ceiling)"] = self.scores[CEILING]
        return out

    def table(self) -> list[dict[str, str]]:
        """The result table, row by row."""
        return self.scores[TARGET].table(self.headings())

    def verdict(self) -> str:
        """The verdict and its reason; one that found nothing says what that can mean."""
        summary = self.scores[TARGET].summary
        if summary["verdict"] != NOT_BETTER:
            return f"{summary['verdict']}: {summary['verdict_because']}"
        delta = summary["metrics"]["psnr"]["difference"]
        return (
            f"{summary['verdict']} (delta {delta:+.1f} dB, n = {summary['n']}): a weak attack or "
            f"a strong protocol. {summary['verdict_because']}"
        )

    def frame(self) -> pd.DataFrame:
        """Per-target scores of all groups."""
        return pd.concat(
            [scores.rows.assign(group=name) for name, scores in self.scores.items()],
            ignore_index=True,
        )

    def figure(self) -> Figure:
        """The reconstruction sheet."""
        game, target = self.game, self.scores[TARGET]
        words = game.lines()
        caption = (
            f"Run {game.run.name}. Uploaded: {words['Uploaded']}. Attacker: {words['Attacker']}. "
            f"Attack {game.settings.attack.name} on {words['Target'].split('   ')[0]}."
        )
        return reconstruction_sheet(
            target,
            self.recovered[TARGET].images,
            title=f"{game.settings.attack.name} on {game.kind} ({game.run.name})",
            caption=caption,
            extra=self._ceiling_columns(),
            counterfactual=game.run.settings.protocol.name if game.counterfactual else None,
            oracles=sorted(game.settings.threat.grants & ORACLES),
        )

    def _ceiling_columns(self) -> dict[str, Tensor]:
        if CEILING not in self.scores:
            return {}
        mine, other = self.game.groups[TARGET].truth, self.game.groups[CEILING].truth
        same_client = mine.target_clients[:, None] == other.target_clients[None]
        same_label = mine.target_labels[:, None] == other.target_labels[None]
        partner = (2 * same_client.int() + same_label.int()).argmax(1)
        return {
            "single image,\nsame client": self.scores[CEILING].originals[partner],
            "ceiling: from its\nrepresentation": self.recovered[CEILING].images[partner],
        }

    def __repr__(self) -> str:
        summary = self.scores[TARGET].summary
        return (
            f"AttackResult({self.game.settings.attack.name} on {self.game.kind} of "
            f"{self.game.run.name}: {summary['verdict']}; {summary['verdict_because']})"
        )


class _Shelf:
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
    game: Game | None = None,
) -> AttackResult:
    """Attack a recorded run, score the result, and write the attack's folder.

    All groups of targets go through the attack in one call. An identical finished attack is read
    back, not repeated.

    Raises:
        FedreError: anything that `prepare_attack` refuses, or an unfinished identical attack.
    """
    folder = run.folder / "attacks" / settings.folder_name
    finished = begin(folder, resume=resume, restart=restart, what="Attack")
    with logging_to(folder):
        return _attack(run, settings, folder, finished, device, report, game)


def _attack(
    run: Run,
    settings: AttackSettings,
    folder: Path,
    finished: bool,
    device: torch.device,
    report: Report,
    game: Game | None,
) -> AttackResult:
    game = game or prepare_attack(run, settings)
    report(Event("attack.game", {"lines": game.lines()}))
    started = time.monotonic()
    record: dict[str, Any] = {
        "status": PARTIAL,
        "run": run.name,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "device": device_name(device),
        **settings.plain(),
        "kind": game.kind,
        "counterfactual": game.counterfactual,
        "oracles": sorted(settings.threat.grants & ORACLES),
        "game": game.lines(),
    }
    shelf = _Shelf(folder / "checkpoints")
    if finished:
        report(Event("attack.reused", {"folder": str(folder)}))
        recovered = _read_back(folder)
        record = files.read_json(folder / "record.json")
    else:
        folder.mkdir(parents=True, exist_ok=True)
        config = {**run.settings.plain(), **settings.plain()}
        files.write_yaml(folder / "config.yaml", config)
        files.write_json(folder / "record.json", record)
        context = Context(settings.evaluation.seed, device, report, shelf)
        try:
            recovered = settings.attack(game.observation, context)
        except BaseException as error:
            record["status"] = PARTIAL if isinstance(error, KeyboardInterrupt) else FAILED
            record["failure"] = str(error) if isinstance(error, FedreError) else repr(error)
            files.write_json(folder / "record.json", record)
            raise
        tensors, texts = recovered.save()
        files.write_tensors(folder / "recovered.safetensors", tensors, metadata=texts)
    attack_s = time.monotonic() - started
    report(Event("attack.scoring"))
    parts = _cut(recovered, [len(group) for group in game.groups.values()])
    pieces = dict(zip(game.groups, parts, strict=True))
    scores = {
        name: _score(game, group, pieces[name], settings.metrics, settings.evaluation.rule)
        for name, group in game.groups.items()
    }
    result = AttackResult(folder, game, scores, pieces, record)
    if not finished:
        record |= {
            "status": COMPLETE,
            "attack_s": attack_s,
            "wall_s": time.monotonic() - started,
            "peak_memory": peak_memory(device),
            "stopped_because": recovered.stopped_because,
            "scores": {name: s.summary for name, s in scores.items()},
            "rules": _other_rules(game, pieces[TARGET]),
        }
        _write(result)
        shelf.clear()
        files.write_json(folder / "record.json", record)
    report(Event("attack.done", {"folder": str(folder), "wall_s": record["wall_s"]}))
    return result


def _cut(rec: Reconstruction, sizes: Sequence[int]) -> list[Reconstruction]:
    out, start = [], 0
    for size in sizes:
        rows = slice(start, start + size)
        out.append(
            Reconstruction(
                rec.images[rows],
                rec.prior[rows],
                rec.fit[rows],
                rec.trace[:, rows],
                rec.trace_steps,
                rec.stopped_because,
                rec.diverged[rows],
            )
        )
        start += size
    return out


def _read_back(folder: Path) -> Reconstruction:
    path = folder / "recovered.safetensors"
    try:
        return Reconstruction.load(files.read_tensors(path), files.read_metadata(path))
    except ValueError as error:
        raise DamagedInputError(f"{path} is not a recorded reconstruction: {error}.") from None


def _score(
    game: Game, group: TargetGroup, rec: Reconstruction, metrics: Mapping[str, Any], rule: str
) -> Scores:
    evaluation = game.settings.evaluation
    nearest = _nearest_by_representation(game, group) if rule == "nearest-rep" else None
    return evaluate(
        rec,
        group.truth,
        game.public,
        metrics=metrics,
        rule=rule,
        gallery=evaluation.gallery,
        seed=evaluation.seed,
        nearest=nearest,
    )


def _other_rules(game: Game, rec: Reconstruction) -> dict[str, Any]:
    """PSNR under every matching rule, for targets made of several images.

    The paper does not say which rule it used (FedRE, question 2), so all are recorded.
    """
    group = game.groups[TARGET]
    if group.kind == "representations":
        return {}
    psnr = {"psnr": metric_registry.get("psnr")()}
    out = {}
    for rule in ("best", "mean-image", "nearest-rep"):
        entry = _score(game, group, rec, psnr, rule).summary["metrics"]["psnr"]
        out[rule] = {
            key: entry[key] for key in ("mean", "n", "floor", "floor_mean", "leakage", "leakage_ci")
        }
    return out


def _nearest_by_representation(game: Game, group: TargetGroup) -> Tensor:
    """For each target the image of its support whose representation is closest to it."""
    truth: Truth = group.truth
    rows = torch.cat([r for u in group.uploads for a in u.artifacts if (r := a.rows()) is not None])
    reps = torch.empty(len(truth.images), rows.shape[1])
    for upload in group.uploads:
        where = (truth.clients == upload.client).nonzero().squeeze(1)
        extractor = game.run.model(upload.client, upload.round).extractor
        images = (truth.images[where] * 255).round().to(torch.uint8)
        reps[where] = represent(extractor, Samples(images, truth.labels[where]))
    distance = torch.cdist(rows.double(), reps.double())
    member = torch.zeros_like(distance, dtype=torch.bool)
    member[truth.mixture.row, truth.mixture.sample] = truth.mixture.weight > 0
    return distance.masked_fill(~member, torch.inf).argmin(1)


def _write(result: AttackResult) -> None:
    folder = result.folder
    frame = result.frame()
    files.write_text(folder / "scores.csv", frame.to_csv(index=False))
    rec = result.recovered[TARGET]
    write_csv(
        folder / "trace.csv",
        [
            {"step": int(step), **{f"target{i}": float(v) for i, v in enumerate(row)}}
            for step, row in zip(rec.trace_steps, rec.trace, strict=True)
        ],
    )
    save_figure(result.figure(), folder / "figure")
    if bool(rec.trace.isfinite().any()):
        title = f"{result.game.settings.attack.name} on {result.game.kind}"
        save_figure(attack_trace(rec.trace_steps, rec.trace, title=title), folder / "trace")


def peak_memory(device: torch.device) -> dict[str, int]:
    """Peak memory of this process, and of the GPU where one is used (bytes)."""
    scale = 1 if sys.platform == "darwin" else 1024
    out = {"process_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale}
    if device.type == "cuda":
        out["device_bytes"] = torch.cuda.max_memory_allocated(device)
    return out
