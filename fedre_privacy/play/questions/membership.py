"""Was this image among the client's training data?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from fedre_privacy.attacks.base import RECOVERED, can_read, needed_for
from fedre_privacy.attacks.gradient.sent_models import exchanges, losses, settle
from fedre_privacy.attacks.running.messages import asked_of
from fedre_privacy.core.types import (
    Artifact,
    Candidates,
    Knowledge,
    MembershipScores,
    Observation,
    Upload,
)
from fedre_privacy.data.base import ImageData
from fedre_privacy.eval import PublicImages
from fedre_privacy.eval.membership import MembershipReport, evaluate_membership
from fedre_privacy.eval.report.measures import Bar, measure_chart
from fedre_privacy.protocols.base import Protocol
from fedre_privacy.runs.folder import Run
from fedre_privacy.runs.settings import AttackSettings

from ..observe import held_out, observe
from ..targets import TargetSource, resolve_kind
from .base import (
    Card,
    Game,
    Measure,
    Question,
    is_uploaded,
    kinds_of,
    only_kinds,
    questions,
    with_interval,
)
from .candidates import by_image_alone, draw_candidates
from .recover import recover

ALL = 1 << 30
FLOOR = "image alone"
"""The rule that sees no model (see `by_image_alone`)."""


@dataclass(frozen=True)
class Beside:
    """What a model tells without the upload, and what the verdict makes of it.

    Args:
        name: in tables.
        what: in a sentence.
        above: what the attack must be above to be called a leak: "baseline" or "floor".
        rule: of the verdict.
    """

    name: str
    what: str
    above: str
    rule: str


GRANTED = Beside(
    "the model alone",
    "the log-probability of the label under the client's model, which is granted",
    "baseline",
    "leaks: the 95 % interval of the AUC lies above 0.5, and that of the AUC over the model alone, "
    "which is granted and trained on the members, above 0",
)
"""Beside representations and prototypes, which are attacked with the client's model."""

RECEIVED = Beside(
    "the model before the upload",
    "minus the loss under the model that the server held before the upload",
    "floor",
    "leaks: the 95 % interval of the AUC lies above 0.5, and that of the AUC over the rule that "
    "sees the image alone above 0. What the upload adds to the model before it is its own line",
)
"""Beside models and gradients: what is uploaded is the model itself."""

HALF_GRANTED = Beside(
    "the granted extractor and the head before the upload",
    "minus the loss under the client's extractor, which is granted, and the head as broadcast",
    "baseline",
    GRANTED.rule.replace("the model alone", "the extractor and the head as broadcast"),
)
"""Beside heads, which compute a loss only with the client's extractor."""


@dataclass(frozen=True, eq=False)
class MembershipGame(Game):
    """Candidates, half of them members, and what only the evaluator knows about them.

    Shape: members (M,) bool; class_sizes (M,) samples of the candidate's class at its client;
    baseline (M,) scores of a model without the upload; floor (M,) scores of the image alone.
    """

    candidates: Candidates = field(kw_only=True)
    members: Tensor = field(kw_only=True)
    class_sizes: Tensor = field(kw_only=True)
    baseline: Tensor = field(kw_only=True)
    floor: Tensor = field(kw_only=True)
    beside: Beside = field(kw_only=True)

    def unknown(self) -> str:
        inside = int(self.members.sum())
        return (
            f"membership of {len(self.members)} images ({inside} members) of classes that the "
            "clients hold"
        )


@questions.register("membership")
class Membership(Question):
    """Tell training images from other images of the same classes."""

    simulates = True

    def kinds(self, protocol: Protocol, settings: AttackSettings) -> set[type[Artifact]]:
        kinds = kinds_of(protocol, settings.target)
        readable = {k for k in kinds if can_read(settings.attack, k)}
        return readable or kinds

    def outcome(self) -> type[MembershipScores]:
        return MembershipScores

    def prepare(self, run: Run, settings: AttackSettings, data: ImageData) -> MembershipGame:
        evaluation = settings.evaluation
        source = TargetSource(run, data, round=evaluation.round, seed=evaluation.seed)
        public, aux = held_out(source, ALL)
        asked = draw_candidates(source, public, evaluation.candidates, source.seed)
        kinds = self.kinds(run.settings.protocol, settings)
        models = all(kind.updates for kind in kinds)
        granted = Knowledge.EXTRACTOR in needed_for(settings.attack, kinds)
        targets = _models if models else _rows
        kind, uploads, counterfactual = targets(run, settings, source, aux)
        observation = observe(
            run,
            settings.threat,
            source.round,
            uploads,
            aux,
            candidates=asked.candidates,
            staleness=evaluation.staleness,
            attacker=evaluation.attacker,
        )
        before = _before(observation) if models else _granted(source, asked.candidates)
        return MembershipGame(
            run,
            settings,
            source.attack_seed,
            observation,
            kind,
            counterfactual,
            source.round,
            candidates=asked.candidates,
            members=asked.members,
            class_sizes=asked.class_sizes,
            baseline=before,
            floor=by_image_alone(asked.candidates, aux),
            beside=(HALF_GRANTED if granted else RECEIVED) if models else GRANTED,
        )

    def score(self, game: MembershipGame, outcome: MembershipScores) -> MembershipCard:
        report = evaluate_membership(
            outcome.scores,
            game.members,
            game.candidates.clients,
            game.candidates.labels,
            baseline=game.baseline,
            floor=game.floor,
            class_sizes=game.class_sizes,
            seed=game.settings.evaluation.seed,
        )
        return MembershipCard(game, report, outcome)


Targets = tuple[str, tuple[Upload, ...], bool]
"""What is attacked in words, the uploads, and whether they are counterfactual."""


