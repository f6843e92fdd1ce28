"""Whether a client's uploads of past rounds can be carried to the last one, and why they cannot."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fedre_privacy.core.types import Knowledge, Observation

from .head_prior import head_of
from .mixing import Kind, Mixing


def can_align(observation: Observation, mixing: Mixing) -> bool:
    """Whether maps between rounds can be learned: images, and extractors of two rounds at least."""
    held = [(mixing.client, round) in observation.extractors for round in mixing.rounds.tolist()]
    return (
        _granted(observation)
        and observation.aux is not None
        and len(observation.aux) > 1
        and held[-1]
        and sum(held) > 1
    )


def unaligned(observation: Observation, found: Sequence[Mixing]) -> tuple[str, ...]:
    """Why mixtures are solved with less than the threat model grants, a clause each."""
    mixed = [one for one in found if one.kind is Kind.MIXED and len(one.rounds) > 1]
    if not mixed or not _granted(observation):
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


def _granted(observation: Observation) -> bool:
    return {Knowledge.ALL_EXTRACTORS, Knowledge.AUX_DATA} <= observation.threat.grants
