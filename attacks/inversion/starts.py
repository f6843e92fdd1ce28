"""Pictures for a search to begin from: the answer of an attack that costs less."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from fedre_privacy.attacks.base import Context, attacks
from fedre_privacy.core.channels import StepsAt
from fedre_privacy.core.events import silent
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.types import Knowledge, Observation

from ..running.driver import stage

STARTS = ("none", "linear", "decoder")


def knowledge_for(start: str) -> frozenset[Knowledge]:
    """What beginning from a start needs."""
    return frozenset() if start == "none" else attacks.get(start).needs


def adapts_by(start: str, observation: Observation) -> StepsAt:
    """Steps of channels that the attack named `start` takes into account."""
    return {} if start == "none" else attacks.get(start)().adapts(observation)


def pictures_for(start: str, observation: Observation, context: Context) -> Tensor | None:
    """Answers (N, C, H, W) of the attack named `start` with its default settings, or None.

    Its finished pieces are kept beside those of the attack that begins from it.
    """
    if start == "none":
        return None
    quiet = dataclasses.replace(stage(context, f"start-{start}-"), report=silent)
    found = attacks.get(start)().run(observation, quiet)
    if not isinstance(found, Reconstruction):
        raise TypeError(f"attack '{start}' does not answer with images")
    return torch.nan_to_num(found.images, nan=0.5)
