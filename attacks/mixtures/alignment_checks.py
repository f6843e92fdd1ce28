"""Whether a client's uploads of past rounds can be carried to the last one, and why they cannot."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import Tensor

from fedre_privacy.core.artifacts import HeadState
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.types import Knowledge, Observation

from .mixing import Kind, Mixing


def can_align(observation: Observation, mixing: Mixing) -> bool:
    """Whether maps between rounds can be learned: images, and extractors of two rounds at least."""
    held = [(mixing.client, round) in observation.extractors for round in mixing.rounds.tolist()]
    return (
        _grants_models(observation)
        and observation.aux is not None
        and len(observation.aux) > 1
        and held[-1]
        and sum(held) > 1
    )


def weaker_alignment_reasons(observation: Observation, found: Sequence[Mixing]) -> tuple[str, ...]:
    """Why mixtures are solved with less than the threat model grants, a clause each."""
    mixed = [one for one in found if one.kind is Kind.MIXED and len(one.rounds) > 1]
    if not mixed or not _grants_models(observation):
        return ()
    if observation.aux is None or len(observation.aux) < 2:
        return ("no public images, so uploads of several rounds are not aligned",)
    lost = not_kept(observation, [(m.client, round) for m in mixed for round in m.rounds.tolist()])
    if not lost:
        return ()
    if all(can_align(observation, mixing) for mixing in mixed):
        return (f"{lost}, so these uploads are left out",)
    prior = ", with the head as prior" if head_of(observation) is not None else ""
    return (f"{lost}, so uploads are solved without alignment{prior}",)


def not_kept(observation: Observation, owners: Collection[tuple[int, int]]) -> str:
    """How many extractors behind uploads a run did not keep; empty where it kept all.

    Args:
        owners: client and round of each upload.
    """
    lost = sum(owner not in observation.extractors for owner in owners)
    if not lost:
        return ""
    return f"extractors behind {lost} of {len(owners)} uploads were not kept (record.keep_every=1)"


def _grants_models(observation: Observation) -> bool:
    return {Knowledge.ALL_EXTRACTORS, Knowledge.AUX_DATA} <= observation.threat.grants


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
