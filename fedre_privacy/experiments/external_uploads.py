"""Uploads that did not come from a run of ours.

There is no data set and often no truth. What another system wrote (`foreign`) and what a script
holds in memory (`own_module`) both become a `ExternalUploads`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedre_privacy.attacks.base import attacks, needed_for, readers
from fedre_privacy.core.artifacts import Artifact, EntangledRep
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.registry import plugin_words
from fedre_privacy.core.types import (
    Broadcast,
    Knowledge,
    KnownDefense,
    LocalTrainingFacts,
    Mixture,
    ThreatModel,
    Truth,
    Upload,
)
from fedre_privacy.defenses.base import Defense
from fedre_privacy.eval import PublicImages
from fedre_privacy.runs.settings import AttackSettings
from fedre_privacy.sandbox.module_recipes import Key

from .external_checks import Findings
from .user_checks import Shape

Builder = Callable[[Collection[Key]], Mapping[Key, nn.Module]]
"""From (client, round) to the modules with which these uploads were made."""


@dataclass(frozen=True, eq=False)
class ExternalUploads:
    """Uploads with what is known beside them; a trial takes them in place of a `Run`.

    Args:
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
        unit: what ``target_clients`` of the truth numbers, see `evaluate`.
        notes: what a reader must know about it, a sentence each.
        assumed: what clients seem to have done to them.
        settings: how it was given, in plain values, for ``config.yaml``.
        command: words of the command that reads it; empty for none.
        sources: files that no attack may open.
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
    training: LocalTrainingFacts | None = None
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


def supporting_attacks(
    what: str,
    kinds: Sequence[type[Artifact]],
    threat: ThreatModel,
    *,
    answers: Sequence[str] = ("images", "labels", "representations"),
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
