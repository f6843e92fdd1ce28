"""From the uploads of a round to signals: the confidence of every slot under every sent model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedre_privacy.attacks.common.client_messages import asked_of
from fedre_privacy.attacks.common.frozen_modules import frozen_copy, outputs
from fedre_privacy.attacks.gradients.model_pairs import exchanges, settle
from fedre_privacy.core.types import Observation

from .base import confidence


def confidences(
    observation: Observation, clients: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Confidences of all candidates under what clients sent in the round, and before it.

    Args:
        observation: of one round, with candidates.
        clients: of the federation, K.

    Returns:
        Under the model that each client uploaded (K, n), and under the one that the candidate's
        own client had received (n,); float64, NaN for clients that sent nothing.

    Raises:
        IncompatibleError: a model or extractor was not given, see `exchanges`.
    """
    asked = asked_of(observation)

    def under(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        return confidence(outputs(frozen_copy(model, device), images, device=device), labels)

    sent = torch.full((clients, len(asked)), torch.nan, dtype=torch.float64)
    before = torch.full((len(asked),), torch.nan, dtype=torch.float64)
    for client, exchange in exchanges(observation).items():
        made = settle(exchange, asked.images)
        sent[client] = under(made.after, asked.images, asked.labels)
        mine = (asked.clients == client).nonzero().squeeze(1)
        if len(mine):
            before[mine] = under(made.before, asked.images[mine], asked.labels[mine])
    return sent, before
