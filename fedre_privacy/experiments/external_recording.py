"""Uploads that another system recorded, in the documented format, with a module of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedre_privacy.core import files
from fedre_privacy.core.artifact_schema import Role
from fedre_privacy.core.artifacts import (
    ClassStatistics,
    EntangledRep,
    GradientState,
    ModelChange,
    ModelState,
    Prototypes,
    Representations,
)
from fedre_privacy.core.errors import (
    ConfigError,
    DamagedInputError,
    FedreError,
    IncompatibleError,
    MissingInputError,
)
from fedre_privacy.core.types import Broadcast, Knowledge, ThreatModel, Truth, Upload
from fedre_privacy.core.units import first_few
from fedre_privacy.data.arrays import read_pixels
from fedre_privacy.eval import PublicImages
from fedre_privacy.federation.recorder import read_index, read_messages, rounds_recorded
from fedre_privacy.runs.settings import AttackSettings

from . import external_training as updates
from .external_checks import MASKED, CheckedUpload, Findings, by_clients, check_upload
from .external_modules import Starts, States, extractor_states, load_extractors
from .external_uploads import ExternalUploads, classes_seen, supporting_attacks, truth_of
from .questions.base import Trial
from .user_checks import Shape, output_width, shape_text
from .user_inputs import statistics_of

ROWS = (Representations, Prototypes, EntangledRep, ClassStatistics)
UPDATES = (GradientState, ModelState, ModelChange)
"""Kinds of uploads with an extractor, and with a network."""

THREAT = ThreatModel(
    "foreign",
    frozenset({Knowledge.UPLOADS, Knowledge.EXTRACTOR, Knowledge.HEAD}),
    "last",
    "whoever holds the recorded uploads and the clients' extractor (white box)",
)


@dataclass(frozen=True)
class ExternalRecording:
    """What the other system gave.

    Args:
        uploads: folder with ``index.json``, the index itself, or one of its safetensors files.
        image_shape: (C, H, W).
        extractor: ``package:function`` that returns an `nn.Module`, images in [0, 1]
            (n, C, H, W) to representations (n, d); for representations and prototypes.
        weights: safetensors file of its state, for all clients, or ``client<k>/<name>`` for each.
        network: ``package:function`` that returns the whole model, images in [0, 1] to logits
            (n, classes), in place of these; for gradients and updates. What the server sent to
            clients gives its parameters.
        classes: number of classes, where the uploads do not show it.
        aux: ``npz:FILE`` with ``images`` and maybe ``labels``: public images.
        truth: npz file with ``images``, maybe ``labels``, and ``row``: the target that each
            image went into (left out: image i made target i).
    """

    uploads: Path
    image_shape: Shape
    extractor: str | None = None
    weights: Path | None = None
    network: str | None = None
    classes: int | None = None
    aux: str | None = None
    truth: str | None = None

    def plain(self) -> dict[str, Any]:
        """As written to ``config.yaml``."""
        out = {k: str(v) for k, v in dataclasses.asdict(self).items() if v is not None}
        return {**out, "image_shape": list(self.image_shape), "classes": self.classes}

    def command(self) -> tuple[str, ...]:
        """The words of ``fedre-attack`` that give it again."""
        words = ["fedre-attack"]
        for name, value in self.plain().items():
            shown = shape_text(self.image_shape) if name == "image_shape" else str(value)
            words += [] if value is None else [f"--{name.replace('_', '-')}", shown]
        return tuple(words)


def read_external_uploads(
    recorded: ExternalRecording, round: int | None, per_update: int = 4
) -> ExternalUploads:
    """Read what another system wrote, checked before any step is taken.

    Args:
        round: the attacked one; None: the last.
        per_update: images sought in each gradient or update, at most as many as made it.

    Raises:
        MissingInputError, DamagedInputError: a file is absent or not what it should be.
        IncompatibleError: images that do not fit.
    """
    uploads, broadcasts, faults = _messages(recorded.uploads, round)
    shape = recorded.image_shape
    public = _Images.read(recorded.aux, shape, "--aux").public if recorded.aux else None
    images = [_path(one) for one in (recorded.aux, recorded.truth) if one is not None]
    given = ExternalUploads(
        name="another system",
        system="another system",
        image_shape=recorded.image_shape,
        num_classes=recorded.classes or classes_seen(
            [one for place, one in enumerate(uploads) if place not in faults]
        ),
        uploads=tuple(uploads),
        broadcasts=tuple(broadcasts),
        threat=THREAT,
        extractors=lambda keys: {},
        public=public,
        settings=recorded.plain(),
        marks={
            "uploads_sha256": files.tensor_sha256(
                *(t for u in uploads for a in u.artifacts for t in a.tensors().values())
            ),
        },
        size_option="--image-shape CxHxW",
        command=recorded.command(),
        sources=(recorded.uploads, *images),
        supported=supporting_attacks("uploads of other systems", ROWS, THREAT),
        truth_needs_public="--truth needs --aux: give public images of the same size, --aux "
        "npz:FILE, or leave --truth out.",
    )  # fmt: skip
    if recorded.network is not None:
        return _with_network(given, recorded, recorded.network, faults, per_update)
    if recorded.extractor is None or recorded.weights is None:
        raise ConfigError(
            "Whose uploads are these? Give --extractor PKG:FN with --weights FILE for "
            "representations and prototypes, or --network PKG:FN for gradients and updates."
        )
    return _with_extractor(given, recorded, recorded.extractor, recorded.weights, faults)


def _with_extractor(
    given: ExternalUploads,
    recorded: ExternalRecording,
    extractor: str,
    weights: Path,
    faults: Mapping[int, str],
) -> ExternalUploads:
    """Representations and prototypes, with the modules that made them."""
    clients = sorted({upload.client for upload in given.uploads})
    states = extractor_states(extractor, weights, files.read_tensors(weights), clients)
    lost: dict[int, FedreError] = {
        place: DamagedInputError(f"{recorded.uploads}: {fault}.") for place, fault in faults.items()
    }
    for place, upload in enumerate(given.uploads):
        if place not in lost and upload.client in states.lost:
            lost[place] = states.lost[upload.client]
    lost |= _of_other_widths(given, recorded, extractor, states, lost)
    kept = _keep_attackable(given.uploads, lost)
    said = [(u.client, clause) for u in kept for clause in states.said[u.client]]
    findings = Findings.of(
        said, [(given.uploads[place].client, error) for place, error in lost.items()]
    )
    return dataclasses.replace(
        given,
        uploads=kept,
        extractors=partial(load_extractors, extractor, states.known, recorded.image_shape),
        truth=None
        if recorded.truth is None
        else partial(_truth, recorded.truth, recorded.image_shape, given.uploads, frozenset(lost)),
        marks={**given.marks, "weights_sha256": files.file_sha256(weights)},
        findings=findings,
    )


def _of_other_widths(
    given: ExternalUploads,
    recorded: ExternalRecording,
    extractor: str,
    states: States,
    lost: Collection[int],
) -> dict[int, FedreError]:
    """Uploads whose vectors the extractor cannot have made, where it can have made others'."""
    widths = {
        place: {
            rows.shape[1]
            for artifact in upload.artifacts
            if Role.COLLECTED in artifact.roles and (rows := artifact.rows()) is not None
        }
        for place, upload in enumerate(given.uploads)
        if place not in lost
    }
    if len(set[int]().union(*widths.values())) < 2:
        return {}
    module = load_extractors(
        extractor, states.known, recorded.image_shape, [(client, 0) for client in states.known]
    )
    width = output_width(
        next(iter(module.values())),
        recorded.image_shape,
        what="extractor",
        option=given.size_option,
    )
    return {
        place: IncompatibleError(f"its vectors have {first_few(sorted(own))} values; the extractor "
                                 f"returns {width}")
        for place, own in widths.items() if own - {width}
    }  # fmt: skip


