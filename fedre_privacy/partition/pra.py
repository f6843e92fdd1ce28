"""Practical label skew: Dirichlet shares of each class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..core.config import knob
from ..core.errors import ConfigError, IncompatibleError
from .base import IntArray, Partition, partitions


def published_minimum(num_samples: int, num_clients: int) -> int:
    """Fewest samples of a client in the published generators; 10 is their batch constant."""
    return int(min(10 / (1 - 0.75), num_samples / num_clients / 2))


@partitions.register("pra")
@dataclass(frozen=True, kw_only=True)
class PRA(Partition):
    """Split each class over the clients in shares drawn from a symmetric Dirichlet law.

    Clients that hold N/K samples or more get nothing of the later classes. Everything is drawn
    again until every client has `min_samples`.

    Raises:
        ConfigError: still a client with fewer samples after `max_redraws`.
        IncompatibleError: K * min_samples exceeds N.
    Reference: M. Yurochkin et al., Bayesian nonparametric federated learning of neural networks,
        ICML 2019 (the law); PFLlib, JMLR 2025 (cap and redraws, reproduced index for index);
        "PRA" in the FedRE paper, with alpha = 0.1.
    Deviations: where all of a class's drawn shares fall on full clients the released code divides
        by zero; here the client with the fewest samples gets the class.
    """

    when_to_use = "skew by a Dirichlet law: the default, and the usual setting of papers"
    shorthand = "alpha"
    also = ("dirichlet", "dir", "lda", "non-iid", "practical", "hetero")

    alpha: float = knob(0.1, help="concentration; smaller is more skewed", gt=0)
    min_samples: int | None = knob(
        None,
        help="fewest samples of a client; none: the published rule int(min(40, N/K/2))",
        unit="samples",
        ge=1,
    )
    max_redraws: int = knob(1000, help="give up after drawing this often again", ge=0)

    def assign(
        self, labels: IntArray, num_clients: int, random: np.random.RandomState
    ) -> list[IntArray]:
        return dirichlet_shares(
            labels,
            num_clients,
            random,
            alpha=self.alpha,
            min_samples=self.min_samples,
            max_redraws=self.max_redraws,
            scheme=self.name,
        )


def dirichlet_shares(
    labels: IntArray,
    num_clients: int,
    random: np.random.RandomState,
    *,
    alpha: float,
    min_samples: int | None,
    max_redraws: int,
    scheme: str,
) -> list[IntArray]:
    """Share samples out as `PRA` describes; the order of calls on `random` is the published one.

    Args:
        scheme: name of the partition, for messages.

    Returns:
        Positions in `labels`, one array per client.

    Raises:
        ConfigError, IncompatibleError: see `PRA`.
    """
    least = min_samples
    if least is None:
        least = published_minimum(len(labels), num_clients)
    elif least * num_clients > len(labels):
        raise IncompatibleError(
            f"Partition '{scheme}': min_samples={least} for each of {num_clients} clients needs "
            f"{least * num_clients} samples; there are {len(labels)}.",
            next_step=f"Lower min_samples to {len(labels) // num_clients} or less, or use "
            "fewer clients.",
        )
    members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    best, poorest = -1, 0
    for _ in range(max_redraws + 1):
        orders, cuts = _draw(members, num_clients, alpha, random)
        sizes = np.diff(cuts, axis=1).sum(0)
        if sizes.min() >= least:
            pieces = [np.split(own, at[1:-1]) for own, at in zip(orders, cuts, strict=True)]
            return [np.concatenate(own) for own in zip(*pieces, strict=True)]
        if sizes.min() > best:
            best, poorest = int(sizes.min()), int(sizes.argmin())
    advice = (
        f"Give a larger alpha, fewer clients, a smaller min_samples (now {least}), a larger "
        f"max_redraws (now {max_redraws}), or --partition iid."
    )
    if len(members) == 1:
        advice = "All samples are of one class, whose shares differ much: give --partition iid."
    raise ConfigError(
        f"Partition '{scheme}' (alpha={alpha:g}, {num_clients} clients): after "
        f"{max_redraws} redraws some client still has fewer than {least} samples (at "
        f"best, client {poorest} had {best}).",
        advice,
    )


def _draw(
    members: list[IntArray], num_clients: int, alpha: float, random: np.random.RandomState
) -> tuple[list[IntArray], IntArray]:
    """Draw once: each class's samples in random order, and the cuts (classes, clients + 1)."""
    full = sum(len(own) for own in members) / num_clients
    sizes = np.zeros(num_clients, dtype=np.int64)
    orders = []
    cuts = np.zeros((len(members), num_clients + 1), dtype=np.int64)
    for own, at in zip(members, cuts, strict=True):
        order = own.copy()
        random.shuffle(order)
        orders.append(order)
        share = random.dirichlet(np.full(num_clients, alpha))
        share = share * (sizes < full)
        if share.sum() > 0:
            share = share / share.sum()
        else:  # the law put all its weight on full clients, or underflowed
            share = np.eye(num_clients)[sizes.argmin()]
        at[1:] = np.cumsum(share) * len(order)
        at[-1] = len(order)
        sizes += np.diff(at)
    return orders, cuts
