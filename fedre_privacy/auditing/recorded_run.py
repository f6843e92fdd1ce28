"""The audit of a recorded run's defences, and what is kept of it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedre_privacy.core.artifact_schema import Role
from fedre_privacy.core.artifacts import Artifact
from fedre_privacy.core.channels import NOTHING, ClippingStep
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.manifest import cover
from fedre_privacy.core.rng import derive
from fedre_privacy.core.types import Emission
from fedre_privacy.defenses.base import CLIENT, RECORD, Defense, FederationFacts
from fedre_privacy.defenses.statement import state
from fedre_privacy.eval.lower_bounds import ALPHA
from fedre_privacy.eval.report.audit import audit_chart
from fedre_privacy.eval.report.style import save_figure
from fedre_privacy.federation.steps import client_upload, first_upload
from fedre_privacy.models.split import SplitModel
from fedre_privacy.protocols.base import Protocol
from fedre_privacy.protocols.blocks.state import Client, Samples, Setting, Task
from fedre_privacy.runs.preparation import facts_of, possible_participants, prepare
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.settings import TrainSettings

from .claims import REFUTED, TOO_LONG, Audit, PrivacyClaim, balanced_signs, check_audit, claim_of
from .crowd import audit_crowd, private_training
from .local_steps import audit_inside, coins_of
from .mechanism import audit_mechanism
from .noise_on_sums import MOST_PAIRS, noise_on_sums, pairs_of_coordinates, ratios_of_sums
from .one_training import one_training
from .step_audit import audit_steps


@dataclass(frozen=True)
class AuditPlan:
    """What an audit of a federation tests, known before anything is trained."""

    protocol: Protocol
    setting: Setting
    defenses: tuple[Defense, ...]
    facts: FederationFacts
    claim: PrivacyClaim | None

    def says(self) -> str:
        """The claim in words."""
        if self.claim is None:
            return "none: what is shown is what any claim would have to exceed"
        return f"{self.claim.says()} ({', '.join(d.name for d in self.defenses)})"


@dataclass(frozen=True)
class RunAudit:
    """What an audit of a run's defences found, and the folder that holds its record and figure."""

    folder: Path
    run: Run
    plan: AuditPlan
    found: Audit

    def lines(self) -> dict[str, str]:
        """Claim, game and attacker in words, and bounds that assume less."""
        beside = {"Beside": "; ".join(f">= {b.epsilon:.2f} ({b.how})" for b in self.found.beside)}
        lines = {
            "Claim": self.plan.says(),
            "Game": self.found.game,
            "Attacker": self.found.attacker,
            **(beside if self.found.beside else {}),
        }
        claim = self.found.claim
        if claim is not None and claim.unit == CLIENT:
            few = one_training(claim, self.plan.facts.clients, self.found.alpha)
            lines["One training"] = few.says()
        return lines

    def table(self) -> list[dict[str, str]]:
        """One row: right guesses beside what the claim allows, and the interval of epsilon."""
        found = self.found
        promised = {
            "p": f"{found.p:.2g}",
            "epsilon shown": f">= {found.shown:.2f} ({1 - found.alpha:.0%})",
            "epsilon promised": "-" if found.promised is None else f"<= {found.promised:.2f}",
            "could have shown": f"{found.ceiling:.2f}",
        }
        allowed = {"the claim allows": f"{found.cap:.1%}"} if found.cap is not None else {}
        return [{"right guesses": f"{found.right} of {found.trials}", **allowed, **promised}]

    def verdict(self) -> str:
        """What follows, in a sentence."""
        found = self.found
        if found.repeated:
            return (
                f"{REFUTED}: {found.repeated} draws of noise occur again in another round or for "
                "another client, so that rounds or clients can be compared to take it out"
            )
        if found.verdict == REFUTED:
            allowed = "" if found.cap is None else f" at most {found.cap:.1%} of them"
            return (
                f"{REFUTED}: {found.right} of {found.trials} guesses were right, and the claim "
                f"allows fewer{allowed} (p = {found.p:.1g}). Likely: the noise, the bound, the "
                "sensitivity, or the number of rounds or steps that are counted"
            )
        most = f"{found.trials} trials could have shown {found.ceiling:.2f} at most"
        if found.promised is None:
            return f"{found.verdict}: at least {found.shown:.2f} ({found.how}). {most}"
        if found.shown > found.promised:
            return (
                f"{found.verdict}: {found.shown:.2f} is shown ({found.how}), above the "
                f"{found.promised:.2f} that are promised. Audits of correct mechanisms come to "
                f"that in up to {found.alpha:.0%}, and the guesses do not refute it "
                f"(p = {found.p:.1g}). {most}"
            )
        weak = found.promised > found.ceiling
        return (
            f"{found.verdict}: between {found.shown:.2f}, shown ({found.how}), and "
            f"{found.promised:.2f}, promised. {most}"
            + (", which is less than is promised: nothing follows for the claim" if weak else "")
        )

    def record(self) -> dict[str, Any]:
        """Everything that was found, as it is written."""
        found, claim = self.found, self.found.claim
        kept = {f.name: getattr(found, f.name) for f in dataclasses.fields(found)}
        return {
            "status": "complete",
            **self.run.identity(),
            **self.lines(),
            **kept,
            "claim": None if claim is None else claim.record(),
            "beside": [dataclasses.asdict(bound) for bound in found.beside],
            "verdict": found.verdict,
            "because": self.verdict(),
        }