def _with_network(
    given: ExternalUploads,
    recorded: ExternalRecording,
    network: str,
    faults: Mapping[int, str],
    per_update: int,
) -> ExternalUploads:
    """Gradients and updates, with the models that they started from."""
    sent = [
        (dataclasses.replace(upload, artifacts=own), faults.get(place))
        for place, upload in enumerate(given.uploads)
        if upload.round > 0 and ((own := tuple(a for a in upload.artifacts if a.updates))
                                 or place in faults)
    ]  # fmt: skip
    if not sent:
        held = sorted({str(a.kind) for upload in given.uploads for a in upload.artifacts})
        raise IncompatibleError(
            f"{recorded.uploads} holds no gradient and no update: it holds {', '.join(held)}.",
            next_step="Give --extractor and --weights for representations and prototypes.",
        )
    starts = Starts(network, given.broadcasts, given.image_shape)
    folder = recorded.uploads if recorded.uploads.is_dir() else recorded.uploads.parent
    sizes = updates.declared_sizes(folder)
    found: dict[int, CheckedUpload] = {}
    lost: dict[int, FedreError] = {}
    for place, (upload, fault) in enumerate(sent):
        try:
            if fault is not None:
                raise DamagedInputError(f"{recorded.uploads}: {fault}.")
            start = starts.of(upload.client, upload.round)
            found[place] = check_upload(upload, start, starts.layout, sizes.get(upload.client))
        except FedreError as error:
            lost[place] = error
    _keep_attackable([upload for upload, _ in sent], lost)
    uploads = tuple(one.upload for one in found.values())
    models = starts.modules([(upload.client, upload.round) for upload in uploads])
    first = models[uploads[0].client, uploads[0].round]
    width = output_width(first, given.image_shape, what="network", option=given.size_option)
    clients = sorted({upload.client for upload in uploads})
    training, untold = updates.read_training(folder, clients)
    truth = rows = classes = None
    if recorded.truth is not None:
        read = _Images.read(recorded.truth, given.image_shape, "--truth")
        images, labels = read.public.images, read.public.labels
        rows = torch.zeros(len(images), dtype=torch.int64) if read.row is None else read.row
        rows = _counted_anew(rows, torch.tensor([place in found for place in range(len(sent))]))
        truth, classes = (images, labels, rows), labels if read.labelled else None
    number = updates.images_sought(per_update, training, uploads, rows)
    findings = Findings.of(
        [(one.upload.client, clause) for one in found.values() for clause in one.said],
        [(sent[place][0].client, error) for place, error in lost.items()],
    )
    return dataclasses.replace(
        given,
        num_classes=width,
        uploads=uploads,
        broadcasts=starts.renamed(),
        threat=updates.THREAT,
        models=models,
        images_per_target=number,
        statistics="either" if statistics_of(first) else "",
        training=training,
        truth=None if truth is None else partial(updates.truth_of_updates, *truth, number),
        true_labels=classes,
        findings=dataclasses.replace(findings, untold=untold),
        assumed=(MASKED,) if any(one.masked for one in found.values()) else (),
        supported=supporting_attacks("gradients and updates", UPDATES, updates.THREAT),
    )


