"""Prototypes that were sent with noise, averaged over rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedre_privacy.core.artifacts import Prototypes
from fedre_privacy.core.channels import (
    ClippingStep,
    LearntChange,
    Masking,
    Noise,
    RandomChange,
    RandomRounding,
    StepsAt,
    UnknownNoise,
)
from fedre_privacy.core.config import knob
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import RecoveredPrototypes
from fedre_privacy.core.types import Knowledge, Observation

from .base import Attack, Context, attacks
from .common.channels import LOUDEST_FIRST, least_bound, mask_factor, noise_ratios
from .common.client_messages import messages_of
from .common.row_steps import row_gains
from .mixtures.aux_features import aux_reps, class_means, knows_class_means
from .mixtures.gaussian_solver import most_likely_of_sent
from .mixtures.linear_solver import SolvedPrototypes
from .mixtures.random_walk import random_walk, walk_models

DRIFTS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Drift of a prototype in a round, in units of the noise, of which only the ratio matters."""
WALKED = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)
"""The same, in units of the spread about the class mean, where that is known."""


@attacks.register("average")
@dataclass(frozen=True, kw_only=True)
class Average(Attack):
    """Take noise off uploaded prototypes by averaging the uploads of several rounds.

    A prototype drifts as the extractor trains, noise is drawn anew every round: a random walk seen
    through noise. The ratio of drift to noise is chosen by likelihood over all dimensions, and the
    answer is the walk's mean as of the last round. Who holds the client's extractors and labelled
    images (threat model strong) expects prototypes about the class means of those, the more so the
    louder the noise, and lengthens what was shortened to a bound. Where only some coordinates were
    sent each is taken from the rounds that had it. Without a declared defence (or with
    ``--attacker naive``) the last upload is the answer.

    Shape:      uploads (m, d) of T rounds; vectors (N, d), one per client and class
    Needs:      UPLOADS; with EXTRACTOR and AUX_DATA class means are the prior
    Recovers:   prototypes
    Cost:       a few factorisations of a T x T matrix per prototype
    Reference:  Kalman, A new approach to linear filtering and prediction problems, 1960 (the
                local level model); the loss of privacy by repeated noisy releases: Dwork, Roth,
                The algorithmic foundations of differential privacy, 2014, 3.5.
    """

    when_to_use = "prototypes under noise that is drawn anew each round, before an attack on images"
    measured_on = ("defences",)
    consumes = (Prototypes,)
    needs = frozenset({Knowledge.UPLOADS})
    recovers = "prototypes"
    answers = "prototypes"
    adapts_to: ClassVar[StepsAt] = {
        "extractor": (LearntChange, RandomChange),
        "rows": (ClippingStep, Masking, Noise, UnknownNoise, RandomRounding),
    }

    rounds: int | None = knob(None, help="latest rounds used; none: all", unit="rounds", ge=1)
    aux_limit: int = knob(
        500, help="auxiliary images used at most", unit="images", ge=10, later=True
    )

    def adapts(self, observation: Observation) -> StepsAt:
        """Bounds by class means; all else, and learnt changes at random, by several rounds too."""
        means = several = False
        for client, kinds in messages_of(observation).items():
            heard = sorted({round for round, _ in kinds.get(Prototypes, [])})
            several |= len(heard) > 1 and self.rounds != 1
            means |= bool(heard) and knows_class_means(observation, client, heard[-1])
        own = super().adapts(observation)
        usable = {
            kind for kind in own.get("rows", ()) if means or (several and kind is not ClippingStep)
        }
        drawn = any(step.random for step in observation.channel.extractor) and (means or several)
        return {
            "extractor": own.get("extractor", ()) if drawn else (),
            "rows": tuple(kind for kind in own.get("rows", ()) if kind in usable),
        }

    def run(self, observation: Observation, context: Context) -> RecoveredPrototypes:
        last = {upload.client: upload.round for upload in observation.targets}
        channel = observation.channel
        noisy, bound = noise_ratios(channel) is not None, least_bound(channel.rows)
        masked = mask_factor(channel)
        vectors, clients, labels, rounds, used, errors = [], [], [], [], [], []
        for client, kinds in messages_of(observation).items():
            sent: dict[int, list[tuple[int, Tensor]]] = {}
            parts: dict[int, Tensor] = {}
            for round, artifact in kinds.get(Prototypes, []):
                if isinstance(artifact, Prototypes) and round <= last[client]:
                    parts[round] = (artifact.means != 0).any(0)
                    for label, row in zip(artifact.labels.tolist(), artifact.means, strict=True):
                        if bool(row.isfinite().all()):
                            sent.setdefault(label, []).append((round, row.double()))
            several = noisy or masked is not None
            most = self.rounds if several else 1
            sent = {label: seen[-(most or len(seen)) :] for label, seen in sorted(sent.items())}
            means: dict[int, Tensor] = {}
            if sent and (several or bound is not None):
                heard = sorted({round for seen in sent.values() for round, _ in seen})
                length = next(iter(sent.values()))[0][1].numel()
                means = self._class_means(observation, context, client, heard, length)
            for label, seen in sent.items():
                expected = torch.stack([means[r][label] for r, _ in seen]) if means else None
                there = torch.stack([parts[r] for r, _ in seen])
                if expected is not None:
                    own = torch.stack([row for _, row in seen])
                    gains = row_gains(channel, own, there, expected)
                    # noise is as long in every round of what is sent
                    scales = gains[-1:].expand_as(gains) if noisy else gains
                    expected = expected * gains / scales
                    seen = [(r, row / by) for (r, row), by in zip(seen, scales, strict=True)]
                elif masked is not None:
                    seen = [(r, row / masked) for r, row in seen]
                if masked is not None:
                    solved = _level_of_parts(seen, there, expected, noisy)
                else:
                    solved = _level(seen, expected) if noisy else _newest(seen)
                vectors.append(solved.vectors)
                errors.append(solved.relative_error)
                clients.append(client)
                labels.append(label)
                rounds.append(seen[-1][0])
                used.append(len(seen))
        if not vectors:
            raise IncompatibleError(
                "No attacked client has a finite prototype.",
                next_step="Attack another round, or another run.",
            )
        return RecoveredPrototypes(
            vectors=torch.cat(vectors).float(),
            clients=torch.tensor(clients),
            labels=torch.tensor(labels),
            rounds=torch.tensor(rounds),
            rounds_used=torch.tensor(used),
            s_min=torch.ones(len(vectors)),
            expected_error=torch.cat(errors).float(),
            notes=(
                f"{len(vectors)} prototypes, "
                + (f"of up to {max(used)} rounds" if max(used) > 1 else "as last uploaded"),
            ),
        )

    def _class_means(
        self,
        observation: Observation,
        context: Context,
        client: int,
        rounds: list[int],
        length: int,
    ) -> dict[int, Tensor]:
        """Class means (C, d) of auxiliary images in each round; nothing where they are unknown.

        Rounds whose extractor is not held take the last one's.
        """
        last = rounds[-1]
        if observation.aux_labels is None or not knows_class_means(observation, client, last):
            return {}
        held = [r for r in rounds if (client, r) in observation.extractors]
        labels = observation.aux_labels[: self.aux_limit]
        classes = torch.arange(observation.num_classes)
        means = {}
        for round in held:  # one at a time: few representations are in memory at once
            (reps,) = aux_reps(
                observation, context.device, client, [round], length=length, limit=self.aux_limit
            )
            means[round] = class_means(reps, labels, classes)
        return {round: means.get(round, means[last]) for round in rounds}


