"""Modules that no attack by gradients can see through, refused before any search."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from fedre_privacy.attacks.base import without_gradients
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.types import Observation
from fedre_privacy.models.probe import without_gradient

Key = tuple[int, int]


def check_gradients(
    observation: Observation, extractors: Mapping[Key, nn.Module], *, twice: bool = False
) -> None:
    """Refuse extractors (by client and round) whose output gives no gradient by the image.

    Args:
        twice: whether gradients of this gradient are needed too.

    Raises:
        IncompatibleError: the cause, and the attacks that need no gradient.
    """
    for (client, round), module in extractors.items():
        why = without_gradient(module, observation.image_shape, twice=twice)
        if why:
            what = f"the extractor of client {client} in round {round}"
            raise unreachable(observation, f"No gradient reaches the image through {what}: {why}.")


def unreachable(observation: Observation, problem: str) -> IncompatibleError:
    """The refusal of a module, with the attacks on the same targets that work without gradients."""
    kinds = {type(a) for upload in observation.targets for a in upload.artifacts}
    others = without_gradients(kinds, observation.threat)
    return IncompatibleError(
        problem,
        next_step=f"Make it differentiable, or use an attack that needs no gradient: "
        f"{', '.join(others)}."
        if others
        else "Make it differentiable.",
    )
