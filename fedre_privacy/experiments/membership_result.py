"""What attacks found in worlds: rows beside their floors and bounds, records at risk, files."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedre_privacy.attacks.base import attacks
from fedre_privacy.core import files
from fedre_privacy.core.artifact_schema import Role
from fedre_privacy.core.units import plural
from fedre_privacy.defenses.accounting import mu_of
from fedre_privacy.defenses.base import CLIENT
from fedre_privacy.defenses.statement import state
from fedre_privacy.eval.report import save_figure
from fedre_privacy.eval.report.risk import risk_sheet
from fedre_privacy.eval.report.roc import roc_figure
from fedre_privacy.eval.shadow_scores import (
    SHOWN,
    RateShown,
    RecordRisk,
    ShadowMembershipScore,
    blind_scores,
    chance,
    evaluate_shadow_membership,
    fewest_exposed,
    most_of_mu,
    record_risk,
)
from fedre_privacy.eval.verdict import INCONCLUSIVE, LEAKS, MARGIN_SHARE, NO_EVIDENCE
from fedre_privacy.runs.folder import COMPLETE, versions
from fedre_privacy.runs.preparation import facts_of, prepare
from fedre_privacy.runs.run_writer import summary

from .shadow_federations import ShadowFederationPlan, ShadowScores

BLIND = "no upload: pixels, class, class size"
MODEL = "the granted model alone, no upload"
CHANCE = "chance"
MOST = "no attack can exceed (claim)"


def claimed_mu(plan: ShadowFederationPlan) -> tuple[float | None, str]:
    """mu of the Gaussian curve that is promised for a client, or None and why there is none.

    A promise for all data of a client holds for each of its records. It speaks of uploads alone, so
    that it bounds an attack only where the attacker holds nothing else of the client.
    """
    if not plan.training.defense:
        return None, "no defence claims anything"
    settings = plan.world(0)
    prepared = prepare(settings, torch.device("cpu"))
    facts = facts_of(settings, prepared.setting)
    costs = [c for d in prepared.defense if (c := d.cost(facts)) is not None and c.unit == CLIENT]
    promised = any(g.unit == CLIENT for g in state(prepared.defense, facts).guarantees)
    releases = [[r for cost in costs for r in cost.releases[k]] for k in range(facts.clients)]
    if not promised or not any(releases):
        return None, "no claim of a Gaussian curve for a client"
    if any(cost.pure[k] for cost in costs for k in range(facts.clients)):
        return None, "the claim adds Gaussian and pure mechanisms, whose curve is not known"
    if not any(Role.WHOLE in kind.roles for kind in settings.protocol.uploads):
        return None, "the claim is for uploads, and the attacker holds extractors as well"
    return max(map(mu_of, releases)), ""


@dataclass(frozen=True, eq=False)
class MembershipResult:
    """Scores of all attacks on worlds, and the folder that holds them."""

    played: ShadowScores

    @property
    def folder(self) -> Path:
        """Where record, figures and guesses are."""
        return self.played.folder

    @cached_property
    def scores(self) -> dict[str, ShadowMembershipScore]:
        """Every attack by name, in the order of the table."""
        return {name: self._score(values) for name, values in self.played.scores.items()}

    @cached_property
    def floors(self) -> dict[str, ShadowMembershipScore]:
        """What needs no upload: images and classes alone, the model that is granted, and chance."""
        played = self.played
        slots = played.slots
        blind = blind_scores(played.images, slots.labels, slots.clients, played.coins)
        return {
            BLIND: self._score(blind),
            **({} if played.model is None else {MODEL: self._score(played.model)}),
            CHANCE: chance(played.coins, played.plan.rates),
        }

    def _score(self, values: Tensor) -> ShadowMembershipScore:
        played = self.played
        return evaluate_shadow_membership(
            values, played.coins, played.slots.clients, played.slots.labels, rates=played.plan.rates
        )

    @property
    def plain(self) -> list[str]:
        """Attacks that need neither shadows nor a declared assumption, else the last on signals."""
        direct = [name for name in self.played.scores if name not in self.played.plan.chosen]
        plain = [name for name in direct if not attacks.get(name).assumes]
        return plain or list(self.played.scores)[-1:]

    @property
    def primary(self) -> str:
        """The attack behind the verdict: the plain one of the highest AUC."""
        return max(self.plain, key=lambda name: self.scores[name].auc)

    @cached_property
    def risks(self) -> list[RecordRisk]:
        """Every slot by how often the plain attack that tells it best was right, most first."""
        values = {name: self.played.scores[name] for name in self.plain}
        return record_risk(values, self.played.coins, self.played.slots.clients)

    def knows(self, name: str) -> str:
        """What an attack takes for granted."""
        if name not in self.played.plan.chosen:
            return attacks.get(name).assumes or "uploads, images apart"
        shadows = self.played.plan.worlds - 1
        needs = self.played.plan.chosen[name].needs_shadows
        return f"{plural(shadows, 'shadow')}" if needs else "uploads (no shadows)"

    def table(self) -> list[dict[str, str]]:
        """A row for each attack, then what no attack can exceed if that is claimed, then floors."""
        rates = self.played.plan.rates
        made = [_row(name, one, self.knows(name)) for name, one in self.scores.items()]
        mu, _ = claimed_mu(self.played.plan)
        if mu is not None:
            area, caps = most_of_mu(mu, rates)
            cap = {"attack": MOST, "AUC [95 %]": f"{area:.3f}", "within class": "-"}
            cap |= {_rate_heading(r): f"{c:.4f}" for r, c in zip(rates, caps, strict=True)}
            made.append(cap | {"knows": f"mu {mu:.3f}, for a client"})
        return [*made, *(_row(name, one, "-") for name, one in self.floors.items())]

    def lines(self) -> dict[str, str]:
        """Federation, game, attacker and claim in words."""
        mu, why = claimed_mu(self.played.plan)
        played, coins = self.played, self.played.plan.coins
        accuracy = played.accuracy[played.accuracy.isfinite()]
        told = f"{float(accuracy.mean()):.3f} +- {float(accuracy.std()):.3f}"
        return {
            "Worlds": f"{played.plan.worlds} of {summary(played.plan.training)}   accuracy {told} "
            "over worlds, on samples that train in none",
            "Game": f"{plural(len(played.slots), 'slot')}, own pool of each client, fair coins "
            f"({coins.game}); seeds of worlds are independent, the partition is one",
            "Attacker": "server with uploads, extractors where uploads need them, and images of "
            "no client's training; where shadows are used they share the partition (AUDITOR). "
            "Never a coin of the world attacked, nor a seed",
            "Claim": f"none that bounds these attacks: {why}"
            if mu is None
            else f"a Gaussian curve of mu {mu:.3f} for a client, which bounds every attack",
        }

    def verdict(self) -> str:
        """What follows of the primary attack, in a sentence.

        It leaks where the interval of that attack lies above those of all floors. As both have a
        level of 95 %, choosing the best of two or three attacks does not make a leak of chance. It
        is no evidence where the interval ends less than a margin above the best floor.
        """
        found, floor = self.scores[self.primary], self.floors[BLIND]
        low, high = found.auc_interval
        limit = max(one.auc_interval[1] for one in self.floors.values())
        best = max(one.auc for one in self.floors.values())
        bounded = high < best + MARGIN_SHARE
        word = LEAKS if low > limit else NO_EVIDENCE if bounded else INCONCLUSIVE
        still = "" if word == LEAKS else f"; could still be up to {high - best:+.2f} over that"
        granted = self.floors.get(MODEL)
        alone = "" if granted is None else f", the granted model alone {granted.auc:.3f}"
        named = sum(one.exposed for one in self.risks)
        others = [name for name in self.plain if name != self.primary]
        beside = "".join(f", {name} {self.scores[name].auc:.3f}" for name in others)
        return (
            f"{word}: {self.primary} has an AUC of {found.auc:.3f} [{low:.3f}, {high:.3f}]"
            f"{beside}, no upload {floor.auc:.3f}{alone}{still}; {named} of "
            f"{plural(len(self.risks), 'record')} exposed"
        )

    def exposure(self) -> str:
        """Why so many records are exposed as are, in sentences."""
        worlds, records = len(self.played.coins), len(self.risks)
        found = sum(one.exposed for one in self.risks)
        said = (
            "The verdict is about all records together. A single record is exposed where an attack "
            f"is right about it in more worlds than chance explains: {found} of {records:,} are."
        )
        needed = fewest_exposed(worlds, records, len(self.plain))
        if found or needed == 1:
            return said
        enough = next(
            count for count in itertools.count(worlds)
            if fewest_exposed(count, records, len(self.plain)) == 1
        )  # fmt: skip
        alone = f"From {enough} worlds on, one alone can be."
        if needed > records:
            return (
                f"{said} With {plural(worlds, 'world')} none can be, even if all are told. {alone}"
            )
        return (
            f"{said} With {plural(worlds, 'world')} none is unless {needed:,} are told in every "
            f"world. {alone}"
        )

    def exposed(self) -> list[dict[str, str]]:
        """The records told most often, with the size of their class."""
        slots = self.played.slots
        made = []
        for one in self.risks[:SHOWN]:
            client, label = int(slots.clients[one.slot]), int(slots.labels[one.slot])
            size = int(((slots.clients == client) & (slots.labels == label)).sum())
            made.append(
                {
                    "record": str(int(slots.one[one.slot])),
                    "client": str(client),
                    "class": str(label),
                    "of its class": str(size),
                    "told in": f"{one.right} of {one.worlds} worlds",
                    "by": one.attack,
                    "share [95 %]": _interval(one.right / one.worlds, one.interval, 2),
                    "exposed": "yes" if one.exposed else "no",
                }
            )
        return made

    def record(self) -> dict[str, Any]:
        """Everything that was found, as it is written."""
        played = self.played
        plan = played.plan
        mu, why = claimed_mu(plan)
        return {
            "status": COMPLETE,
            "versions": versions(),
            **self.lines(),
            "training": plan.training.plain(),
            "worlds": plan.worlds,
            "game": plan.coins.game,
            "slots": len(played.slots),
            "rounds": plan.looked_at,
            "seconds": played.seconds,
            "attacks": {
                name: {**dataclasses.asdict(one), "knows": self.knows(name)}
                for name, one in self.scores.items()
            },
            "floors": {name: dataclasses.asdict(one) for name, one in self.floors.items()},
            "claim": {"mu": mu, "why": why},
            "primary": self.primary,
            "exposed": self.exposed(),
            "verdict": self.verdict(),
        }

    @files.private()
    def write(self) -> None:
        """Write the record, the guesses, the ROC and the records at risk, for the owner alone."""
        played = self.played
        slots, coins = played.slots, played.coins
        files.write_json(self.folder / "record.json", _finite(self.record()))
        rows = []
        for world in range(len(coins)):
            for slot in range(len(slots)):
                rows.append(
                    {
                        "world": world,
                        "slot": slot,
                        "client": int(slots.clients[slot]),
                        "label": int(slots.labels[slot]),
                        "member": int(coins[world, slot]),
                        **{k: float(v[world, slot]) for k, v in played.scores.items()},
                    }
                )
        files.write_csv(self.folder / "guesses.csv", rows)
        first = {self.primary: played.scores[self.primary], **played.scores}
        drawn = roc_figure(
            {name: (values[coins], values[~coins]) for name, values in first.items()},
            title=f"Membership in {plural(len(coins), 'world')} of {played.plan.training.run_name}",
            caption="All guesses of all worlds. Band: 95 % (Clopper-Pearson), as if guesses were "
            "independent; the table has the wider interval.",
        )
        save_figure(drawn, self.folder / "roc")
        worst = self.risks[:SHOWN]
        save_figure(
            risk_sheet(
                played.images[[one.slot for one in worst]],
                [f"{one.right}/{one.worlds}" for one in worst],
                title="Records whose membership was told most often",
                caption=f"By {' or '.join(self.plain)}; right guesses of worlds below.",
            ),
            self.folder / "exposed",
        )


def _row(name: str, one: ShadowMembershipScore, knows: str) -> dict[str, str]:
    row = {
        "attack": name,
        "AUC [95 %]": _interval(one.auc, one.auc_interval, 3),
        "within class": f"{one.auc_within:.3f}",
    }
    return row | {_rate_heading(rate.rate): _rate(rate) for rate in one.rates} | {"knows": knows}


def _rate_heading(rate: float) -> str:
    return f"TPR at {100 * rate:g} % FPR"


def _rate(one: RateShown) -> str:
    if one.tpr is None or one.interval is None:
        return f"- ({one.note})"
    return _interval(one.tpr, one.interval, 4)


def _interval(value: float, ends: tuple[float, float], digits: int) -> str:
    return f"{value:.{digits}f} [{ends[0]:.{digits}f}, {ends[1]:.{digits}f}]"


def _finite(value: Any) -> Any:
    """The same with None for NaN and infinity, which JSON has not."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    return value
