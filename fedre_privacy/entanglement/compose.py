"""Building one scheme from another: functions on what the other one mixes."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from .base import Draw, Entanglement, Mix


def on_some(scheme: Entanglement, draw: Draw, keep: Tensor) -> Mix | None:
    """Let a scheme see only the samples in keep (n,) bool; the others get weight 0.

    None, so no upload, where nothing is kept.
    """
    if not bool(keep.any()):
        return None
    mix = scheme.mix(draw.only(keep))
    if mix is None:
        return None
    weights = torch.zeros(len(keep), dtype=torch.float64)
    weights[keep] = mix.weights
    return dataclasses.replace(mix, weights=weights)


def blend(one: Mix, other: Mix, share: float) -> Mix:
    """Mix two mixes of the same samples: (1 - share) of one, share of the other."""

    def between(a: Tensor, b: Tensor) -> Tensor:
        return (1 - share) * a + share * b

    if one.decoy is None or other.decoy is None:
        decoy = one.decoy if other.decoy is None else other.decoy
        if decoy is not None:
            decoy = decoy * (share if one.decoy is None else 1 - share)
    else:
        decoy = between(one.decoy, other.decoy)
    return Mix(between(one.weights, other.weights), between(one.encoding, other.encoding), decoy)
