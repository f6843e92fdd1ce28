"""Targets sorted by kind and by the extractor that made them: each group is one job of maps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fedre_privacy.attacks.common.channels import undo_smoothing
from fedre_privacy.attacks.common.frozen_modules import frozen_copy
from fedre_privacy.core.artifacts import (
    Artifact,
    Counts,
    EntangledRep,
    Prototypes,
    Representations,
)
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.types import Observation, Upload

from .linear_map import Linear
from .reconstruction import check_extractors

LEAST_AUX = 8


@dataclass(frozen=True)
class MapJob:
    """Targets of one kind that one extractor made; `index` are their rows in the observation.

    `codes` (n, k) are the class of each or the shares of classes in it; k = 0: not told.
    """

    family: str
    owner: tuple[int, int]
    index: Tensor
    reps: Tensor
    codes: Tensor
    encoding: Tensor | None
    sizes: Tensor | None
    first: int

    @property
    def name(self) -> str:
        """What its piece is kept under."""
        client, round = self.owner
        return f"{self.family}-{client:06d}-{round:06d}-{self.first:06d}"


def jobs_of(observation: Observation, linear: Linear) -> list[MapJob]:
    """Sort targets by kind and extractor; refuse what cannot be answered."""
    shape = observation.image_shape
    aux = observation.aux
    if aux is None or len(aux) < LEAST_AUX:
        raise IncompatibleError(
            f"Maps from representations to images need at least {LEAST_AUX} auxiliary images; "
            f"{0 if aux is None else len(aux)} were given.",
            next_step="Use a data set with more held-out images, or an attack without them: "
            "--attack dip.",
        )
    rows, owners = observation.target_rows()
    extractors = {
        key: observation.extractors[key] for key in set(owners) & set(observation.extractors)
    }
    check_extractors(
        {key: frozen_copy(module, torch.device("cpu")) for key, module in extractors.items()},
        owners,
        rows.shape[1],
        shape,
        torch.device("cpu"),
    )
    found: dict[tuple[str, tuple[int, int], int], list[int]] = {}
    codes: dict[tuple[str, tuple[int, int], int], list[Tensor]] = {}
    detail: dict[tuple[str, tuple[int, int], int], tuple[Tensor | None, Tensor | None]] = {}
    number = 0
    for upload in observation.targets:
        owner = (upload.client, upload.round)
        for artifact in upload.artifacts:
            held = artifact.rows()
            if held is None:
                continue
            family, encoding, sizes, serial = "single", None, None, 0
            if linear.match_targets and isinstance(artifact, Prototypes):
                family, sizes = "prototypes", _image_counts(observation, upload, artifact)
            elif linear.match_targets and isinstance(artifact, EntangledRep):
                family = "entangled"
                encoding = undo_smoothing(observation.channel, artifact.encoding)
                serial = sum(key[:2] == (family, owner) for key in found)
            key = (family, owner, serial)
            found.setdefault(key, []).extend(range(number, number + len(held)))
            codes.setdefault(key, []).append(_codes(observation, artifact, encoding))
            detail[key] = (encoding, sizes)
            number += len(held)
    jobs, first = [], 0
    for key in sorted(found):
        index, told = torch.tensor(found[key]), codes[key]
        widths = {one.shape[1] for one in told}
        known = torch.cat(told) if len(widths) == 1 else torch.zeros(len(index), 0)
        reps = rows[index].float()
        jobs.append(MapJob(key[0], key[1], index, reps, known, *detail[key], first=first))
        first += len(index)
    return jobs


def aux_codes(observation: Observation, classes: int) -> Tensor:
    """Codes (n, k) of the auxiliary images, k as asked: 0 or the number of classes."""
    assert observation.aux is not None
    if not classes or observation.aux_labels is None:
        return torch.zeros(len(observation.aux), 0)
    return one_hot(observation.aux_labels.cpu().long(), classes).float()


def label_codes(observation: Observation, labels: Tensor) -> Tensor:
    """Codes (n, k) of uploaded labels (n,); k = 0 where they cannot be compared with those of
    auxiliary images."""
    classes, known = observation.num_classes, observation.aux_labels
    told = [] if known is None else [known, labels]
    if not told or any(bool(((one < 0) | (one >= classes)).any()) for one in told):
        return torch.zeros(len(labels), 0)
    return one_hot(labels.cpu().long(), classes).float()


def _codes(observation: Observation, artifact: Artifact, encoding: Tensor | None) -> Tensor:
    """Codes (m, k) of rows of an upload; k = 0 where some class is not told."""
    if isinstance(artifact, EntangledRep) and encoding is not None:
        shares = encoding.float().cpu().clamp(min=0).nan_to_num(0.0)
        shares = shares / shares.sum().clamp(min=1e-12)
        return (shares @ label_codes(observation, torch.arange(len(shares)))).unsqueeze(0)
    if isinstance(artifact, Prototypes | Representations):
        return label_codes(observation, artifact.labels)
    held = artifact.rows()
    return torch.zeros(0 if held is None else len(held), 0)


def _image_counts(
    observation: Observation, upload: Upload, prototypes: Prototypes
) -> Tensor | None:
    """Numbers of images behind the prototypes, where the same client uploaded them."""
    for seen in observation.uploads:
        if (seen.client, seen.round) == (upload.client, upload.round):
            for artifact in seen.artifacts:
                if isinstance(artifact, Counts) and len(artifact.values) == len(prototypes.labels):
                    return artifact.values
    return None