def _keep_attackable(
    uploads: Sequence[Upload], lost: Mapping[int, FedreError]
) -> tuple[Upload, ...]:
    """The uploads that can be attacked.

    Raises:
        FedreError: there is none; what is wrong with each.
    """
    kept = tuple(upload for place, upload in enumerate(uploads) if place not in lost)
    if not kept:
        first = next(iter(lost.values()))
        problems = [(uploads[place].client, one) for place, error in lost.items()
                    for one in error.problems]  # fmt: skip
        listed = [f"{one[0].upper()}{one[1:]}" for one in by_clients(problems)]
        raise type(first)(*listed, next_step=first.next_step)
    return kept


def external_folder(
    recorded: ExternalRecording, settings: AttackSettings, trial: Trial, runs: Path
) -> Path:
    """``foreign-attack-hash`` in a folder of runs: other uploads or files are another attack."""
    images = [_path(one) for one in (recorded.aux, recorded.truth) if one is not None]
    artifacts = [a for upload in trial.observation.targets for a in upload.artifacts]
    named = {
        **recorded.plain(),
        **settings.plain(),
        "uploads": files.tensor_sha256(*(t for a in artifacts for t in a.tensors().values())),
        "files": [files.file_sha256(path) for path in (recorded.weights, *images) if path],
        "training": None if trial.observation.training is None else str(trial.observation.training),
    }
    digest = files.settings_hash(named)[:8]
    return runs / f"foreign-{settings.attack.name}-{digest}".replace(":", ".")


