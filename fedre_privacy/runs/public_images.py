"""Images that no client trained on: a half for the evaluator's floors, a half for attackers."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from fedre_privacy.active_server.base import NOTHING_HELD, ServerKnowledge
from fedre_privacy.core.rng import secret, seeded_generators, stream
from fedre_privacy.core.secrets import hidden_number
from fedre_privacy.core.types import Knowledge
from fedre_privacy.models.families import architecture_of, build_model
from fedre_privacy.models.split import SplitModel

from .preparation import PreparedTraining
from .settings import TrainSettings


def split_secret(
    sha256: str, train: Sequence[Tensor], test: Sequence[Tensor], seed: int, name: str = ""
) -> int:
    """Seed of what the evaluator draws, which nobody without the split can repeat.

    Without a secret, whoever has the images can guess the seed of the split.

    Args:
        sha256: of the data. train, test: indices of each client. seed: ``eval.seed``.
        name: fingerprint of the run's secret; empty: it has none.
    """
    own = f" {hidden_number(name, 'evaluator'):032x}" if name else ""
    return secret(seed, f"evaluator of {sha256}{own}", *train, *test)


def halves(test: Sequence[Tensor], seed: int) -> tuple[Tensor, Tensor]:
    """Indices of the two halves of the clients' test samples, in an order drawn by a secret."""
    pool = torch.cat(list(test))
    order = pool[torch.randperm(len(pool), generator=stream(seed, "held out"))]
    half = len(order) // 2
    return order[:half], order[half:]


def server_knowledge(settings: TrainSettings, prepared: PreparedTraining) -> ServerKnowledge:
    """What a malicious server holds beside messages, as far as a steering of the run needs it.

    Its images are those that an attacker is given with ``eval.seed=0``.
    """
    needs = frozenset[Knowledge]().union(*(one.needs for one in settings.steering))
    if not needs:
        return NOTHING_HELD
    data, split = prepared.data, prepared.split
    train, test = ([torch.from_numpy(own) for own in parts] for parts in (split.train, split.test))
    _, public = halves(test, split_secret(data.sha256, train, test, 0, settings.train.secret))
    shape, classes = data.image_shape, data.num_classes
    shared = settings.protocol.shared_model() or settings.model
    built: dict[str, SplitModel] = {}

    def blank(client: int) -> SplitModel:
        name = architecture_of(shared.name, client)
        if name not in built:
            with seeded_generators(settings.train.seed, "blank model"):
                built[name] = build_model(shared, client, shape, classes)
        return copy.deepcopy(built[name])  # its receiver may do with it what it likes

    return ServerKnowledge(data.floats(public), data.labels[public], blank).shown(needs)
