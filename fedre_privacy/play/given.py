"""Uploads that did not come from a run of ours: checked, and made ready to be attacked.

There is no data set and often no truth. What another system wrote (`foreign`) and what a script
holds in memory (`own_module`) both become a `Given`.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedre_privacy.attacks.base import attacks, can_read, mismatch, needed_for, readers
from fedre_privacy.core.artifacts import Artifact, EntangledRep
from fedre_privacy.core.errors import IncompatibleError, MissingInputError
from fedre_privacy.core.registry import plugin_words
from fedre_privacy.core.rng import derive
from fedre_privacy.core.types import (
    Broadcast,
    Knowledge,
    KnownDefense,
    LocalTraining,
    Mixture,
    Observation,
    ThreatModel,
    Truth,
    Upload,
)
from fedre_privacy.defenses.base import Defense
from fedre_privacy.eval import PublicImages
from fedre_privacy.runs.settings import ADAPTIVE, AttackSettings
from fedre_privacy.sealed.modules import Key

from .agreement import agreement
from .checks import Shape, output_width, shape_text
from .foreign_checks import MASKED_ROWS, Findings, by_clients, rows_said
from .questions.base import Trial
from .questions.images import TARGET, ImageTrial
from .questions.unscored import UnscoredTrial
from .targets import TargetGroup

Builder = Callable[[Collection[Key]], Mapping[Key, nn.Module]]
"""From (client, round) to the modules with which these uploads were made."""


@dataclass(frozen=True, eq=False)
class Given:
    """Uploads with what is known beside them; a trial takes them in place of a `Run`.

    Args:
        name: what they are of, in titles.
        system: who uploads.
        image_shape: (C, H, W).
        num_classes: length of a label encoding.
        uploads, broadcasts: of the attacked round, and those before training.
        threat: what is handed over to the attacker, public images aside.
        extractors: images in [0, 1] (n, C, H, W) to representations (n, d).
        models: images to logits (n, classes), as clients started the round; for gradients.
        images_per_target: images behind each gradient or update; 0: targets are rows.
        statistics: by which BatchNorm normalised for gradients and updates, as an attack's setting
            ``bn`` has it; empty: as that setting says.
        training: how clients train, as far as it is told; for updates.
        truth: from the targets to the images that made them; None: nobody knows.
        true_labels: of gradients and updates the classes of those images, in their order; None:
            nobody said.
        public: public images.
        unit: what ``target_clients`` of the truth numbers, see `evaluate`.
        notes: what a reader must know about it, a sentence each.
        findings: what was found on reading the uploads.
        assumed: what clients seem to have done to them.
        settings: how it was given, in plain values, for ``config.yaml``.
        marks: hashes of what was given.
        command: words of the command that reads it; empty for none.
        sources: files that no attack may open.
        size_option: how the image size is given.
        supported: what to do where an attack cannot read it.
        truth_needs_public: what to do where truth is given without public images.
    """

    bound: ClassVar[str] = ""
    active: ClassVar[str] = ""
    defenses: ClassVar[tuple[Defense, ...]] = ()
    """What another system guarantees, what its server did and what clients declare is not known."""

    name: str
    system: str
    image_shape: Shape
    num_classes: int
    uploads: tuple[Upload, ...]
    threat: ThreatModel
    extractors: Builder
    broadcasts: tuple[Broadcast, ...] = ()
    models: Mapping[Key, nn.Module] = field(default_factory=dict)
    images_per_target: int = 0
    statistics: str = ""
    training: LocalTraining | None = None
    truth: Callable[[tuple[Upload, ...]], Truth] | None = None
    true_labels: Tensor | None = None
    public: PublicImages | None = None
    unit: str = "client"
    notes: tuple[str, ...] = ()
    findings: Findings = Findings()
    assumed: tuple[KnownDefense, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    marks: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    sources: tuple[Path, ...] = ()
    size_option: str = "image_shape=(C, H, W)"
    supported: str = "See: fedre-attack list."
    truth_needs_public: str = ""

    @property
    def class_names(self) -> list[str]:
        """The numbers of the classes."""
        return [str(label) for label in range(self.num_classes)]

    def extractor(self, client: int, round: int) -> nn.Module:
        """The extractor with which a client made its upload of a round."""
        return self.extractors([(client, round)])[client, round]

    def secrets(self) -> list[Path]:
        """The files that were given."""
        return [path.resolve() for path in self.sources]

    def plain(self) -> dict[str, Any]:
        """How it was given."""
        return dict(self.settings)

    def identity(self) -> dict[str, Any]:
        """How it was given, with hashes."""
        return {**self.settings, **self.marks}

    def provenance(self) -> dict[str, str]:
        """How it was given, with hashes."""
        told = {**self.settings, **self.marks}
        return {name.replace("_", " "): str(v) for name, v in told.items() if v is not None}

    def headline(self) -> dict[str, str]:
        """Nothing beside what the trial says."""
        return {}

    def repeat(self, attack: AttackSettings, folder: Path) -> tuple[str, str]:
        """The command that repeats an attack, where one can."""
        if not self.command:
            return "", ""
        config = str(folder / "config.yaml")
        words = [*self.command, "--attack", attack.attack.name, "--config", config]
        return shlex.join(words) + plugin_words(attack.plugins()), ""


def normalising_as(given: Given, settings: AttackSettings) -> AttackSettings:
    """Settings in which an attack that was not told otherwise normalises as the clients did."""
    attack = settings.attack
    if not given.statistics or getattr(attack, "bn", "") != "auto":
        return settings
    told: Any = {"bn": given.statistics}
    return dataclasses.replace(settings, attack=dataclasses.replace(attack, **told))


def prepare_given(given: Given, settings: AttackSettings) -> Trial:
    """Check that an attack fits what was given, choose targets, and build the observation.

    Targets are the first ones in the order given. With truth one half of the public images makes
    the floors, the other is for the attacker.

    Raises:
        IncompatibleError: uploads, modules, images and attack do not fit each other.
        MissingInputError: truth without public images.
    """
    attack, shape = settings.attack, given.image_shape
    if attack.answers not in ("images", "labels"):
        raise IncompatibleError(
            f"Attack '{attack.name}' answers {attack.answers}, which needs a recorded run.",
            next_step=given.supported,
        )
    seeks_images = attack.answers == "images"
    rows = seeks_images and not given.images_per_target
    kept = _readable(given, settings, rows=rows)
    if given.truth is not None and not seeks_images:
        raise IncompatibleError(
            f"The truth given is images; attack '{attack.name}' finds none to compare with them.",
            next_step="Leave the truth out, or attack images, for example with dip.",
        )
    targets = _first(kept, settings.evaluation.targets) if rows else kept
    if seeks_images and given.images_per_target:
        targets = kept[: max(1, settings.evaluation.targets // given.images_per_target)]
    kinds = {type(a) for upload in targets for a in upload.artifacts}
    public, floors = given.public, None
    if given.truth is not None:
        if public is None:
            raise MissingInputError(
                "The truth is scored beside floors, and those are made of public images, which "
                "were not given.",
                next_step=given.truth_needs_public,
            )
        half = len(public.labels) // 2
        floors = PublicImages(public.images[:half], public.labels[:half])
        public = PublicImages(public.images[half:], public.labels[half:])
    threat = given.threat
    if public is not None:
        threat = dataclasses.replace(
            threat,
            grants=threat.grants | {Knowledge.AUX_DATA},
            summary=f"{threat.summary}, and {len(public.labels)} public images",
        )
    problems = mismatch(attack, threat, kinds)
    if problems:
        raise IncompatibleError(*problems, next_step=given.supported)
    for metric in settings.metrics.values() if given.truth is not None else ():
        metric.check(shape)
    keys = sorted({(upload.client, upload.round) for upload in targets})
    extractors: Mapping[Key, nn.Module] = {}
    if rows or Knowledge.EXTRACTOR in needed_for(attack, kinds):
        extractors = given.extractors(keys)
    if rows:
        _check_widths(given, extractors, targets)
        given = _rows_checked(given, targets, extractors, public)
    given = dataclasses.replace(given, notes=(*given.notes, *given.findings.notes))
    threat = given.findings.known_to(threat)
    observation = Observation(
        threat=threat,
        targets=targets,
        uploads=given.uploads,
        broadcasts=given.broadcasts,
        extractors=extractors,
        image_shape=shape,
        num_classes=given.num_classes,
        aux=None if public is None else public.images,
        aux_labels=None if public is None else public.labels,
        training=given.training,
        models=given.models,
        images_per_target=given.images_per_target if seeks_images else 0,
        defenses=given.assumed if settings.evaluation.attacker == ADAPTIVE else (),
    )
    kind = (
        "update"
        if given.images_per_target
        else ", ".join(sorted({str(a.kind) for upload in targets for a in upload.artifacts}))
    )
    common = (
        given,
        dataclasses.replace(settings, threat=threat),
        derive(settings.evaluation.seed, "attack"),
        observation,
        kind,
        False,
        targets[0].round,
    )
    if given.truth is None or floors is None:
        return UnscoredTrial(*common)
    group = TargetGroup(kind, False, targets, given.truth(targets))
    agrees = agreement(
        observation,
        group,
        floors.images,
        labels=given.true_labels,
        bn=bn if (bn := getattr(attack, "bn", None)) in ("eval", "batch") else None,
    )
    return ImageTrial(
        *common, groups={TARGET: group}, public=floors, unit=given.unit, agreement=agrees
    )


def _readable(given: Given, settings: AttackSettings, *, rows: bool) -> tuple[Upload, ...]:
    """Uploads reduced to what the attack reads, and to rows where those are attacked."""
    kept = tuple(
        dataclasses.replace(upload, artifacts=found)
        for upload in given.uploads
        if (
            found := tuple(
                a
                for a in upload.artifacts
                if can_read(settings.attack, type(a)) and (a.rows() is not None or not rows)
            )
        )
    )
    if not kept:
        held = sorted({str(a.kind) for upload in given.uploads for a in upload.artifacts})
        source = given.sources[0] if given.sources else given.name
        raise IncompatibleError(
            f"Attack '{settings.attack.name}' reads nothing of {source}: it holds "
            f"{', '.join(held) or 'no artifact'}.",
            next_step=given.supported,
        )
    return kept


def _first(uploads: tuple[Upload, ...], count: int) -> tuple[Upload, ...]:
    """The first `count` targets in the order given."""
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


def _check_widths(
    given: Given, extractors: Mapping[Key, nn.Module], targets: tuple[Upload, ...]
) -> None:
    for upload in targets:
        width = output_width(
            extractors[upload.client, upload.round],
            given.image_shape,
            what="extractor",
            option=given.size_option,
        )
        for artifact in upload.artifacts:
            rows = artifact.rows()
            if rows is not None and rows.shape[1] != width:
                raise IncompatibleError(
                    f"Client {upload.client}'s {artifact.kind} have {rows.shape[1]} values; the "
                    f"extractor returns {width} for an image of {shape_text(given.image_shape)}.",
                    next_step="Is it the extractor of this client, without the head, and is the "
                    "image size right?",
                )


def _rows_checked(
    given: Given,
    targets: tuple[Upload, ...],
    extractors: Mapping[Key, nn.Module],
    public: PublicImages | None,
) -> Given:
    """The same with what is said of its vectors."""
    images = None if public is None else public.images
    said, masked = rows_said(targets, extractors, given.image_shape, images)
    of_whom = by_clients(said) if given.unit == "client" else [clause for _, clause in said]
    return dataclasses.replace(
        given,
        findings=given.findings.with_seen(of_whom),
        assumed=(*given.assumed, *([MASKED_ROWS] if masked else [])),
    )


def truth_of(
    targets: tuple[Upload, ...],
    images: Tensor,
    labels: Tensor,
    row: Tensor | None,
    *,
    what: str,
) -> Truth:
    """The truth of targets from the images that made them, in equal shares.

    Args:
        images: (m, C, H, W) in [0, 1].
        labels: (m,) their classes.
        row: (m,) the target that each image went into; None: image i made target i.
        what: what they are called in a message.

    Raises:
        IncompatibleError: a target without image.
    """
    owners: list[int] = []
    classes: list[int] = []
    for upload in targets:
        for artifact in upload.artifacts:
            rows = artifact.rows()
            size = 0 if rows is None else len(rows)
            owners += [upload.client] * size
            own = getattr(artifact, "labels", None)
            classes += own.tolist() if isinstance(own, Tensor) else [-1] * size
    count = len(images)
    if row is not None and len(row) != count:
        raise IncompatibleError(f"{what}: 'row' has {len(row)} entries for {count} images.")
    if row is None and count < len(owners):
        raise IncompatibleError(
            f"{what}: {count} images for {len(owners)} targets.",
            next_step="Give one image for each target, in order, or 'row' with the target of each.",
        )
    row = torch.arange(count) if row is None else row
    kept = row < len(owners)
    row, position = row[kept], kept.nonzero().squeeze(1)
    sizes = torch.bincount(row, minlength=len(owners))
    if bool((sizes == 0).any()):
        raise IncompatibleError(
            f"{what}: target {int((sizes == 0).nonzero()[0])} has no image in 'row'."
        )
    return Truth(
        images=images[position],
        labels=labels[position],
        clients=torch.tensor(owners)[row],
        mixture=Mixture(row, torch.arange(len(row)), 1 / sizes[row].float(), len(owners)),
        target_clients=torch.tensor(owners),
        target_labels=torch.tensor(classes),
    )


def supported(
    what: str,
    kinds: Sequence[type[Artifact]],
    threat: ThreatModel,
    *,
    answers: Sequence[str] = ("images", "labels"),
    public: str = "--aux",
) -> str:
    """Which attacks read some kinds of uploads, by what they declare.

    Args:
        what: whose uploads. public: how public images are given.
    """
    listed = []
    for kind in kinds:
        able = [attacks.get(n) for n in readers([kind]) if attacks.get(n).answers in answers]
        more = [(one.name, needed_for(one, [kind]) - threat.grants) for one in able]
        names = [name for name, lacking in more if not lacking]
        names += [f"{name} ({public})" for name, lacking in more if lacking == {Knowledge.AUX_DATA}]
        listed += [f"on {kind.kind} {', '.join(names)}"] if names else []
    return f"Supported on {what}: {'; '.join(listed)}."


def classes_seen(uploads: Sequence[Upload]) -> int:
    """Number of classes that the labels of uploads show, at least 2."""
    seen = [2]
    for upload in uploads:
        for artifact in upload.artifacts:
            labels = getattr(artifact, "labels", None)
            if isinstance(artifact, EntangledRep):
                seen.append(len(artifact.encoding))
            elif isinstance(labels, Tensor) and len(labels):
                seen.append(int(labels.max()) + 1)
    return max(seen)
