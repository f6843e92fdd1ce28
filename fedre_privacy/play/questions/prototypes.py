"""What is the mean representation of each class at each client?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from fedre_privacy.attacks.base import can_read
from fedre_privacy.blocks.local import represent
from fedre_privacy.blocks.prototypes import class_means
from fedre_privacy.blocks.state import Samples
from fedre_privacy.core.types import Artifact, EntangledRep, Prototypes, RecoveredPrototypes
from fedre_privacy.core.units import plural
from fedre_privacy.data.base import ImageData
from fedre_privacy.eval import PublicImages
from fedre_privacy.eval.floors import cross_fit, worst_of
from fedre_privacy.eval.intervals import clustered, ends, finite
from fedre_privacy.eval.report.measures import Bar, measure_chart
from fedre_privacy.eval.vectors import BUCKETS, VectorScores, score_vectors
from fedre_privacy.eval.verdict import ERROR, INCONCLUSIVE, LEAKS, MIN_CLIENTS, NOT_BETTER, holm
from fedre_privacy.protocols.base import Protocol
from fedre_privacy.runs.folder import Run
from fedre_privacy.runs.settings import AttackSettings

from ..observe import held_out, observe
from ..targets import TargetSource
from .base import Card, Game, Measure, Question, only_kinds, percent, questions, with_interval

FLOORS = {
    "upload": "the client's own upload as the answer for each of its classes",
    "mean": "the mean of the client's recovered vectors (its upload if there are none) as the "
    "answer for each of its classes",
    "public": "the class mean of public images through the client's extractor",
}
"""Answers that need no attack."""

TITLES = {
    "identified": "identification@1",
    "centred_cosine": "centred cosine",
    "relative_error": "relative error",
}
LOWER_LEAKS = frozenset({"relative_error"})
BOUNDS = {"identified": 1.0, "centred_cosine": 2.0}
"""How far apart two values can be, where there is a limit."""
RULE = (
    "leaks: identification or the centred cosine lies above the floor (two one-sided tests over "
    f"clients, together at a level of {100 * ERROR:g} %, Holm); inconclusive: fewer than "
    f"{MIN_CLIENTS} clients with two classes. A prototype that the attack gave up is not found, "
    "and scores as the worst floor"
)


@dataclass(frozen=True, eq=False)
class PrototypeGame(Game):
    """The uploads, and the true prototypes that only the evaluator holds.

    Shape: vectors (M, d); clients, labels, counts (M,); floors: name to (M, d).
    """

    vectors: Tensor = field(kw_only=True)
    clients: Tensor = field(kw_only=True)
    labels: Tensor = field(kw_only=True)
    counts: Tensor = field(kw_only=True)
    floors: Mapping[str, Tensor] = field(kw_only=True)

    def unknown(self) -> str:
        clients = len(self.clients.unique())
        count, dim = self.vectors.shape
        return f"{count} prototypes of {dim} values, of {clients} clients"


@questions.register("prototypes")
class PrototypesQuestion(Question):
    """Recover the class prototypes behind mixtures or head updates."""

    def kinds(self, protocol: Protocol, settings: AttackSettings) -> set[type[Artifact]]:
        readable = {k for k in protocol.uploads if can_read(settings.attack, k)}
        return readable or set(protocol.uploads)

    def outcome(self) -> type[RecoveredPrototypes]:
        return RecoveredPrototypes

    def prepare(self, run: Run, settings: AttackSettings, data: ImageData) -> PrototypeGame:
        evaluation = settings.evaluation
        source = TargetSource(run, data, round=evaluation.round, seed=evaluation.seed)
        public, aux = held_out(source, evaluation.public)
        targets = only_kinds(source.uploads.values(), set(settings.attack.consumes))
        observation = observe(
            run,
            settings.threat,
            source.round,
            targets,
            aux,
            staleness=evaluation.staleness,
            attacker=evaluation.attacker,
        )
        parts: dict[str, list[Tensor]] = {
            name: [] for name in ("vectors", "clients", "labels", "counts", "upload", "public")
        }
        for upload in targets:
            own = source.train[upload.client]
            reps = represent(
                run.model(upload.client, source.round).extractor,
                Samples(data.images[own], data.labels[own]),
            )
            labels = data.labels[own]
            made = class_means(reps, labels, data.num_classes).artifact
            if not isinstance(made, Prototypes):
                raise TypeError("class_means returned no prototypes")
            parts["vectors"].append(made.means)
            parts["labels"].append(made.labels)
            parts["clients"].append(torch.full((len(made.labels),), upload.client))
            counts = torch.bincount(labels, minlength=data.num_classes)
            parts["counts"].append(counts[made.labels])
            parts["upload"].append(_upload_floor(upload.artifacts, len(made.labels)))
            parts["public"].append(_public_floor(run, upload.client, source.round, public, made))
        joined = {
            name: torch.cat(tensors) for name, tensors in parts.items() if all(map(len, tensors))
        }
        floors: dict[str, Tensor] = {
            name: joined[name] for name in ("upload", "public") if name in joined
        }
        return PrototypeGame(
            run,
            settings,
            source.attack_seed,
            observation,
            "prototypes behind the uploads",
            False,
            source.round,
            vectors=joined["vectors"],
            clients=joined["clients"],
            labels=joined["labels"],
            counts=joined["counts"],
            floors=floors,
        )

    def score(self, game: PrototypeGame, outcome: RecoveredPrototypes) -> PrototypeCard:
        answers = dict(game.floors)
        answers["mean"] = _mean_floor(outcome, game)
        scores = {name: _scored(game, vectors) for name, vectors in answers.items()}
        found = score_vectors(
            outcome.vectors,
            outcome.clients,
            outcome.labels,
            true_vectors=game.vectors,
            true_clients=game.clients,
            true_labels=game.labels,
            counts=game.counts,
        )
        return PrototypeCard(game, found, scores, outcome)


def _upload_floor(artifacts: tuple[Artifact, ...], count: int) -> Tensor:
    for artifact in artifacts:
        if isinstance(artifact, EntangledRep):
            return artifact.rep.expand(count, -1)
    return torch.empty(0)


@torch.no_grad()
def _public_floor(
    run: Run, client: int, round: int, public: PublicImages, made: Prototypes
) -> Tensor:
    extractor = run.model(client, round).extractor
    reps = torch.cat([extractor(part) for part in public.images.split(256)])
    rows = [reps[public.labels == label] for label in made.labels]
    return torch.stack([own.mean(0) if len(own) else reps.mean(0) for own in rows])


def _mean_floor(outcome: RecoveredPrototypes, game: PrototypeGame) -> Tensor:
    out = game.floors.get("upload", game.floors["public"]).to(game.vectors).clone()
    for client in game.clients.unique():
        found = outcome.vectors[(outcome.clients == client) & outcome.vectors.isfinite().all(1)]
        if len(found):
            out[game.clients == client] = found.mean(0)
    return out


def _scored(game: PrototypeGame, vectors: Tensor) -> VectorScores:
    return score_vectors(
        vectors,
        game.clients,
        game.labels,
        true_vectors=game.vectors,
        true_clients=game.clients,
        true_labels=game.labels,
        counts=game.counts,
    )


@dataclass(frozen=True, eq=False)
class PrototypeCard(Card):
    """Recovered prototypes beside answers that need no attack; single-class clients are apart."""

    game: PrototypeGame
    found: VectorScores
    floors: dict[str, VectorScores]
    outcome: RecoveredPrototypes
    summary: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        groups = [("", torch.ones(len(self.game.counts), dtype=torch.bool))]
        for low, high, name in BUCKETS:
            inside = self.game.counts >= low
            if high is not None:
                inside &= self.game.counts <= high
            groups.append((name, inside))
        entries = {name: self._entries(inside) for name, inside in groups if bool(inside.any())}
        whole = entries[""]
        tests = [
            p for k in ("identified", "centred_cosine") if (p := whole[k]["gain_p"]) is not None
        ]
        verdict = LEAKS if holm(tests) else NOT_BETTER
        hit, cosine = whole["identified"], whole["centred_cosine"]
        because = "no client has two classes"
        if not bool(self.found.answered.any()):
            because = f"the uploads tell none of {len(self.game.counts)} prototypes apart"
        if hit["mean"] is not None:
            because = (
                f"found among the client's prototypes {percent(hit['mean'])} of the time "
                f"({percent(hit['floor_mean'])} with {hit['floor']}), centred cosine "
                f"{cosine['mean']:.3f} ({cosine['floor_mean']:.3f} with {cosine['floor']}), "
                f"n = {hit['n']}"
            )
        several = len(self.game.clients[self.found.chance < 1].unique())
        if hit["mean"] is not None and several < MIN_CLIENTS:
            verdict = INCONCLUSIVE
            because += f", {plural(several, 'client')} of at least {MIN_CLIENTS} needed"
        alone = int((self.found.chance == 1).sum())
        if alone:
            because += f"; {alone} more belong to clients of one class, who upload them bare"
        object.__setattr__(
            self,
            "summary",
            {
                "n": int(self.found.answered.sum()),
                "targets": len(self.game.counts),
                "diverged": int((~self.found.answered).sum()),
                "rule_text": "the true prototype of the same client and class",
                "verdict": verdict,
                "verdict_because": because,
                "verdict_rule": RULE,
                "floors": FLOORS,
                "notes": list(self.outcome.notes),
                "groups": entries,
            },
        )

    def _entries(self, inside: Tensor) -> dict[str, dict[str, Any]]:
        return {key: self._entry(key, inside) for key in TITLES}

    def _entry(self, key: str, inside: Tensor) -> dict[str, Any]:
        mine = getattr(self.found, key)
        others = {name: getattr(scores, key) for name, scores in self.floors.items()}
        if bool(self.found.answered.any()):
            worst = worst_of(list(others.values()), higher_leaks=key not in LOWER_LEAKS)
            # floors have no score either where a client has one class and the measure needs two
            worst = torch.where(worst.isfinite(), worst, torch.nan)
            lost = worst * 0 if key == "identified" else worst
            mine = torch.where(self.found.answered, mine, lost)
        if key == "identified":
            others["chance"] = self.found.chance
        usable = inside & mine.isfinite()
        empty = {"mean": None, "ci": None, "floor": None, "floor_mean": None, "gain": None,
                 "gain_ci": None, "gain_p": None, "n": 0}  # fmt: skip
        if not bool(usable.any()):
            return empty
        owners = self.game.clients[usable]
        floor = cross_fit(
            {name: value[usable] for name, value in others.items()},
            owners,
            higher_leaks=key not in LOWER_LEAKS,
        )
        if floor.name is None:
            return empty
        found, sign = mine[usable].double(), -1 if key in LOWER_LEAKS else 1
        gain, most = sign * (found - floor.values), BOUNDS.get(key)
        own, more = clustered(found[:, None], owners), clustered(gain[:, None], owners)
        least = -1.0 if key == "centred_cosine" else 0.0
        return {
            "mean": float(found.mean()),
            "ci": ends(own, None if most is None else (least, 1.0)),
            "floor": floor.name,
            "floor_mean": float(floor.values.mean()),
            "gain": float(gain.mean()),
            "gain_ci": ends(more, None if most is None else (-most, most)),
            "gain_p": finite(float(more.p_above())),
            "n": int(usable.sum()),
        }

    def table(self) -> list[dict[str, str]]:
        out = []
        for group, entries in self.summary["groups"].items():
            for key, title in TITLES.items():
                entry = entries[key]
                if entry["mean"] is None:
                    continue
                out.append(
                    {
                        "classes of": f"{group} images" if group else "all",
                        "metric": title,
                        "attack": with_interval(entry["mean"], entry["ci"]),
                        "floor": f"{entry['floor_mean']:.3f} ({entry['floor']})",
                        "reads as": f"{entry['gain']:+.3f} over floor",
                        "n": str(entry["n"]),
                    }
                )
        return out

    def measures(self) -> list[Measure]:
        out = []
        for group, entries in self.summary["groups"].items():
            for key, title in TITLES.items():
                entry = entries[key]
                name = f"prototypes: {title}" if key == "identified" else title
                suffix = f" ({group} images)" if group else ""
                interval = entry["gain_ci"]
                out.append(
                    Measure(
                        f"{name}{suffix}",
                        entry["mean"],
                        entry["floor_mean"],
                        entry["gain"],
                        tuple(interval) if interval else None,
                        entry["n"],
                    )
                )
        smallest = self.outcome.s_min[self.outcome.s_min.isfinite()]
        if len(smallest):
            value = float(smallest.median())
            out.append(Measure("median s_min(W)", value, None, None, None, len(smallest)))
        return out

    def frame(self) -> pd.DataFrame:
        """One row per client and class."""
        data = {
            "client": self.found.clients.numpy(),
            "label": self.found.labels.numpy(),
            "count": self.found.counts.numpy(),
            **{key: getattr(self.found, key).numpy() for key in TITLES},
        }
        for name, scores in self.floors.items():
            data |= {f"{key}_{name}": getattr(scores, key).numpy() for key in TITLES}
        frame = pd.DataFrame(data)
        told = pd.DataFrame(
            {
                "client": self.outcome.clients.numpy(),
                "label": self.outcome.labels.numpy(),
                "rounds_used": self.outcome.rounds_used.numpy(),
                "s_min": self.outcome.s_min.numpy(),
                "expected_error": self.outcome.expected_error.numpy(),
            }
        )
        return frame.merge(told, how="left", on=["client", "label"])

    def figures(self) -> dict[str, Figure]:
        bars = [
            Bar(
                f"{TITLES[key]}, {group + ' images' if group else 'all'}",
                entry["mean"],
                tuple(entry["ci"]) if entry["ci"] else None,
                entry["floor_mean"],
                entry["n"],
            )
            for group, entries in self.summary["groups"].items()
            for key, entry in entries.items()
            if entry["mean"] is not None
        ]
        if not bars:
            return {}
        name = self.game.settings.attack.name
        caption = "Means over classes with 95 % intervals (t over clients)."
        title = f"Prototypes recovered by {name} ({self.game.run.name})"
        return {"figure": measure_chart(bars, title=title, caption=caption)}
