"""Distillation between two models of one client."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def kl(student: Tensor, teacher: Tensor, *, detach: bool = True) -> Tensor:
    """KL(softmax(teacher) || softmax(student)), mean over the batch.

    Args:
        student, teacher: logits (b, C). detach: let no gradient into the teacher.
    """
    target = (teacher.detach() if detach else teacher).log_softmax(1)
    return F.kl_div(student.log_softmax(1), target, reduction="batchmean", log_target=True)