def _rows(run: Run, settings: AttackSettings, source: TargetSource, aux: PublicImages) -> Targets:
    """Representations, prototypes or mixtures of them."""
    recovered = None
    if settings.target == RECOVERED:
        recovered = recover(run, settings, source, aux)
    wanted = "uploaded" if is_uploaded(settings.target) else settings.target
    kind = resolve_kind(source, wanted, run.settings.protocol.name)
    group = source.group(kind, ALL, recovered=recovered)
    return kind, group.uploads, group.counterfactual


def _models(run: Run, settings: AttackSettings, source: TargetSource, aux: PublicImages) -> Targets:
    """Parameters or gradients, as they were uploaded."""
    uploads = only_kinds(source.uploads.values(), set(settings.attack.consumes))
    return "update", uploads, False


def _before(observation: Observation) -> Tensor:
    """Minus the loss of each candidate under what the server held before the upload."""
    asked = asked_of(observation)
    out = torch.full((len(asked),), torch.nan, dtype=torch.float64)
    for client, exchange in exchanges(observation).items():
        mine = (asked.clients == client).nonzero().squeeze(1)
        before = settle(exchange, asked.images).before
        if len(mine):
            out[mine] = -losses(before, asked.images[mine], asked.labels[mine])
    return out


@torch.no_grad()
def _granted(source: TargetSource, candidates: Candidates) -> Tensor:
    """Log-probability of each candidate's label under its client's model, without any upload."""
    out = torch.empty(len(candidates), dtype=torch.float64)
    for client in source.clients:
        mine = (candidates.clients == client).nonzero().squeeze(1)
        if len(mine):
            model = source.run.model(client, source.round)
            out[mine] = -losses(model, candidates.images[mine], candidates.labels[mine])
    return out


@dataclass(frozen=True, eq=False)
class MembershipCard(Card):
    """AUC within a client and class beside the extractor-only baseline."""

    game: MembershipGame
    report: MembershipReport
    outcome: MembershipScores
    summary: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        found, beside = self.report.summary, self.game.beside
        gap = found[f"above_{beside.above}_ci"]
        leaks = found["auc_ci"][0] > 0.5 and gap[0] > 0
        below = beside.name if beside.above == "baseline" else "chance or the image alone"
        because = (
            f"AUC {with_interval(found['auc'], found['auc_ci'])}, {FLOOR} "
            f"{with_interval(found['auc_floor'], found['auc_floor_ci'])}, {beside.name} "
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
                "verdict": "leaks" if leaks else f"not better than {below}",
                "verdict_because": because,
                "verdict_rule": beside.rule,
                "baseline": beside.what,
                "floor": "minus the distance to the mean public image of the class",
                "notes": list(self.outcome.notes),
                **found,
            },
        )

    def _groups(self) -> list[tuple[str, dict[str, Any]]]:
        """Results for all candidates and by size of the class, each with its name."""
        found = self.report.summary
        by_size = found.get("by_class_size") or {}
        rows = [(f"classes of {name} images", entry) for name, entry in by_size.items() if entry]
        return [("all classes", found), *rows]

    def table(self) -> list[dict[str, str]]:
        found, beside = self.report.summary, self.game.beside
        out = []
        for name, entry in self._groups():
            over = with_interval(entry["above_floor"], entry["above_floor_ci"])
            out.append(self._line(f"AUC, {name}", entry, "auc", f"{over} over it"))
        adds = with_interval(found["above_baseline"], found["above_baseline_ci"])
        text = f"the attack adds {adds}"
        out.insert(1, self._line(f"AUC, {beside.name}", found, "auc_baseline", text))
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

    @staticmethod
    def _line(metric: str, entry: dict[str, Any], key: str, reads: str) -> dict[str, str]:
        return {
            "metric": metric,
            "attack": with_interval(entry[key], entry[f"{key}_ci"]),
            "floor": f"{with_interval(entry['auc_floor'], entry['auc_floor_ci'])} ({FLOOR})",
            "reads as": reads,
            "n": str(entry["compared"]),
        }

    def measures(self) -> list[Measure]:
        """The AUC beside what the verdict holds against it, then the two beside each other."""
        found, beside = self.report.summary, self.game.beside
        out = []
        for name, entry in self._groups():
            suffix = "" if entry is found else f" ({name.removeprefix('classes of ')})"
            interval = entry[f"above_{beside.above}_ci"]
            out.append(
                Measure(
                    f"AUC{suffix}",
                    entry["auc"],
                    entry[f"auc_{beside.above}"],
                    entry[f"above_{beside.above}"],
                    tuple(interval),
                    entry["compared"],
                )
            )
        added = tuple(found["above_baseline_ci"])
        out.append(
            Measure(
                f"AUC over {beside.name}",
                found["auc"],
                found["auc_baseline"],
                found["above_baseline"],
                added,
                found["compared"],
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
                "floor": self.game.floor.numpy(),
            }
        )

    def figures(self) -> dict[str, Figure]:
        beside = self.game.beside
        bars = [
            Bar(
                f"AUC, {name}", e["auc"], tuple(e["auc_ci"]), e[f"auc_{beside.above}"],
                e["compared"],
            )
            for name, e in self._groups()
        ]  # fmt: skip
        found = self.report.summary
        own = Bar(
            f"AUC, {beside.name}",
            found["auc_baseline"],
            tuple(found["auc_baseline_ci"]),
            found["auc_floor"],
            found["compared"],
        )
        title = f"Membership from {self.game.kind} of {self.game.run.name}"
        red = beside.what if beside.above == "baseline" else f"the {FLOOR}"
        caption = (
            "Members against other images of the same client and class; 95 % intervals (clients, "
            f"then candidates resampled). Red: {red}. '{beside.name}': {beside.what}."
        )
        return {"figure": measure_chart([*bars, own], title=title, caption=caption)}
