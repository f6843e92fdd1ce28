"""Prototypes that were sent with noise, averaged over rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedre_privacy.core.artifacts import Prototypes
from fedre_privacy.core.channels import (
    Channel,
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
from .common.channels import LOUDEST_FIRST, is_masked, is_noisy, least_bound, mask_factor
from .common.client_messages import messages_of
from .mixtures.aux_features import aux_reps, class_means, knows_class_means
from .mixtures.defended_mixtures import solved_of_parts
from .mixtures.gaussian_solver import most_likely_of_sent
from .mixtures.linear_solver import SolvedPrototypes
from .mixtures.mixing import Mixing
from .mixtures.random_walk import random_walk, walk_models
from .mixtures.round_alignment import RoundMaps, images_of, learn_maps, unlearnt_maps

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
    louder the noise, carries earlier rounds over by maps learnt on them where their extractors are
    held too, and lengthens what was shortened to a bound. Where only some coordinates were sent
    each is taken from the rounds that had it. Without a declared defence (or with
    ``--attacker naive``) the last upload is the answer.

    Shape:      uploads (m, d) of T rounds; vectors (N, d), one per client and class
    Needs:      UPLOADS; with EXTRACTOR and AUX_DATA class means are the prior
    Recovers:   prototypes
    Cost:       some hundred factorisations of a T x T matrix per prototype, times the dimension
                where only some coordinates were sent; a pass and the maps of `disentangle` per
                round whose extractor is held
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
        noisy, bound = is_noisy(channel), least_bound(channel.rows)
        masked = mask_factor(channel)
        vectors, clients, labels, rounds, used, errors = [], [], [], [], [], []
        for client, kinds in messages_of(observation).items():
            sent: dict[int, list[tuple[int, Tensor]]] = {}
            uploads: dict[int, Tensor] = {}
            for round, artifact in kinds.get(Prototypes, []):
                if isinstance(artifact, Prototypes) and round <= last[client]:
                    uploads[round] = artifact.means.double()
                    for label, row in zip(artifact.labels.tolist(), artifact.means, strict=True):
                        if bool(row.isfinite().all()):
                            sent.setdefault(label, []).append((round, row.double()))
            changed = noisy or masked is not None or bound is not None
            most = self.rounds if changed else 1
            sent = {label: seen[-(most or len(seen)) :] for label, seen in sorted(sent.items())}
            known = self._known(observation, context, client, sent) if changed and sent else None
            for label, seen in sent.items():
                held = [] if known is None else [(r, u) for r, u in seen if r in known.means]
                if known is not None and held:
                    seen = held
                    solved = known.solve(client, label, seen, uploads, channel)
                elif masked is not None:
                    there = torch.stack([(uploads[r] != 0).any(0) for r, _ in seen])
                    solved = _level_of_parts([(r, row / masked) for r, row in seen], there, noisy)
                else:
                    solved = _level(seen) if noisy else _newest(seen)
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

    def _known(
        self,
        observation: Observation,
        context: Context,
        client: int,
        sent: dict[int, list[tuple[int, Tensor]]],
    ) -> _Known | None:
        """What auxiliary images tell of a client's rounds; None without extractor or labels.

        Rounds whose extractor is not held are left out where two or more are.
        """
        heard = sorted({round for seen in sent.values() for round, _ in seen})
        if observation.aux_labels is None or not knows_class_means(observation, client, heard[-1]):
            return None
        held = [r for r in heard if (client, r) in observation.extractors]
        length = next(iter(sent.values()))[0][1].numel()
        reps = aux_reps(
            observation, context.device, client, held, length=length, limit=self.aux_limit
        )
        labels = observation.aux_labels[: self.aux_limit]
        means = [class_means(r, labels, torch.arange(observation.num_classes)) for r in reps]
        if len(held) > 1:
            maps = learn_maps([images_of(r) for r in reps])
            return _Known(dict(zip(held, means, strict=True)), maps)
        return _Known(dict.fromkeys(heard, means[-1]), unlearnt_maps(torch.tensor(heard)))


@dataclass(frozen=True, eq=False)
class _Known:
    """What auxiliary images tell of a client's rounds, ascending.

    Args:
        means: class means (C, d) of each round.
        maps: from each of these rounds to the last.
    """

    means: dict[int, Tensor]
    maps: RoundMaps

    def solve(
        self,
        client: int,
        label: int,
        seen: list[tuple[int, Tensor]],
        uploads: dict[int, Tensor],
        channel: Channel,
    ) -> SolvedPrototypes:
        """One class's prototype (1, d) as of the last round.

        Args:
            seen: rounds, and the prototype (d,) sent in each. uploads: (m, d) of each round.
        """
        at = [list(self.means).index(r) for r, _ in seen]
        rounds = torch.tensor([r for r, _ in seen])
        lasts = at[-1] == len(self.means) - 1
        maps = self.maps.take(at) if lasts else unlearnt_maps(rounds)
        rows = torch.stack([row for _, row in seen])
        weights = rows.new_ones(len(seen), 1)
        mixing = Mixing(client, rounds, torch.tensor([label]), weights, rows)
        means = [self.means[r][label][None] for r, _ in seen]
        own = [uploads[r] for r, _ in seen]
        masked = is_masked(channel, "rows")
        there = torch.stack([(one != 0).any(0) | (not masked) for one in own])
        return solved_of_parts(mixing, maps, means, channel, there, own)


def _newest(seen: list[tuple[int, Tensor]]) -> SolvedPrototypes:
    return SolvedPrototypes(seen[-1][1][None], torch.zeros(1, dtype=torch.float64))


def _level(seen: list[tuple[int, Tensor]]) -> SolvedPrototypes:
    """The mean of a random walk seen through noise, as of the last round."""
    if len(seen) == 1:
        return _newest(seen)
    uploads = torch.stack([row for _, row in seen])
    rounds = torch.tensor([round for round, _ in seen])
    ones = uploads.new_ones(len(seen), 1)
    return random_walk(ones, uploads, rounds, drifts=DRIFTS, common=(0.0,), noises=(1.0,))


def _level_of_parts(seen: list[tuple[int, Tensor]], sent: Tensor, noisy: bool) -> SolvedPrototypes:
    """The same of uploads of which only some coordinates (T, d) were sent."""
    uploads = torch.stack([row for _, row in seen])
    models = walk_models(
        uploads.new_ones(len(seen), 1), torch.tensor([round for round, _ in seen]), -1, WALKED,
        (0.0,), LOUDEST_FIRST if noisy else (0.0,),
    )  # fmt: skip
    return most_likely_of_sent(models, uploads, sent)
