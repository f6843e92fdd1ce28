"""Coordinates that a client set to 0, as an uploaded representation of one image tells them.

Which ones a learnt defence prunes changes from image to image and has no slope. A search through
that change finds no way; one that compares what is left of a representation needs none.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from fedre_privacy.core.artifacts import Representations
from fedre_privacy.core.types import MaskingModule, Observation

from .channels import upload_behind
from .objectives import Objective

Owner = tuple[int, int]


def unmasked_extractors(
    observation: Observation, extractors: Mapping[Owner, nn.Module]
) -> dict[Owner, nn.Module] | None:
    """The extractors before coordinates are set to 0, where targets tell which; else None.

    They tell it as representations of single images that were uploaded, and to which nothing was
    done but that: a mean of several images is 0 where all of them are.
    """
    channel = observation.channel
    changed = channel.each or channel.rows or any(step.random for step in channel.extractor)
    if changed:
        return None
    found = {}
    for owner, one in extractors.items():
        bare = one.unmasked() if isinstance(one, MaskingModule) else None
        if bare is None:
            return None
        found[owner] = bare
    for upload in observation.targets:
        for artifact in upload.artifacts:
            rows = artifact.rows()
            if rows is None:
                continue
            behind = upload_behind(observation, upload.client, upload.round, rows)
            if not isinstance(artifact, Representations) or behind is None:
                return None
    return found


def left_by_mask(reps: Tensor, wanted: Tensor) -> Tensor:
    """Representations (n, d) with 0 where those wanted (n, d) are 0."""
    return reps * (wanted != 0)


def objective_of_rest(objective: Objective) -> Objective:
    """An objective that compares what is left of representations, see `left_by_mask`."""
    return lambda reps, wanted: objective(left_by_mask(reps, wanted), wanted)
