"""A broadcast head as a prior: near collapse prototypes lie along its rows."""

from __future__ import annotations

from torch import Tensor

from fedre_privacy.core.artifacts import HeadState
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.types import Knowledge, Observation

from .mixing import Mixing


def head_of(observation: Observation) -> Tensor | None:
    """Weight (C, d) of the head broadcast last, or None where none was granted."""
    if Knowledge.HEAD not in observation.threat.grants:
        return None
    for broadcast in sorted(observation.broadcasts, key=lambda b: -b.round):
        for artifact in broadcast.artifacts:
            if isinstance(artifact, HeadState):
                for name, tensor in artifact.params.items():
                    if name.endswith("weight") and tensor.dim() == 2:
                        return tensor.double()
    return None


def along_head(head: Tensor | None, mixing: Mixing, uploads: Tensor) -> Tensor:
    """Prior offsets a W_c of the classes, with a from a regression of uploads on w' W.

    Near collapse p_c is about m + a W_c, so R_t - mean R is about a (w_t - mean w)' W.
    """
    if head is None or head.shape[1] != uploads.shape[1]:
        given = "none" if head is None else str(tuple(head.shape))
        raise IncompatibleError(
            f"'attack.head_prior' needs a broadcast head with {uploads.shape[1]} columns; given: "
            f"{given}."
        )
    rows = head[mixing.classes]
    mixed = mixing.weights @ rows
    mixed = mixed - mixed.mean(0)
    size = mixed.square().sum().clamp(min=1e-300)
    return (mixed * (uploads - uploads.mean(0))).sum() / size * rows
