"""What noisy sums are divided by: a divisor that moves with the record is found."""

import dataclasses
import warnings

import opacus.optimizers
import pytest
import torch
from opacus import PrivacyEngine
from torch.utils.data import DataLoader, TensorDataset

from fedre_privacy.auditing.claims import CONSISTENT, REFUTED, claim_of
from fedre_privacy.auditing.crowd import audit_crowd
from fedre_privacy.auditing.step_audit import audit_steps
from fedre_privacy.core.artifacts import ModelState
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.defenses.base import FederationFacts
from fedre_privacy.defenses.dp_mf import DPMF
from fedre_privacy.defenses.dp_sgd import DPSGD
from fedre_privacy.defenses.gaussian import Gaussian

FULL, SAMPLED = {"batch_size": 100}, {"batch_size": 20}


def audited(defense=None, trials=200, seed=0, of=audit_crowd, rounds=1, **more):
    known = FederationFacts(
        protocol="fedavg", kinds=(ModelState,), class_counts=((50, 50),) * 2, rounds=rounds,
        participations=(rounds, rounds), training_only=True, epochs=1, **{**FULL, **more},
    )  # fmt: skip
    defense = defense or DPSGD(clip=0.05, noise=1.0)
    claim = claim_of([defense], known, [tuple(range(1, rounds + 1))] * 2, "record")
    return of([defense], known, claim, trials=trials, seed=seed)


@pytest.mark.parametrize(
    ("defense", "batches"),
    [(DPSGD, FULL), *(pytest.param(*case, marks=pytest.mark.slow)
                      for case in ((DPSGD, SAMPLED), (DPMF, SAMPLED)))],
)  # fmt: skip
def test_what_divides_by_a_fixed_number_is_consistent(defense, batches):
    found = audited(defense(clip=0.05, noise=1.0), **batches)
    assert found.verdict == CONSISTENT, (found.p, found.right)
    assert 0 < found.shown <= found.promised <= found.ceiling
    assert found.trials == 150 and "99 equal records and one opposite" in found.game


@pytest.mark.slow
def test_the_rule_that_is_learnt_is_as_good_as_the_claim_allows(verdict_alone):
    found = audited(trials=600)
    assert found.right / found.trials == pytest.approx(found.claim.curve.cap, abs=0.05)


class Counted(opacus.optimizers.DPOptimizer):
    """Divides by the number of records that are in a batch."""

    def pre_step(self, closure=None):
        self.expected_batch_size = max(1, len(self.params[0].grad_sample))
        return super().pre_step(closure)


@pytest.mark.parametrize(
    "more", [FULL, pytest.param({**SAMPLED, "rounds": 10}, marks=pytest.mark.slow)]
)
def test_a_divisor_that_counts_the_batch_is_found(more, monkeypatch, verdict_alone):
    monkeypatch.setattr(opacus.optimizers, "DPOptimizer", Counted)
    defense = DPSGD(clip=0.05, noise=1.0 if more == FULL else 1.5)
    found = audited(defense, trials=300, **more)
    assert found.verdict == REFUTED, (found.p, found.right, found.claim.curve.cap)
    # records that do not act on each other cannot show it
    assert audited(defense, trials=300, of=audit_steps, **more).verdict == CONSISTENT


@dataclasses.dataclass(frozen=True, kw_only=True)
class Engine(DPSGD):
    """Opacus's `PrivacyEngine` on the records that are there, as its pages tell to use it."""

    def fit(self, modules, loss, samples, *, epochs, batch_size, lr, rng, noise_rng, **more):
        (model,) = modules
        images, labels = samples.batch((~more["absent"]).nonzero().squeeze(1))
        loader = DataLoader(TensorDataset(images, labels), batch_size=batch_size, generator=rng)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            private, optimiser, batches = PrivacyEngine().make_private(
                module=model.train(), optimizer=torch.optim.SGD(model.parameters(), lr=lr),
                data_loader=loader, noise_multiplier=self.noise, max_grad_norm=self.clip,
                noise_generator=noise_rng,
            )  # fmt: skip
            for _ in range(epochs):
                for batch in batches:
                    optimiser.zero_grad()
                    (-private(batch[0]).mean()).backward()
                    optimiser.step()
        private.remove_hooks()
        return 0.0


@pytest.mark.parametrize("batches", [FULL, pytest.param(SAMPLED, marks=pytest.mark.slow)])
def test_what_the_privacy_engine_of_opacus_divides_by_is_found(batches, verdict_alone):
    """Issue 819: its expected batch size is a share of the records that are there."""
    found = audited(Engine(clip=0.05, noise=1.0), trials=400, **batches)
    assert found.verdict == REFUTED, (found.p, found.right, found.claim.curve.cap)


def test_the_same_seed_gives_the_same_audit(verdict_alone):
    assert audited(trials=60) == audited(trials=60)


def test_what_has_no_crowd_is_refused():
    with pytest.raises(IncompatibleError, match="no defence says that it trains"):
        known = FederationFacts(
            protocol="fedavg", kinds=(ModelState,), class_counts=((1, 0),), rounds=1,
            participations=(1,), training_only=True, **FULL,
        )  # fmt: skip
        claim = claim_of([DPSGD(clip=1.0, noise=1.0)], known, [(1,)], "record")
        audit_crowd([Gaussian(clip=1.0, noise=1.0)], known, claim)
    with pytest.raises(IncompatibleError, match="1 training samples, which is no crowd"):
        audit_crowd([DPSGD(clip=1.0, noise=1.0)], known, claim)
