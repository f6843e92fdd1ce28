"""How much of what was uploaded answers make again, by what the attacker holds."""

from __future__ import annotations

import torch
from torch import Tensor

from fedre_privacy.attacks.base import Attack
from fedre_privacy.attacks.running.explained import rows_explained
from fedre_privacy.core.blame import blamed
from fedre_privacy.core.cores import single_threaded
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.types import Observation
from fedre_privacy.eval.explained import Explained


def explained_by(
    attack: Attack, observation: Observation, found: Reconstruction
) -> Explained | None:
    """The measure of an attack's answers to the targets of an observation, and of any others.

    Vectors are compared with what extractors make of images, or as the attack says
    (`Attack.explained`); gradients and updates as the attack says, with the labels it found.

    Returns:
        None where the attacker cannot compute what images would come to, or answered nothing.
    """

    def share(images: Tensor) -> Tensor:
        with single_threaded(torch.device("cpu")):  # sums do not depend on the number of threads
            with blamed(attack):
                told = attack.explained(observation, images, found.labels)
            if told is None and not observation.images_per_target:
                told = rows_explained(observation, images, observation.extractors)
        return torch.full((len(images),), torch.nan) if told is None else told

    if not bool(share(found.images).isfinite().any()):
        return None
    compared = (
        "the squared cosine between it and what the client would send of the answer; of an attack "
        "in closed form, the share of its layer's gradient in the span of the answer's inputs"
    )
    if not observation.images_per_target:
        compared = "1 - ||f(x) - r||^2 / ||r||^2, with f(x) by the extractor or model that is held"
    return Explained(share=share, compared=compared)
