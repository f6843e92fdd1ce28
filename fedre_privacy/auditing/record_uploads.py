"""Canary records in what a client uploads beside its private training: noise for one record.

Where vectors carry noise with ``unit=record``, a claim for one record counts them too. So a copy
of the client's samples goes through the protocol's own upload and the real defences, in every
round: each sample is a canary whose representation has a coordinate of its own, where it is there
with one sign and not there, replaced, with the other. Representations are five times as long as
the bound. Signs change from round to round as the auditor knows, half of them each way, so that
noise which is the same in every round cancels. The auditor sees what is sent, and with what weight
each sample entered it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedre_privacy.blocks.state import Client, Samples, Setting, Task
from fedre_privacy.core.artifacts import Artifact
from fedre_privacy.core.channels import NOTHING, Bound
from fedre_privacy.core.rng import derive
from fedre_privacy.core.types import Emission
from fedre_privacy.defenses.base import RECORD, Defense, Facts
from fedre_privacy.federation.steps import first_upload, uploaded
from fedre_privacy.models.split import SplitModel
from fedre_privacy.protocols.base import Protocol

from .claims import TOO_LONG, Claim, balanced

MOST_COORDINATES = 2048
"""Samples of a client that are canaries in its uploads; the others are told by training alone."""


class _Lookup(nn.Module):
    """Takes images that hold a sample's number, in three bytes, for the row of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = torch.zeros(0)

    def forward(self, images: Tensor) -> Tensor:
        digits = (images.flatten(1) * 255).round().long()
        return self.rows[digits @ torch.tensor([65536, 256, 1])]


def numbered(count: int) -> Tensor:
    """Images (count, 3, 1, 1) uint8 that hold their own number."""
    each = torch.arange(count)
    digits = torch.stack([each // 65536, each // 256 % 256, each % 256], dim=1)
    return digits.to(torch.uint8).reshape(count, 3, 1, 1)


def sends_for_a_record(defenses: Sequence[Defense], facts: Facts) -> bool:
    """Whether noise for one record is added to something that the protocol sends."""
    return any(d.adds_noise and _covers(d, facts) for d in defenses)


def _covers(defense: Defense, facts: Facts) -> tuple[type[Artifact], ...]:
    cost = defense.cost(facts)
    return cost.covers if cost is not None and cost.unit == RECORD else ()


def upload_ratios(
    protocol: Protocol,
    setting: Setting,
    defenses: Sequence[Defense],
    facts: Facts,
    claim: Claim,
    coins: Tensor,
    seed: int,
) -> Tensor:
    """Log-likelihood ratios of having been there, from noisy uploads of all rounds.

    Args:
        setting: of the federation; its client of the claim is the one that is copied.
        defenses: as they acted, settings filled in, with one that `sends_for_a_record`.
        coins: (copies, n) bool, which samples of each copy of the client are there.

    Returns:
        (copies, n) float64, 0 where a sample entered nothing that is sent.
    """
    noisy = next(d for d in defenses if d.adds_noise and _covers(d, facts))
    channel = noisy.channel(facts) or NOTHING
    bound = next((s.norm for s in channel.each if isinstance(s, Bound)), 1.0)
    counts = facts.class_counts[claim.client]
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    width = min(len(labels), MOST_COORDINATES)
    found = torch.zeros(coins.shape, dtype=torch.float64)
    for copy, there in enumerate(coins):
        own = derive(seed, "audit uploads", index=copy)
        training = dataclasses.replace(setting.training, seed=own)
        copied = dataclasses.replace(setting, training=training)
        table = _Lookup()
        model = SplitModel(
            table, nn.Identity(), dim=width, num_classes=len(counts), normalise=nn.Identity()
        )
        client = Client(claim.client, model, Samples(numbered(len(labels)), labels), _NOBODY)
        protocol.start_client(client, copied)
        table.rows = _canaries(there, width, TOO_LONG * bound)
        first_upload(protocol, client, copied, defenses)
        signs = balanced(len(claim.rounds), own)
        for sign, round in zip(signs, claim.rounds, strict=True):
            table.rows = sign * _canaries(there, width, TOO_LONG * bound)
            task = Task(copied, round, client.id)
            for emission in uploaded(protocol, client, (), task, defenses):
                if type(emission.artifact) in _covers(noisy, facts):
                    found[copy] += sign * _ratios(emission, noisy, facts, claim, bound, width)
    return found


_NOBODY = Samples(torch.zeros(0, 3, 1, 1, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64))


def _canaries(there: Tensor, width: int, length: float) -> Tensor:
    """Representations (n, width): each sample has a coordinate of its own, as far as they go."""
    signs = torch.where(there, 1.0, -1.0)
    rows = torch.zeros(len(there), width)
    rows[torch.arange(width), torch.arange(width)] = length * signs[:width]
    return rows


def _ratios(
    emission: Emission, noisy: Defense, facts: Facts, claim: Claim, bound: float, width: int
) -> Tensor:
    """Ratios (n,) of one upload by the declared noise: normal, or Laplace with a pure epsilon."""
    mixture, sent = emission.mixture, emission.artifact.rows()
    assert mixture is not None and sent is not None
    largest = torch.zeros(mixture.num_rows, dtype=torch.float64)
    weight = mixture.weight.double()
    largest = largest.scatter_reduce(0, mixture.row, weight, "amax")[mixture.row]
    told = mixture.sample < width
    at, row = mixture.sample[told], mixture.row[told]
    value, half = sent[row, at].double(), bound * weight[told]
    sensitivity = 2 * bound * largest[told]
    cost = noisy.cost(facts)
    assert cost is not None
    ratios = torch.zeros(int(sum(facts.class_counts[claim.client])), dtype=torch.float64)
    if cost.releases[claim.client]:
        std = cost.releases[claim.client][0].noise * sensitivity
        ratios[at] = 2 * half * value / std.square()
    else:
        epsilon = cost.pure[claim.client] / facts.participations[claim.client]
        scale = sensitivity * width**0.5 / epsilon
        ratios[at] = ((value + half).abs() - (value - half).abs()) / scale
    return ratios
