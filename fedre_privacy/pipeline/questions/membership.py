"""Was this image among the client's training data?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from fedre_privacy.core.types import Artifact, Candidates, MembershipScores
from fedre_privacy.data.base import ImageData
from fedre_privacy.eval.membership import MembershipReport, evaluate_membership
from fedre_privacy.eval.report.measures import Bar, measure_chart
from fedre_privacy.protocols.base import Protocol

from ..observe import held_out, observe
from ..runs import Run
from ..settings import RECOVERED, AttackSettings
from ..targets import TargetSource, resolve_kind
from .base import Card, Game, Measure, Question, is_uploaded, kinds_of, with_interval
from .candidates import draw_candidates
from .recover import recover

ALL = 1 << 30
RULE = (
    "leaks: the 95 % interval of the AUC over the baseline, which sees the model and no upload, "
    "lies above 0; the baseline is at least 0.5"
)


@dataclass(frozen=True, eq=False)
class MembershipGame(Game):
    """Candidates, half of them members, and what only the evaluator knows about them.

    Shape: members (M,) bool; class_sizes (M,) samples of the candidate's class at its client;
    baseline (M,) log-probability of its label under the client's model.
    """

    candidates: Candidates = field(kw_only=True)
    members: Tensor = field(kw_only=True)
    class_sizes: Tensor = field(kw_only=True)
    baseline: Tensor = field(kw_only=True)

    def unknown(self) -> str:
        inside = int(self.members.sum())
        return (
            f"membership of {len(self.members)} images ({inside} members) of classes that the "
            "clients hold"
        )


class Membership(Question):
    """Tell training images from other images of the same classes."""

    def kinds(self, protocol: Protocol, settings: AttackSettings) -> set[type[Artifact]]:
        kinds = kinds_of(protocol, settings.target)
        readable = {k for k in kinds if issubclass(k, settings.attack.consumes)}
        return readable or kinds

    def outcome(self) -> type[MembershipScores]:
        return MembershipScores

    def prepare(self, run: Run, settings: AttackSettings, data: ImageData) -> MembershipGame:
        evaluation = settings.evaluation
        source = TargetSource(run, data, round=evaluation.round, seed=evaluation.seed)
        public, aux = held_out(source, ALL, evaluation.seed)
        recovered = None
        if settings.target == RECOVERED:
            recovered = recover(run, settings, source, aux)
        wanted = "uploaded" if is_uploaded(settings.target) else settings.target
        kind = resolve_kind(source, wanted, run.settings.protocol.name)
        group = source.group(kind, ALL, recovered=recovered)
        asked = draw_candidates(source, public, evaluation.candidates, evaluation.seed)
        observation = observe(
            run,
            settings.threat,
            source.round,
            group.uploads,
            aux,
            candidates=asked.candidates,
            staleness=evaluation.staleness,
            attacker=evaluation.attacker,
        )
        return MembershipGame(
            run,
            settings,
            data,
            observation,
            kind,
            group.counterfactual,
            source.round,
            candidates=asked.candidates,
            members=asked.members,
            class_sizes=asked.class_sizes,
            baseline=_baseline(source, asked.candidates),
        )

    def score(self, game: MembershipGame, outcome: MembershipScores) -> MembershipCard:
        report = evaluate_membership(
            outcome.scores,
            game.members,
            game.candidates.clients,
            game.candidates.labels,
            baseline=game.baseline,
            class_sizes=game.class_sizes,
            seed=game.settings.evaluation.seed,
        )
        return MembershipCard(game, report, outcome)


@torch.no_grad()
def _baseline(source: TargetSource, candidates: Candidates) -> Tensor:
    """Log-probability of each candidate's label under its client's model, without any upload."""
    out = torch.empty(len(candidates))
    for client in source.clients:
        mine = (candidates.clients == client).nonzero().squeeze(1)
        if not len(mine):
            continue
        model = source.run.model(client, source.round)
        logits = torch.cat([model(part) for part in candidates.images[mine].split(256)])
        labels = candidates.labels[mine]
        out[mine] = logits.log_softmax(1).gather(1, labels[:, None]).squeeze(1)
    return out


@dataclass(frozen=True, eq=False)
class MembershipCard(Card):
    """AUC within a client and class beside the extractor-only baseline."""

    game: MembershipGame
    report: MembershipReport
    outcome: MembershipScores
    summary: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        found = self.report.summary
        gap = found["above_baseline_ci"]
        low = found["auc_ci"][0]
        leaks = low > 0.5 and (gap is None or gap[0] > 0)
        because = (
            f"AUC {with_interval(found['auc'], found['auc_ci'])}, model alone "
            f"{with_interval(found['auc_baseline'], found['auc_baseline_ci'])}, "
            f"n = {found['compared']} candidates of {found['clients']} clients"
        )
        object.__setattr__(
            self,
            "summary",
            {
                "n": found["compared"],
                "targets": found["candidates"],
                "diverged": found["without_score"],
                "rule_text": "members against other images of the same client's classes",
                "verdict": "leaks" if leaks else "not better than the model alone",
                "verdict_because": because,
                "verdict_rule": RULE,
                "notes": list(self.outcome.notes),
                **found,
            },
        )

    def table(self) -> list[dict[str, str]]:
        found = self.report.summary
        rows = [("all classes", found)]
        by_size = found.get("by_class_size") or {}
        rows += [(f"classes of {name} images", entry) for name, entry in by_size.items() if entry]
        out = [
            {
                "metric": f"AUC, {name}",
                "attack": with_interval(entry["auc"], entry["auc_ci"]),
                "floor": f"{with_interval(entry['auc_baseline'], entry['auc_baseline_ci'])} "
                "(model alone)",
                "reads as": with_interval(entry["above_baseline"], entry["above_baseline_ci"]),
                "n": str(entry["compared"]),
            }
            for name, entry in rows
        ]
        for rate in ("0.01", "0.001"):
            value, why = found[f"tpr_at_fpr_{rate}"], found[f"tpr_at_fpr_{rate}_reason"]
            out.append(
                {
                    "metric": f"TPR at FPR {float(rate):.1%}",
                    "attack": "-" if value is None else f"{value:.3f}",
                    "floor": f"{float(rate):.3f} by chance",
                    "reads as": why or "",
                    "n": str(found["compared"]),
                }
            )
        return out

    def measures(self) -> list[Measure]:
        found = self.report.summary
        rows = [("AUC", found)]
        rows += [
            (f"AUC ({name} images)", entry)
            for name, entry in (found.get("by_class_size") or {}).items()
            if entry
        ]
        out = []
        for name, entry in rows:
            interval = entry["above_baseline_ci"]
            out.append(
                Measure(
                    name,
                    entry["auc"],
                    entry["auc_baseline"],
                    entry["above_baseline"],
                    tuple(interval) if interval else None,
                    entry["compared"],
                )
            )
        tpr = found["tpr_at_fpr_0.01"]
        if tpr is not None:
            out.append(Measure("TPR at FPR 1 %", tpr, 0.01, tpr - 0.01, None, found["compared"]))
        return out

    def frame(self) -> pd.DataFrame:
        """One row per candidate."""
        asked = self.game.candidates
        return pd.DataFrame(
            {
                "client": asked.clients.numpy(),
                "label": asked.labels.numpy(),
                "class_size": self.game.class_sizes.numpy(),
                "member": self.game.members.numpy(),
                "score": self.outcome.scores.numpy(),
                "baseline": self.game.baseline.numpy(),
            }
        )

    def figures(self) -> dict[str, Figure]:
        found = self.report.summary
        rows = [("all classes", found)]
        rows += [
            (f"classes of {name} images", entry)
            for name, entry in (found.get("by_class_size") or {}).items()
            if entry
        ]
        bars = [
            Bar(f"AUC, {name}", e["auc"], tuple(e["auc_ci"]), e["auc_baseline"], e["compared"])
            for name, e in rows
        ]
        title = f"Membership from {self.game.kind} of {self.game.run.name}"
        caption = (
            "Members against other images of the same client and class; 95 % intervals (clients, "
            "then candidates resampled). Red: the log-probability of the label, without any upload."
        )
        return {"figure": measure_chart(bars, title=title, caption=caption)}
