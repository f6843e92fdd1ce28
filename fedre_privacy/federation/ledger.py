"""Communication of one round, measured from the artifacts that were serialised."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fedre_privacy.core.artifact_schema import UNCOUNTED_IN_PAPER
from fedre_privacy.core.artifacts import Artifact


@dataclass(frozen=True)
class Traffic:
    """Totals over all clients of one round in one direction.

    Args:
        scalars_paper: without labels, label encodings, counts and generators, as published
            tables count.
        nbytes: size of the tensors as serialised (bytes).
    """

    scalars_complete: int
    scalars_paper: int
    nbytes: int


def measure(messages: Iterable[tuple[tuple[Artifact, ...], int]]) -> Traffic:
    """Add up messages, each with the number of its recipients."""
    complete = paper = nbytes = 0
    for artifacts, recipients in messages:
        for artifact in artifacts:
            nbytes += artifact.nbytes() * recipients
            for content, count in artifact.scalars().items():
                complete += count * recipients
                if artifact.in_paper_counts and content not in UNCOUNTED_IN_PAPER:
                    paper += count * recipients
    return Traffic(complete, paper, nbytes)
