"""Which classes does each client hold, in which shares, and how many samples?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from fedre_privacy.attacks.base import attacks, can_read, readers
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.types import Artifact, LabelEstimate
from fedre_privacy.core.units import plural
from fedre_privacy.data.base import ImageData
from fedre_privacy.eval.label_scores import LabelReport, evaluate_labels
from fedre_privacy.eval.report.measures import Bar, measure_chart
from fedre_privacy.eval.verdict import ERROR, INCONCLUSIVE, LEAKS, MIN_CLIENTS, holm
from fedre_privacy.protocols.base import Protocol
from fedre_privacy.runs.folder import Run
from fedre_privacy.runs.settings import AttackSettings

from ..observe import held_out, observe
from ..targets import TargetSource
from .base import Card, Game, Measure, Question, only_kinds, questions, with_interval
from .unscored import Unscored, UnscoredGame

TITLES = {
    "jaccard": "support Jaccard",
    "precision": "support precision",
    "recall": "support recall",
    "l1": "L1 error of shares",
    "size_error": "relative error of size",
}
"""Measures, the leading one first."""

RULE = (
    "leaks: the Jaccard index lies above the best guess, or the error of the shares under it (two "
    f"one-sided tests over clients, together at a level of {100 * ERROR:g} %, Holm); inconclusive: "
    f"fewer than {MIN_CLIENTS} clients"
)


@dataclass(frozen=True, eq=False)
class LabelGame(Game):
    """Uploads of all clients of the round, and the samples of each class that they hold (K, C)."""

    counts: Tensor

    def unknown(self) -> str:
        clients = len({upload.client for upload in self.observation.targets})
        return f"labels and sizes of {clients} clients; {self.observation.num_classes} classes"


@questions.register("labels")
class Labels(Question):
    """Infer the labels behind the uploads of every client."""

    def kinds(self, protocol: Protocol, settings: AttackSettings) -> set[type[Artifact]]:
        readable = {k for k in protocol.uploads if can_read(settings.attack, k)}
        return readable or set(protocol.uploads)

    def outcome(self) -> type[LabelEstimate]:
        return LabelEstimate

    def prepare(self, run: Run, settings: AttackSettings, data: ImageData) -> LabelGame:
        evaluation = settings.evaluation
        source = TargetSource(run, data, round=evaluation.round, seed=evaluation.seed)
        _, aux = held_out(source, evaluation.public)
        targets = only_kinds(source.uploads.values(), set(settings.attack.consumes))
        if not targets:
            held = {type(a) for upload in source.uploads.values() for a in upload.artifacts}
            said = ", ".join(sorted(kind.__name__ for kind in held)) or "nothing"
            fitting = [n for n in readers(held) if attacks.get(n).answers == "labels"]
            raise IncompatibleError(
                f"Attack '{settings.attack.name}' reads nothing of what clients uploaded in round "
                f"{source.round}: {said}.",
                next_step=" or ".join(f"Use --attack {name} --threat strong." for name in fitting)
                or "See: fedre-attack list.",
            )
        observation = observe(
            run,
            settings.threat,
            source.round,
            targets,
            aux,
            staleness=settings.evaluation.staleness,
            attacker=settings.evaluation.attacker,
        )
        return LabelGame(
            run,
            settings,
            source.attack_seed,
            observation,
            "labels",
            False,
            source.round,
            torch.tensor(run.record["class_counts"]),
        )

    def score(self, game: LabelGame | UnscoredGame, outcome: LabelEstimate) -> Card:
        if isinstance(game, UnscoredGame):
            return Unscored(game, outcome)
        report = evaluate_labels(outcome, game.counts)
        return LabelCard(game, report, outcome.notes)


@dataclass(frozen=True, eq=False)
class LabelCard(Card):
    """Label estimates beside the best guess without uploads."""

    game: LabelGame
    report: LabelReport
    notes: tuple[str, ...]
    summary: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        entries = self.report.summary
        tests = [p for k in ("jaccard", "l1") if (p := entries[k]["gain_p"]) is not None]
        verdict = LEAKS if holm(tests) else "not better than the guess"
        told = [
            f"{TITLES[k]} {entries[k]['mean']:.3f} (guess: {entries[k]['floor_mean']:.3f}, "
            f"n = {entries[k]['n']})"
            for k in TITLES
            if entries[k]["mean"] is not None and k not in ("precision", "recall")
        ]
        clients = len(self.report.rows)
        if clients < MIN_CLIENTS:
            verdict = INCONCLUSIVE
            told.insert(0, f"{plural(clients, 'client')} of at least {MIN_CLIENTS} needed")
        object.__setattr__(
            self,
            "summary",
            {
                "n": clients,
                "targets": clients,
                "diverged": 0,
                "rule_text": "each client's class counts",
                "verdict": verdict,
                "verdict_because": "; ".join(told) or "the uploads say nothing about labels",
                "verdict_rule": RULE,
                "notes": list(self.notes),
                "measures": entries,
            },
        )

    def table(self) -> list[dict[str, str]]:
        out = []
        for key, title in TITLES.items():
            entry = self.report.summary[key]
            floor = "-" if entry["floor_mean"] is None else f"{entry['floor_mean']:.3f}"
            out.append(
                {
                    "metric": title,
                    "attack": with_interval(entry["mean"], entry["ci"]),
                    "floor": f"{floor} ({entry['floor']})",
                    "reads as": "-" if entry["gain"] is None else f"{entry['gain']:+.3f} better",
                    "n": str(entry["n"]),
                }
            )
        return out

    def measures(self) -> list[Measure]:
        out = []
        for key, title in TITLES.items():
            entry = self.report.summary[key]
            interval = tuple(entry["gain_ci"]) if entry["gain_ci"] else None
            out.append(
                Measure(
                    title, entry["mean"], entry["floor_mean"], entry["gain"], interval, entry["n"]
                )
            )
        return out

    def frame(self) -> pd.DataFrame:
        return self.report.rows

    def figures(self) -> dict[str, Figure]:
        bars = [
            Bar(
                title,
                entry["mean"],
                tuple(entry["ci"]) if entry["ci"] else None,
                entry["floor_mean"],
                entry["n"],
            )
            for key, title in TITLES.items()
            if (entry := self.report.summary[key])["mean"] is not None
        ]
        if not bars:
            return {}
        title = f"Labels inferred from {self.game.run.name}"
        caption = "Points: means over clients with 95 % intervals (t over clients)."
        return {"figure": measure_chart(bars, title=title, caption=caption)}