def plan_audit(
    settings: TrainSettings,
    unit: str | None = None,
    *,
    inside: bool = False,
    crowd: bool = False,
) -> AuditPlan:
    """Work out the claim that a federation's defences make, without training it.

    Args:
        unit: ``client`` or ``record``; None: for a client where there is one, else for a record.
        inside: for canaries inside the federation, which test a record's claim, or none.
        crowd: for one record of a crowd, which tests a record's claim.

    Raises:
        FedreError: what training would refuse.
        IncompatibleError: there is no such claim, or the federation has no coins for canaries.
    """
    if inside:
        coins_of(settings)
        if unit == CLIENT:
            raise IncompatibleError(
                "Canaries inside a federation are records; they cannot test a claim for a client.",
                next_step="Leave --level run out.",
            )
    if crowd and unit == CLIENT:
        raise IncompatibleError(
            "A record in a crowd cannot test a claim for a client.",
            next_step="Leave --level crowd out.",
        )
    prepared = prepare(settings, torch.device("cpu"))
    facts = facts_of(settings, prepared.setting)
    chosen = possible_participants(settings)
    sends = [[r for r, clients in chosen.items() if k in clients] for k in range(facts.clients)]
    claimed = any(g.unit == RECORD for g in state(prepared.defense, facts).guarantees)
    if inside and not claimed and unit is None:
        claim = None
    else:
        claim = claim_of(prepared.defense, facts, sends, RECORD if inside or crowd else unit)
    if crowd and claim is not None:
        private_training(prepared.defense, facts, claim)
    return AuditPlan(settings.protocol, prepared.setting, prepared.defense, facts, claim)


def audit_claim(
    plan: AuditPlan,
    sent: Sequence[Artifact],
    *,
    crowd: bool = False,
    trials: int = 1000,
    alpha: float = ALPHA,
    seed: int = 0,
) -> Audit:
    """Audit what the defences of a federation promise, without training it.

    Args:
        plan: with a claim.
        sent: the artifacts that a client sends in a round, whose form is taken; of no use where the
            claim is for a record.
        crowd: by one record of a crowd, absent or not, in place of records apart from each other.
    """
    claim = plan.claim
    assert claim is not None
    if crowd:
        return audit_crowd(plan.defenses, plan.facts, claim, trials=trials, alpha=alpha, seed=seed)
    if claim.unit == CLIENT:
        return audit_mechanism(
            plan.defenses, plan.facts, claim, sent, trials=trials, alpha=alpha, seed=seed
        )
    beside = None
    if sends_for_a_record(plan.defenses, plan.facts):
        beside = partial(
            upload_ratios, plan.protocol, plan.setting, plan.defenses, plan.facts, claim
        )
    return audit_steps(
        plan.defenses, plan.facts, claim, trials=trials, alpha=alpha, seed=seed, beside=beside
    )


def audit_run(
    run: Run,
    *,
    unit: str | None = None,
    inside: bool = False,
    crowd: bool = False,
    trials: int = 1000,
    alpha: float = ALPHA,
    seed: int = 0,
) -> RunAudit:
    """Audit what a run's defences promise; no federation is trained.

    Args:
        run: complete, of any protocol.
        unit: ``client`` or ``record``; None: for a client where there is one, else for a record.
        inside: by the canaries that the run was trained with, in place of crafted uploads.
        crowd: by one record of a crowd, which is absent from trainings of its own or not.
        trials: canary clients, canary records, or trainings with a crowd; those inside a run are
            counted there.
        alpha: chance that the lower bound is above the truth.

    Raises:
        ConfigError: too few trials, or alpha out of range.
        IncompatibleError: there is no such claim, or the run has no coins for canaries.
    """
    check_audit(trials, alpha)
    plan = plan_audit(run.settings, unit, inside=inside, crowd=crowd)
    claim = plan.claim
    if inside or claim is None:
        found = audit_inside(run, claim, alpha=alpha)
    else:
        sent = _sent_artifacts(run, claim.client, claim.rounds[-1]) if claim.unit == CLIENT else ()
        found = audit_claim(plan, sent, crowd=crowd, trials=trials, alpha=alpha, seed=seed)
    named = hashlib.sha256(json.dumps([trials, alpha, seed]).encode()).hexdigest()[:6]
    audit = RunAudit(run.folder / "audits" / f"{found.level}-{named}", run, plan, found)
    audit.folder.mkdir(parents=True, exist_ok=True)
    save_figure(
        audit_chart(
            found.shown,
            found.promised,
            found.ceiling,
            refuted=found.verdict == REFUTED,
            trials=found.trials,
            title=f"What an audit shows of {run.name}",
            caption=f"{audit.lines()['Game']}. Lower bound at {1 - alpha:.0%}, by {found.how}.",
        ),
        audit.folder / "epsilon",
    )
    cover(audit.folder, audit.record())
    return audit


