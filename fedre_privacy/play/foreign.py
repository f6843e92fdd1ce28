"""Attack what another system recorded: uploads in the documented format and an extractor.

There is no run, no data set and often no truth. Without truth nothing is scored against images:
what can be said is how well each answer explains its own target, and how much worse others.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from fedre_privacy.attacks.base import Context, mismatch
from fedre_privacy.core import files
from fedre_privacy.core.errors import (
    ConfigError,
    DamagedInputError,
    IncompatibleError,
    MissingInputError,
)
from fedre_privacy.core.events import Event, Report, silent
from fedre_privacy.core.registry import import_own
from fedre_privacy.core.rng import derive
from fedre_privacy.core.types import (
    Broadcast,
    EntangledRep,
    Knowledge,
    LabelEstimate,
    Mixture,
    Observation,
    Outcome,
    Reconstruction,
    ThreatModel,
    Truth,
    Upload,
)
from fedre_privacy.core.units import plural
from fedre_privacy.eval import PublicImages, Scores, evaluate
from fedre_privacy.federation.recorder import read_messages, rounds_recorded
from fedre_privacy.runs.folder import (
    COMPLETE,
    FAILED,
    PARTIAL,
    begin,
    device_name,
    logging_to,
    versions,
)
from fedre_privacy.runs.settings import AttackSettings
from fedre_privacy.sealed.door import AUTO, chosen, play
from fedre_privacy.sealed.modules import Held, Key, Modules, Recipe

from .evidence import evidence, evidence_table, explained
from .given import as_images, output_width, shape_text

THREAT = ThreatModel(
    "foreign",
    frozenset({Knowledge.UPLOADS, Knowledge.EXTRACTOR, Knowledge.HEAD}),
    "last",
    "whoever holds the recorded uploads and the clients' extractor (white box)",
)
UNSUPPORTED = (
    "Supported on uploads of other systems: attacks on images that read representations, "
    "prototypes or entangled representations (dip, pixel; with --aux linear, decoder), and labels."
)


@dataclass(frozen=True)
class Recorded:
    """What the other system gave.

    Args:
        uploads: folder with ``index.json``, the index itself, or one of its safetensors files.
        extractor: ``package:function`` that returns an `nn.Module`, images in [0, 1]
            (n, C, H, W) to representations (n, d).
        weights: safetensors file of its state, for all clients, or ``client<k>/<name>`` for each.
        image_shape: (C, H, W).
        classes: number of classes, where the uploads do not show it.
        aux: ``npz:FILE`` with ``images`` and maybe ``labels``: public images.
        truth: npz file with ``images``, maybe ``labels``, and ``row``: the target that each
            image went into (left out: image i made target i).
    """

    uploads: Path
    extractor: str
    weights: Path
    image_shape: tuple[int, int, int]
    classes: int | None = None
    aux: str | None = None
    truth: str | None = None

    def plain(self) -> dict[str, Any]:
        """As written to ``config.yaml``."""
        out = {k: str(v) for k, v in dataclasses.asdict(self).items() if v is not None}
        return {**out, "image_shape": list(self.image_shape), "classes": self.classes}


@dataclass(frozen=True, eq=False)
class ForeignGame:
    """An attack ready to run on uploads of another system."""

    recorded: Recorded
    settings: AttackSettings
    observation: Observation
    truth: Truth | None
    public: PublicImages | None
    kinds: tuple[str, ...]

    @property
    def round(self) -> int:
        """The attacked round."""
        return self.observation.targets[0].round

    def lines(self) -> dict[str, str]:
        """The game in words."""
        seen = self.observation
        clients = len({upload.client for upload in seen.targets})
        shape = shape_text(seen.image_shape)
        labels = self.settings.attack.answers == "labels"
        sought = f"labels of {plural(clients, 'client')}, {seen.num_classes} classes"
        if not labels:
            rows, _ = seen.target_rows()
            sought = f"{len(rows)} x {shape} values from {len(rows)} x {rows.shape[1]} observed"
        against = "the images given" if self.truth is not None else "none given: nothing is scored"
        return {
            "Uploaded": f"{', '.join(self.kinds)} of {plural(clients, 'client')}, recorded by "
            "another system",
            "Attacker": seen.threat.summary,
            "Target": f"{', '.join(self.kinds)} of round {self.round}",
            "Unknown": sought,
            "Truth": against,
        }


@dataclass(frozen=True, eq=False)
class ForeignResult:
    """What was recovered from another system's uploads.

    Args:
        rows: one row per target: client, label and, of images, the relative squared distance of
            the answer's representation to its own target (``residual``), to the other targets of
            the client (``mismatched``) and of a grey image to the target (``grey``).
        scores: against the truth, where it was given.
    """

    folder: Path
    game: ForeignGame
    outcome: Outcome
    rows: pd.DataFrame
    scores: Scores | None = None
    record: dict[str, Any] = field(default_factory=dict)

    def table(self) -> list[dict[str, str]]:
        """Scores beside floors with truth; residuals without."""
        if self.scores is not None:
            return self.scores.table({})
        if isinstance(self.outcome, LabelEstimate):
            return [
                {str(k): str(v) for k, v in row.items()} for row in self.rows.to_dict("records")
            ]
        return evidence_table(self.rows)

    def verdict(self) -> str:
        """What can be said."""
        if self.scores is not None:
            summary = self.scores.summary
            return f"{summary['verdict']}: {summary['verdict_because']}"
        if isinstance(self.outcome, LabelEstimate):
            return "not scored: no truth was given"
        return f"not scored: no truth was given. {explained(self.rows)}"


def prepare_foreign(recorded: Recorded, settings: AttackSettings) -> ForeignGame:
    """Read and check everything before any step is taken.

    Raises:
        MissingInputError, DamagedInputError: a file is absent or not what it should be.
        IncompatibleError: uploads, extractor, images and attack do not fit each other.
        ConfigError: the extractor cannot be imported.
    """
    answers = settings.attack.answers
    if answers not in ("images", "labels"):
        raise IncompatibleError(
            f"Attack '{settings.attack.name}' answers {answers}, which needs a recorded run.",
            next_step=UNSUPPORTED,
        )
    uploads, broadcasts = _messages(recorded.uploads, settings.evaluation.round)
    wanted = settings.attack.consumes
    kept = tuple(
        Upload(u.client, u.round, chosen)
        for u in uploads
        if (chosen := tuple(a for a in u.artifacts if isinstance(a, wanted)))
    )
    if answers == "images":
        kept = tuple(
            Upload(u.client, u.round, chosen)
            for u in kept
            if (chosen := tuple(a for a in u.artifacts if a.rows() is not None))
        )
    if not kept:
        found = sorted({str(a.kind) for u in uploads for a in u.artifacts})
        raise IncompatibleError(
            f"Attack '{settings.attack.name}' reads nothing of {recorded.uploads}: it holds "
            f"{', '.join(found) or 'no artifact'}.",
            next_step=UNSUPPORTED,
        )
    public = _images(recorded.aux, recorded.image_shape, "--aux") if recorded.aux else None
    targets = kept if answers == "labels" else _first(kept, settings.evaluation.targets)
    truth = _truth(recorded, targets) if recorded.truth and answers == "images" else None
    if recorded.truth and answers != "images":
        raise IncompatibleError(
            "--truth gives images; attack 'labels' finds none to compare with them.",
            next_step="Leave --truth out, or attack images: --attack dip.",
        )
    floors = None
    if truth is not None:
        if public is None:
            raise MissingInputError(
                "--truth needs --aux: floors, without which no score is shown, are made of public "
                "images.",
                next_step="Give public images of the same size, --aux npz:FILE, or leave --truth "
                "out.",
            )
        half = len(public.labels) // 2
        floors = PublicImages(public.images[:half], public.labels[:half])
        public = PublicImages(public.images[half:], public.labels[half:])
    threat = THREAT
    if public is not None:
        threat = dataclasses.replace(
            THREAT,
            grants=THREAT.grants | {Knowledge.AUX_DATA},
            summary=f"{THREAT.summary}, and {len(public.labels)} public images",
        )
    kinds = {type(a) for u in targets for a in u.artifacts}
    problems = mismatch(settings.attack, threat, kinds)
    if problems:
        raise IncompatibleError(*problems, next_step=UNSUPPORTED)
    for metric in settings.metrics.values() if truth is not None else ():
        metric.check(recorded.image_shape)
    keys = sorted({(u.client, u.round) for u in targets})
    extractors = load_extractors(recorded, keys)
    if answers == "images":
        _check_widths(recorded, extractors, targets)
    observation = Observation(
        threat=threat,
        targets=targets,
        uploads=tuple(uploads),
        broadcasts=tuple(broadcasts),
        extractors=extractors,
        image_shape=recorded.image_shape,
        num_classes=_classes(recorded, uploads),
        aux=None if public is None else public.images,
        aux_labels=None if public is None else public.labels,
    )
    names = tuple(sorted({str(a.kind) for u in targets for a in u.artifacts}))
    return ForeignGame(recorded, settings, observation, truth, floors, names)


def _messages(given: Path, round: int | None) -> tuple[list[Upload], list[Broadcast]]:
    if not given.exists():
        raise MissingInputError(
            f"No uploads at {given}.",
            next_step="Give a folder with index.json and safetensors files "
            "(docs/artifact_format.md).",
        )
    folder = given if given.is_dir() else given.parent
    if given.is_file() and given.name != "index.json":
        files.read_tensors(given)
        if not (folder / "index.json").is_file():
            raise MissingInputError(
                f"{given} has no index.json beside it, which says what its tensors are.",
                next_step="Write one (docs/artifact_format.md); it is a few lines of JSON.",
            )
    rounds = rounds_recorded(folder)
    if given.suffix == ".safetensors":
        index = files.read_json(folder / "index.json")
        rounds = sorted({m["round"] for m in index["messages"] if m["file"] == given.name})
    if not rounds:
        raise MissingInputError(f"{given} holds no upload of any client.")
    if round is not None and round not in rounds:
        near = min(rounds, key=lambda r: abs(r - round))
        raise MissingInputError(
            f"Round {round} was not recorded; recorded: {', '.join(map(str, rounds))}.",
            next_step=f"Use --round {near}.",
        )
    return read_messages(folder, [0, rounds[-1] if round is None else round])


def _first(uploads: tuple[Upload, ...], count: int) -> tuple[Upload, ...]:
    """The first `count` targets in the order of the index."""
    out, left = [], count
    for upload in uploads:
        parts = []
        for artifact in upload.artifacts:
            rows = artifact.rows()
            size = 0 if rows is None else min(left, len(rows))
            if size:
                parts.append(artifact.take(torch.arange(size)))
                left -= size
        if parts:
            out.append(Upload(upload.client, upload.round, tuple(parts)))
    return tuple(out)


def load_extractors(recorded: Recorded, keys: Sequence[Key]) -> Modules:
    """Each client's extractor by (client, round), built once to see that its weights fit.

    Raises:
        ConfigError: the function is not there, fails, or returns no module.
        IncompatibleError: the weights are not those of this module.
    """
    make = _imported(recorded.extractor)
    state = files.read_tensors(recorded.weights)
    own = any(name.startswith("client") and "/" in name for name in state)
    states: dict[int, dict[str, Tensor]] = {}
    for client in dict.fromkeys(client for client, _ in keys):
        if not own and states:
            states[client] = next(iter(states.values()))
            continue
        prefix = f"client{client}/" if own else ""
        found = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
        try:
            module = make()
        except Exception as error:
            raise ConfigError(f"--extractor {recorded.extractor} fails: {error!r}.") from None
        if not isinstance(module, nn.Module):
            raise ConfigError(
                f"--extractor {recorded.extractor} returns a {type(module).__name__}, not an "
                "nn.Module."
            )
        try:
            module.load_state_dict(found)
        except RuntimeError as error:
            words = " ".join(str(error).split())
            raise IncompatibleError(
                f"{recorded.weights} does not fit --extractor {recorded.extractor}: {words}",
                next_step="Give the weights of this very module, as safetensors of its "
                "state_dict().",
            ) from None
        states[client] = found
    recipe = Recipe(factory=recorded.extractor)
    return Modules({key: Held(recipe, partial(states.__getitem__, key[0])) for key in keys})


def _imported(path: str) -> Any:
    module, colon, name = path.partition(":")
    if not colon or not module or not name:
        raise ConfigError(f"--extractor is package:function, for example mine:make; got '{path}'.")
    try:
        found = getattr(import_own(module), name, None)
    except Exception as error:
        raise ConfigError(f"--extractor {path}: {module} cannot be imported: {error!r}.") from None
    if not callable(found):
        raise ConfigError(f"--extractor {path}: module {module} has no function '{name}'.")
    return found


def _check_widths(
    recorded: Recorded, extractors: Mapping[Key, nn.Module], targets: tuple[Upload, ...]
) -> None:
    shape = recorded.image_shape
    for upload in targets:
        width = output_width(
            extractors[upload.client, upload.round],
            shape,
            what="extractor",
            option="--image-shape CxHxW",
        )
        for artifact in upload.artifacts:
            rows = artifact.rows()
            if rows is not None and rows.shape[1] != width:
                raise IncompatibleError(
                    f"Client {upload.client}'s {artifact.kind} have {rows.shape[1]} values; the "
                    f"extractor returns {width} for an image of {shape_text(shape)}.",
                    next_step="Is it the extractor of this client, without the head, and is the "
                    "image size right?",
                )


def _classes(recorded: Recorded, uploads: list[Upload]) -> int:
    if recorded.classes is not None:
        return recorded.classes
    seen = [2]
    for upload in uploads:
        for artifact in upload.artifacts:
            labels = getattr(artifact, "labels", None)
            if isinstance(artifact, EntangledRep):
                seen.append(len(artifact.encoding))
            elif isinstance(labels, Tensor) and len(labels):
                seen.append(int(labels.max()) + 1)
    return max(seen)


def _images(given: str, shape: tuple[int, int, int], option: str) -> PublicImages:
    tensors = _npz(_path(given), option)
    images = as_images(tensors["images"], what=option, image_shape=shape)
    labels = torch.from_numpy(
        np.asarray(tensors.get("labels", np.zeros(len(images))), dtype=np.int64)
    )
    return PublicImages(images, labels)


def _path(given: str) -> Path:
    return Path(given.removeprefix("npz:"))


def _npz(path: Path, option: str) -> dict[str, np.ndarray[Any, Any]]:
    if not path.is_file():
        raise MissingInputError(f"{option}: no file at {path}.")
    try:
        with np.load(path, allow_pickle=False) as found:
            tensors = {name: found[name] for name in found.files}
    except Exception as error:
        raise DamagedInputError(f"{option}: {path} is not an npz file: {error}.") from None
    if "images" not in tensors:
        raise DamagedInputError(
            f"{option}: {path} holds {', '.join(tensors) or 'nothing'}; needed is 'images'."
        )
    return tensors


def _truth(recorded: Recorded, targets: tuple[Upload, ...]) -> Truth:
    path = _path(str(recorded.truth))
    images = _images(str(path), recorded.image_shape, "--truth")
    count, tensors = len(images.labels), _npz(path, "--truth")
    owners: list[int] = []
    labels: list[int] = []
    for upload in targets:
        for artifact in upload.artifacts:
            size = len(artifact.rows())  # type: ignore[arg-type]
            owners += [upload.client] * size
            own = getattr(artifact, "labels", None)
            labels += own.tolist() if isinstance(own, Tensor) else [-1] * size
    row = torch.from_numpy(np.asarray(tensors.get("row", np.arange(count)), dtype=np.int64))
    if len(row) != count:
        raise IncompatibleError(f"--truth: 'row' has {len(row)} entries for {count} images.")
    if len(tensors.get("row", ())) == 0 and count < len(owners):
        raise IncompatibleError(
            f"--truth: {count} images for {len(owners)} targets.",
            next_step="Give one image for each target, in order, or 'row' with the target of each.",
        )
    kept = row < len(owners)
    row, position = row[kept], kept.nonzero().squeeze(1)
    sizes = torch.bincount(row, minlength=len(owners))
    if bool((sizes == 0).any()):
        raise IncompatibleError(
            f"--truth: target {int((sizes == 0).nonzero()[0])} has no image in 'row'."
        )
    return Truth(
        images=images.images[position],
        labels=images.labels[position],
        clients=torch.tensor(owners)[row],
        mixture=Mixture(row, torch.arange(len(row)), 1 / sizes[row].float(), len(owners)),
        target_clients=torch.tensor(owners),
        target_labels=torch.tensor(labels),
    )


def attack_foreign(
    recorded: Recorded,
    settings: AttackSettings,
    *,
    page: Callable[[ForeignResult], object],
    runs: Path = Path("runs"),
    device: torch.device = torch.device("cpu"),  # noqa: B008
    resume: bool = False,
    restart: bool = False,
    report: Report = silent,
    isolation: str = AUTO,
) -> ForeignResult:
    """Attack recorded uploads of another system and write a folder.

    Args:
        page: called with the result, to write figure and page.

    Raises:
        FedreError: what `prepare_foreign` refuses, or an unfinished identical attack.
    """
    chosen(isolation, device)
    game = prepare_foreign(recorded, settings)
    plain = {**recorded.plain(), **settings.plain()}
    images = [_path(one) for one in (recorded.aux, recorded.truth) if one is not None]
    named = {
        "uploads": files.tensor_sha256(*_tensors(game.observation)),
        "files": [files.file_sha256(path) for path in (recorded.weights, *images)],
    }
    digest = files.settings_hash({**plain, **named})[:8]
    folder = runs / f"foreign-{settings.attack.name}-{digest}".replace(":", ".")
    finished = begin(folder, resume=resume, restart=restart, what="Attack")
    report(Event("attack.game", {"lines": game.lines()}))
    started = time.monotonic()
    with logging_to(folder):
        record: dict[str, Any] = {
            "status": PARTIAL,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": versions(),
            "device": device_name(device),
            **plain,
            "uploads_sha256": named["uploads"],
            "weights_sha256": named["files"][0],
            "game": game.lines(),
        }
        path = folder / "recovered.safetensors"
        kind = LabelEstimate if settings.attack.answers == "labels" else Reconstruction
        outcome: Outcome
        if finished:
            report(Event("attack.reused", {"folder": str(folder)}))
            record = files.read_json(folder / "record.json")
            outcome = kind.load(files.read_tensors(path), files.read_metadata(path))
        else:
            folder.mkdir(parents=True, exist_ok=True)
            files.write_yaml(folder / "config.yaml", plain)
            files.write_json(folder / "record.json", record)
            try:
                context = Context(derive(settings.evaluation.seed, "attack"), device, report)
                played = play(
                    settings.attack,
                    game.observation,
                    context,
                    outcome=kind,
                    isolation=isolation,
                    hidden=[one.resolve() for one in (folder.parent, recorded.uploads, *images)],
                )
                outcome = played.outcome
                record |= {"isolation": played.how}
            except BaseException as error:
                record["status"] = PARTIAL if isinstance(error, KeyboardInterrupt) else FAILED
                files.write_json(folder / "record.json", record)
                raise
            tensors, texts = outcome.save()
            files.write_tensors(path, tensors, metadata=texts)
        result = _judged(folder, game, outcome, record)
        if not finished:
            record |= {
                "status": COMPLETE,
                "wall_s": time.monotonic() - started,
                "verdict": result.verdict(),
                "table": result.table(),
            }
            if result.scores is not None:
                record["scores"] = result.scores.summary
        if not finished or not (folder / "report.html").is_file():
            page(result)
            files.write_json(folder / "record.json", record)
    return result


def _tensors(observation: Observation) -> list[Tensor]:
    return [
        tensor
        for upload in observation.targets
        for artifact in upload.artifacts
        for tensor in artifact.tensors().values()
    ]


def _judged(
    folder: Path, game: ForeignGame, outcome: Outcome, record: dict[str, Any]
) -> ForeignResult:
    if not isinstance(outcome, Reconstruction):
        return ForeignResult(folder, game, outcome, _label_rows(outcome, game), record=record)
    rows, scores = evidence(game.observation, outcome), None
    if game.truth is not None and game.public is not None:
        evaluation = game.settings.evaluation
        scores = evaluate(
            outcome,
            game.truth,
            game.public,
            metrics=game.settings.metrics,
            rule="best" if evaluation.rule == "auto" else evaluation.rule,
            gallery=evaluation.gallery,
            seed=evaluation.seed,
        )
    return ForeignResult(folder, game, outcome, rows, scores, record)


def _label_rows(outcome: Outcome, game: ForeignGame) -> pd.DataFrame:
    if not isinstance(outcome, LabelEstimate):
        raise TypeError(f"expected labels, not {outcome}")
    tensors = {k: v for k, v in outcome.save()[0].items() if v.dim() >= 1}
    count = len(tensors["clients"])
    return pd.DataFrame(
        {
            name: [_cell(value[i]) for i in range(count)]
            for name, value in tensors.items()
            if len(value) == count
        }
    )


def _cell(value: Tensor) -> str:
    if value.dim():
        return " ".join(f"{v:.3g}" for v in value.tolist())
    return f"{value.item():.6g}"
