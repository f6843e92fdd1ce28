"""Which recovered prototypes are right, told without the truth."""

from __future__ import annotations

import torch
from torch import Tensor

from fedre_privacy.core.outcomes import CERTIFIED_WITHIN

from .linear_solver import SolvedPrototypes
from .mixing import Mixing

MARGIN = 3.0
"""How many times the error that the solver expects has to fit into the tolerance."""
PREDICTED = 0.9
"""What the answer has to predict of uploads that were held out."""


def certify_prototypes(solved: SolvedPrototypes, mixing: Mixing) -> Tensor:
    """Whether each prototype of a client is right within `CERTIFIED_WITHIN`, (n,) bool.

    The weights tell all classes apart, with rounds to spare; each round, held out, is predicted by
    what the others recover (so wrong weights and noise get nothing); and three times the error
    that the solver expects is less than the tolerance.

    Args:
        mixing: the uploads that were solved.
    """
    classes = len(mixing.classes)
    checked = len(mixing.rounds) > classes == mixing.rank and solved.predicted >= PREDICTED
    sure: Tensor = MARGIN * solved.relative_error <= CERTIFIED_WITHIN
    return sure & torch.tensor(checked)