def _messages(
    given: Path, round: int | None
) -> tuple[list[Upload], list[Broadcast], dict[int, str]]:
    """Uploads and broadcasts, and what is wrong with an upload, by its place."""
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
        messages = read_index(folder)["messages"]
        rounds = sorted({m["round"] for m in messages if m["file"] == given.name})
    if not rounds:
        raise MissingInputError(f"{given} holds no upload of any client.")
    if round is not None and round not in rounds:
        near = min(rounds, key=lambda r: abs(r - round))
        raise MissingInputError(
            f"Round {round} was not recorded; recorded: {', '.join(map(str, rounds))}.",
            next_step=f"Use --round {near}.",
        )
    faults: dict[int, str] = {}
    wanted = [0, rounds[-1] if round is None else round]
    return *read_messages(folder, wanted, faults=faults), faults


@dataclass(frozen=True, eq=False)
class _Images:
    """Images of a file, and what the file says of each: its class, the target it went into."""

    public: PublicImages
    labelled: bool
    row: Tensor | None

    @classmethod
    def read(cls, given: str, shape: Shape, option: str) -> _Images:
        tensors = _npz(_path(given), option)
        images = read_pixels(tensors["images"], option, shape=shape).floats()
        labels = tensors.get("labels")
        row = tensors.get("row") if option == "--truth" else None
        classes = torch.zeros(len(images), dtype=torch.int64)
        if labels is not None:
            classes = _numbers(labels, len(images), f"{option}: 'labels'")
        into = None if row is None else _numbers(row, len(images), f"{option}: 'row'")
        return cls(PublicImages(images, classes), labels is not None, into)


def _numbers(given: np.ndarray[Any, Any], count: int, what: str) -> Tensor:
    """Whole numbers of 0 or more, one for each image."""
    whole = given.dtype.kind in "iu" or (given.dtype.kind == "f" and bool((given % 1 == 0).all()))
    if given.shape != (count,) or not whole:
        raise DamagedInputError(
            f"{what} is {given.dtype} of shape {given.shape}; needed are {count} whole numbers."
        )
    if count and not 0 <= int(given.min()) <= int(given.max()) < 2**31:
        raise DamagedInputError(f"{what} holds numbers that are not in 0..{2**31 - 1}.")
    return torch.from_numpy(given.astype(np.int64))


def _path(given: str) -> Path:
    return Path(given.removeprefix("npz:"))


def _npz(path: Path, option: str) -> dict[str, np.ndarray[Any, Any]]:
    if not path.is_file():
        raise MissingInputError(f"{option}: no file at {path}.")
    try:
        tensors = files.read_npz(path)
    except DamagedInputError as error:
        raise DamagedInputError(f"{option}: {error.problems[0]}") from None
    if "images" not in tensors:
        raise DamagedInputError(
            f"{option}: {path} holds {', '.join(tensors) or 'nothing'}; needed is 'images'."
        )
    return tensors


def _truth(
    given: str,
    shape: Shape,
    uploads: Sequence[Upload],
    lost: frozenset[int],
    targets: tuple[Upload, ...],
) -> Truth:
    """The truth of targets, which are counted over all uploads, those that were left out too."""
    read = _Images.read(given, shape, "--truth")
    public, rows = read.public, read.row
    if lost:
        kinds = {type(artifact) for upload in targets for artifact in upload.artifacts}
        here = [
            place not in lost
            for place, upload in enumerate(uploads)
            for artifact in upload.artifacts
            if type(artifact) in kinds and (vectors := artifact.rows()) is not None
            for _ in vectors
        ]
        rows = torch.arange(len(public.images)) if rows is None else rows
        rows = _counted_anew(rows, torch.tensor(here))
    return truth_of(targets, public.images, public.labels, rows, what="--truth")


def _counted_anew(rows: Tensor, here: Tensor) -> Tensor:
    """Targets (m,) counted over those that are here (n,); others get numbers beyond them."""
    places = torch.where(here, here.cumsum(0) - 1, len(here) + len(rows))
    known = rows < len(here)
    return torch.where(known, places[rows.clamp(max=len(here) - 1)], rows)
