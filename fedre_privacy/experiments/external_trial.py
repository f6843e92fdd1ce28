"""The trial of an attack on uploads that did not come from a run of ours: checked and built."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from fedre_privacy.attacks.base import can_read, mismatch, needed_for
from fedre_privacy.attacks.common.hidden_masks import with_masks_shown
from fedre_privacy.core.errors import IncompatibleError, MissingInputError
from fedre_privacy.core.rng import derive
from fedre_privacy.core.types import (
    Knowledge,
    Observation,
    Upload,
)
from fedre_privacy.eval import PublicImages
from fedre_privacy.runs.settings import ADAPTIVE, AttackSettings
from fedre_privacy.sandbox.module_recipes import Key

from .external_checks import MASKED_ROWS, by_clients, rows_note
from .external_uploads import ExternalUploads
from .questions.base import Trial
from .questions.images import TARGET, ImageTrial
from .questions.without_truth import UnscoredTrial
from .targets import TargetGroup
from .truth_check import agreement
from .user_checks import output_width, shape_text


def normalising_as(given: ExternalUploads, settings: AttackSettings) -> AttackSettings:
    """Settings in which an attack that was not told otherwise normalises as the clients did."""
    attack = settings.attack
    if not given.statistics or getattr(attack, "bn", "") != "auto":
        return settings
    told: Any = {"bn": given.statistics}
    return dataclasses.replace(settings, attack=dataclasses.replace(attack, **told))


def prepare_external(given: ExternalUploads, settings: AttackSettings) -> Trial:
    """Check that an attack fits what was given, choose targets, and build the observation.

    Targets are the first ones in the order given. With truth one half of the public images makes
    the floors, the other is for the attacker.

    Raises:
        IncompatibleError: uploads, modules, images and attack do not fit each other.
        MissingInputError: truth without public images.
    """
    attack, shape = settings.attack, given.image_shape
    if attack.answers not in ("images", "labels", "representations"):
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
    observed = Observation(
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
    observation = with_masks_shown(observed)
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


def _readable(
    given: ExternalUploads, settings: AttackSettings, *, rows: bool
) -> tuple[Upload, ...]:
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
    given: ExternalUploads, extractors: Mapping[Key, nn.Module], targets: tuple[Upload, ...]
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
    given: ExternalUploads,
    targets: tuple[Upload, ...],
    extractors: Mapping[Key, nn.Module],
    public: PublicImages | None,
) -> ExternalUploads:
    """The same with what is said of its vectors."""
    images = None if public is None else public.images
    said, masked = rows_note(targets, extractors, given.image_shape, images)
    of_whom = by_clients(said) if given.unit == "client" else [clause for _, clause in said]
    return dataclasses.replace(
        given,
        findings=given.findings.with_seen(of_whom),
        assumed=(*given.assumed, *([MASKED_ROWS] if masked else [])),
    )
