"""Targets sorted by kind and by the extractor that made them: each group is one job of maps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedre_privacy.attacks.common.channels import undo_smoothing
from fedre_privacy.attacks.common.frozen_modules import frozen_copy
from fedre_privacy.core.artifacts import Counts, EntangledRep, Prototypes
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.types import Observation, Upload

from .linear_map import Linear
from .reconstruction import check_extractors

LEAST_AUX = 8


@dataclass(frozen=True)
class MapJob:
    """Targets of one kind that one extractor made; `index` are their rows in the observation."""

    family: str
    owner: tuple[int, int]
    index: Tensor
    reps: Tensor
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
            detail[key] = (encoding, sizes)
            number += len(held)
    jobs, first = [], 0
    for key in sorted(found):
        index = torch.tensor(found[key])
        jobs.append(MapJob(key[0], key[1], index, rows[index].float(), *detail[key], first=first))
        first += len(index)
    return jobs


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
