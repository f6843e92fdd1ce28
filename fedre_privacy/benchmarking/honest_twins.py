"""Runs with an active server beside their honest twins: accuracy lost, leakage gained, detection.

The twin of a run has the same settings and seed, without the steering.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import pandas as pd
import torch
from torch import Tensor

from fedre_privacy.active_server.detectors.base import detectors
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.eval.intervals import cluster_means, ends
from fedre_privacy.eval.measures import COMPARISON
from fedre_privacy.eval.roc import roc
from fedre_privacy.experiments.attack import AttackResult
from fedre_privacy.runs.received_messages import receipts
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.settings import TrainSettings

MOMENTS = ("acc_post_local", "acc_post_broadcast")
FALSE_ALARMS = 0.01
"""Share of honest receipts at which a detector may raise an alarm."""


def honest_twin(settings: TrainSettings) -> TrainSettings:
    """The same settings without the steering.

    Raises:
        IncompatibleError: nothing is steered.
    """
    if not settings.steering:
        raise IncompatibleError(
            f"{settings.run_name} has an honest server, so it is its own twin.",
            next_step="Give a steering, for example --steering null-head:rounds=1.",
        )
    return replace(settings, steering=())


@dataclass(frozen=True, eq=False)
class HonestTwins:
    """Steered runs and their honest twins, one pair for each seed.

    Args:
        steered, honest: complete runs, in the same order of seeds.
    """

    steered: tuple[Run, ...]
    honest: tuple[Run, ...]

    def __post_init__(self) -> None:
        for one, other in zip(self.steered, self.honest, strict=True):
            if honest_twin(one.settings) != other.settings:
                raise IncompatibleError(f"{other.name} is no honest twin of {one.name}.")

    @property
    def active(self) -> str:
        """The mark of the steered runs."""
        return self.steered[0].active

    def learning(self) -> pd.DataFrame:
        """Accuracy after the last round at both moments.

        Columns: moment, honest, steered, difference, low, high (95 % interval over seeds, empty
        for one seed), n (seeds). The moment that the protocol quotes comes first.
        """
        rows = []
        headline = f"acc_{self.honest[0].settings.protocol.headline}"
        for moment in sorted(MOMENTS, key=lambda one: one != headline):
            honest, steered = (
                torch.tensor([run.record["final"][moment] for run in runs], dtype=torch.float64)
                for runs in (self.honest, self.steered)
            )
            rows.append(
                {
                    "moment": moment.removeprefix("acc_"),
                    "honest": float(honest.mean()),
                    "steered": float(steered.mean()),
                    **_paired_difference(steered - honest, torch.arange(len(honest))),
                }
            )
        return pd.DataFrame(rows)

    def leakage(self, play: Callable[[Run], AttackResult]) -> pd.DataFrame:
        """What the same attack finds more of the same targets of the steered runs.

        Targets of clients that no steering is about are left out. Measures are those by which
        variants are compared, as far as single targets have them.

        Args:
            play: the attack on one run; it answers images or prototypes.

        Columns: measure, honest, steered, floor, difference (steered less honest), low, high (95 %
        interval over clients), n (targets), seeds.

        Raises:
            IncompatibleError: no target is left.
        """
        joined = []
        for seed, pair in enumerate(zip(self.honest, self.steered, strict=True)):
            results = [play(run) for run in pair]
            frames = [result.frame() for result in results]
            measures = results[0].card.whole(COMPARISON)
            own = [f[f["group"] == "target"] if "group" in f else f for f in frames]
            same = [key for key in ("target", "client", "label") if key in own[0]]
            both = own[0].merge(own[1], on=same, suffixes=("", "_steered"))
            aimed = [self._is_aimed_at(client, seed) for client in both["client"]]
            joined.append(both.assign(unit=both["client"] + 10_000 * seed)[aimed])
        rows = pd.concat(joined)
        if not len(rows):
            raise IncompatibleError(
                f"The attack has no target of the clients that {self.active} is about.",
                next_step="Attack another round, more targets, or other clients.",
            )
        out = []
        for measure in measures:
            name = measure.key
            if name not in rows:
                continue
            before, after = (
                torch.tensor(rows[column].to_numpy(), dtype=torch.float64)
                for column in (name, f"{name}_steered")
            )
            out.append(
                {
                    "measure": measure.heading,
                    "honest": float(before.nanmean()),
                    "steered": float(after.nanmean()),
                    "floor": float(rows[f"{name}_floor"].mean())
                    if f"{name}_floor" in rows
                    else math.nan,
                    **_paired_difference(after - before, torch.tensor(rows["unit"].to_numpy())),
                    "seeds": len(joined),
                }
            )
        return pd.DataFrame(out)

    def _is_aimed_at(self, client: int, seed: int) -> bool:
        """Whether a client is one whom the steering of a pair is about."""
        settings = self.steered[seed].settings
        return any(one.aims_at(client, settings.train.clients) for one in settings.steering)

    def detection(self, *, losses: bool = True) -> pd.DataFrame:
        """How well each registered detector tells steered messages from honest ones.

        Positives are the receipts of steered rounds, of the clients that are aimed at; negatives
        are the receipts of the same rounds of the honest twins. Only one client's own knowledge
        enters a score (see `Receipt`).

        Args:
            losses: whether losses at receipt are worked out, which loads data and models.

        Columns: detector, AUC, low, high (95 % interval by Hanley and McNeil), TPR at 1 % (share of
        positives above all but 1 % of the negatives; with fewer than 100, above all of them),
        steered, honest (numbers of receipts with a score).
        """
        scores: dict[str, tuple[list[float], list[float]]] = {
            name: ([], []) for name in detectors.names()
        }
        for side, runs in enumerate((self.steered, self.honest)):
            told = (
                (seed, r) for seed, run in enumerate(runs) for r in receipts(run, losses=losses)
            )
            for seed, receipt in told:
                given = self.steered[seed].settings.steering
                if not any(one.acts(receipt.round) for one in given):
                    continue
                if side == 0 and not self._is_aimed_at(receipt.client, seed):
                    continue
                for name in scores:
                    found = detectors.get(name)().score(receipt)
                    if not math.isnan(found):
                        scores[name][side].append(found)
        return pd.DataFrame(
            [
                {
                    "detector": name,
                    **detection_auc(*(torch.tensor(s, dtype=torch.float64) for s in both)),
                }
                for name, both in scores.items()
                if all(both)
            ]
        )


def detection_auc(inside: Tensor, outside: Tensor) -> dict[str, float]:
    """AUC of steered (n,) against honest (m,) scores, with interval, and the rate at few alarms.

    Reference: Hanley and McNeil, The meaning and use of the area under a ROC curve, Radiology 1982.
    """
    fpr, tpr = roc(inside, outside)
    auc = float(torch.trapezoid(tpr, fpr))
    n, m = len(inside), len(outside)
    q1, q2 = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    spread = auc * (1 - auc) + (n - 1) * (q1 - auc**2) + (m - 1) * (q2 - auc**2)
    wide = 1.96 * math.sqrt(max(spread, 0.0) / (n * m))
    threshold = outside.sort(descending=True).values[int(m * FALSE_ALARMS + 1e-9)]
    return {
        "AUC": auc,
        "low": max(auc - wide, 0.0),
        "high": min(auc + wide, 1.0),
        "TPR at 1 %": float((inside > threshold).double().mean()),
        "steered": n,
        "honest": m,
    }


def _paired_difference(differences: Tensor, units: Tensor) -> dict[str, float]:
    """Mean of paired differences with its 95 % interval over units."""
    found = cluster_means(differences[:, None], units)
    low, high = ends(found) or (math.nan, math.nan)
    count = int(differences.isfinite().sum())
    return {"difference": float(found.mean), "low": low, "high": high, "n": count}