def _sent_artifacts(run: Run, client: int, round: int) -> list[Artifact]:
    """The artifacts of a client in a round, and those that it sent before the first."""
    first = any(Role.ONCE in kind.roles for kind in run.settings.protocol.uploads)
    uploads, _ = run.messages().of([0, round] if first else [round])
    found = [a for upload in uploads if upload.client == client for a in upload.artifacts]
    if not found:
        raise IncompatibleError(
            f"Run {run.name} has no upload of client {client} in round {round}.",
            next_step="A client that never sends has nothing to audit; train more rounds.",
        )
    return found


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


def numbered_images(count: int) -> Tensor:
    """Images (count, 3, 1, 1) uint8 that hold their own number."""
    each = torch.arange(count)
    digits = torch.stack([each // 65536, each // 256 % 256, each % 256], dim=1)
    return digits.to(torch.uint8).reshape(count, 3, 1, 1)


def sends_for_a_record(defenses: Sequence[Defense], facts: FederationFacts) -> bool:
    """Whether noise for one record is added to something that the protocol sends."""
    return any(d.adds_noise and _covers(d, facts) for d in defenses)


def _covers(defense: Defense, facts: FederationFacts) -> tuple[type[Artifact], ...]:
    cost = defense.cost(facts)
    return cost.covers if cost is not None and cost.unit == RECORD else ()


def upload_ratios(
    protocol: Protocol,
    setting: Setting,
    defenses: Sequence[Defense],
    facts: FederationFacts,
    claim: PrivacyClaim,
    coins: Tensor,
    seed: int,
) -> Tensor:
    """Log-likelihood ratios of having been there, from noisy uploads of all rounds.

    Copies of the client's samples go through the protocol's own upload and the real defences, in
    every round: each sample is a canary whose representation has a coordinate of its own, five
    times as long as the bound, where it is there with one sign and, replaced, with the other; for
    noise on sums see `pairs_of_coordinates`. Signs
    change from round to round, half of them each way, so that noise which is the same in every
    round cancels.

    Args:
        setting: of the federation; its client of the claim is the one that is copied.
        defenses: as they acted, settings filled in, with one that `sends_for_a_record`.
        coins: (copies, n) bool, which samples of each copy of the client are there.

    Returns:
        (copies, n) float64, 0 where a sample entered nothing that is sent.
    """
    defenses = [d.unrepaired() for d in defenses]
    noisy = next(d for d in defenses if d.adds_noise and _covers(d, facts))
    channel = noisy.channel(facts) or NOTHING
    summed = noise_on_sums(channel)
    bound = next((s.norm for s in channel.each if isinstance(s, ClippingStep)), 1.0)
    counts = facts.class_counts[claim.client]
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    width = min(len(labels), MOST_COORDINATES)
    if summed is not None:
        width = min(2 * len(labels), MOST_PAIRS)
    drawn = _canaries if summed is None else pairs_of_coordinates
    found = torch.zeros(coins.shape, dtype=torch.float64)
    for copy, there in enumerate(coins):
        own = derive(seed, "audit uploads", index=copy)
        training = dataclasses.replace(setting.training, seed=own)
        copied = dataclasses.replace(setting, training=training)
        table = _Lookup()
        model = SplitModel(
            table, nn.Identity(), dim=width, num_classes=len(counts), normalise=nn.Identity()
        )
        client = Client(claim.client, model, Samples(numbered_images(len(labels)), labels), _NOBODY)
        protocol.start_client(client, copied)
        table.rows = drawn(there, width, TOO_LONG * bound)
        first_upload(protocol, client, copied, defenses)
        signs = balanced_signs(len(claim.rounds), own)
        for sign, round in zip(signs, claim.rounds, strict=True):
            table.rows = sign * drawn(there, width, TOO_LONG * bound)
            task = Task(copied, round, client.id)
            for emission in client_upload(protocol, client, (), task, defenses):
                if type(emission.artifact) not in _covers(noisy, facts):
                    continue
                if summed is not None:
                    found[copy] += ratios_of_sums(emission, summed, labels, bound, sign, width)
                else:
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
    emission: Emission,
    noisy: Defense,
    facts: FederationFacts,
    claim: PrivacyClaim,
    bound: float,
    width: int,
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