def _newest(seen: list[tuple[int, Tensor]]) -> SolvedPrototypes:
    return SolvedPrototypes(seen[-1][1][None], torch.zeros(1, dtype=torch.float64))


def _level(seen: list[tuple[int, Tensor]], expected: Tensor | None) -> SolvedPrototypes:
    """The mean of a random walk seen through noise, as of the last round.

    Args:
        expected: (T, d) what it walks about, where that is known.
    """
    if len(seen) == 1 and expected is None:
        return _newest(seen)
    uploads = torch.stack([row for _, row in seen])
    rounds = torch.tensor([round for round, _ in seen])
    ones = uploads.new_ones(len(seen), 1)
    if expected is None:
        return random_walk(ones, uploads, rounds, drifts=DRIFTS, common=(0.0,), noises=(1.0,))
    solved = random_walk(
        ones,
        uploads - expected,
        rounds,
        drifts=WALKED,
        common=(0.0,),
        noises=LOUDEST_FIRST,
        centred=True,
    )
    return SolvedPrototypes(solved.vectors + expected[-1], solved.error)


def _level_of_parts(
    seen: list[tuple[int, Tensor]], sent: Tensor, expected: Tensor | None, noisy: bool
) -> SolvedPrototypes:
    """The same of uploads of which only some coordinates (T, d) were sent."""
    uploads = torch.stack([row for _, row in seen])
    about = torch.zeros_like(uploads) if expected is None else expected
    models = walk_models(
        uploads.new_ones(len(seen), 1), torch.tensor([round for round, _ in seen]), -1, WALKED,
        (0.0,), LOUDEST_FIRST if noisy else (0.0,),
    )  # fmt: skip
    solved = most_likely_of_sent(models, uploads - about, sent)
    return SolvedPrototypes(solved.vectors + about[-1], solved.error)
