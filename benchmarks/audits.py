"""How often is an audit wrong about a mechanism that keeps its promise, and how much does it show?

Repeats audits of correct mechanisms with other seeds. Counted are claims that were called refuted
(stated: one in a thousand) and lower bounds above the true epsilon (stated: alpha, one in twenty),
both with Clopper-Pearson intervals, beside the least and the median lower bound. ``noise alone``
takes a million draws from the defence `gaussian` itself: each number of one upload is a trial, in
which a client sends one of two opposite values at the bound. The other audits are `fedre-audit`'s.
An audit of records has a bound from all guesses, and bounds that allow records to depend on each
other: for the claimed mechanism with other noise, and for any mechanism. Each has a row. ``one
training`` has as many canary clients as a federation could have clients, and a row for the bound
from scores. ``one record in a crowd`` is a training for each trial, 100 of them. Finished
repetitions are kept in ``audits.csv`` and not repeated.

Usage: python benchmarks/audits.py [--repetitions 200] [--only MECHANISM] [--out DIR]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

import pandas as pd
import tools
import torch

from fedre_privacy.auditing.claims import REFUTED, Audit, claim_of
from fedre_privacy.auditing.crowd import audit_crowd
from fedre_privacy.auditing.mechanism import audit_mechanism
from fedre_privacy.auditing.recorded_run import AuditPlan, audit_claim, plan_audit
from fedre_privacy.auditing.step_audit import audit_steps
from fedre_privacy.core import files
from fedre_privacy.core.artifacts import Artifact, EntangledRep, ModelState
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.gdp import gdp_epsilon
from fedre_privacy.core.rng import stream
from fedre_privacy.defenses.base import FederationFacts, Sending
from fedre_privacy.defenses.dp_mf import DPMF
from fedre_privacy.defenses.dp_sgd import DPSGD
from fedre_privacy.defenses.gaussian import Gaussian
from fedre_privacy.defenses.laplace import Laplace
from fedre_privacy.eval.lower_bounds import (
    ALPHA,
    FLAG,
    accuracy_p,
    mu_of_accuracy,
    share_interval,
)
from fedre_privacy.runs.resolution import resolve_training

DRAWS = 1_000_000
DELTA = 1e-5
Row = dict[str, object]


def federation(
    kind: type[Artifact], rounds: int, samples: int = 100, batch: int = 20
) -> FederationFacts:
    """Two clients of so many samples each, which pass over them once a round."""
    return FederationFacts(
        protocol="fedre", kinds=(kind,), class_counts=((samples // 2, samples // 2),) * 2,
        rounds=rounds, participations=(rounds,) * 2, batch_size=batch, training_only=True,
    )  # fmt: skip


def noise_alone(noise: float, seed: int, draws: int = DRAWS) -> Row:
    """One upload of many numbers: right guesses of one of two opposite values in each of them."""
    facts = federation(EntangledRep, 1)
    sending = Sending("fedre", 0, 1, 1, facts.kinds, facts.class_counts[0], seed=seed)
    silent = EntangledRep(torch.zeros(draws), torch.tensor([0.5, 0.5]))
    sent = Gaussian(clip=1.0, noise=noise).defend(silent, sending, stream(seed, "noise"))
    assert isinstance(sent, EntangledRep)
    heads = torch.rand(draws, generator=stream(seed, "coins")) < 0.5
    value = torch.where(heads, 1.0, -1.0)
    right = int(((value + sent.rep > 0) == heads).sum())
    promised = gdp_epsilon(1 / noise, DELTA)
    claim = claim_of([Gaussian(clip=1.0, noise=noise)], facts, [(1,), (1,)])
    return {
        "shown": gdp_epsilon(mu_of_accuracy(right, draws, ALPHA), DELTA),
        "promised": promised,
        "refuted": accuracy_p(right, draws, claim.curve.cap) < FLAG,
    }


def _row(found: Audit) -> Row:
    return {
        "shown": found.shown,
        "promised": found.claim.epsilon,
        "refuted": found.verdict == REFUTED,
    }


def of_uploads(defense: Gaussian | Laplace, rounds: int, seed: int) -> Row:
    """An audit of a client's claim, 100 trials."""
    facts = federation(EntangledRep, rounds)
    claim = claim_of([defense], facts, [tuple(range(1, rounds + 1))] * 2)
    form = EntangledRep(torch.zeros(64), torch.tensor([0.5, 0.5]))
    return _row(audit_mechanism([defense], facts, claim, [form], trials=100, seed=seed))


STEPS = {
    "dp-sgd, five rounds": (DPSGD(clip=1.0, noise=1.0), 5, 100, 20),
    "dp-sgd, full batches": (DPSGD(clip=1.0, noise=2.0), 4, 100, 100),
    "dp-sgd, 1,000 records, 200 steps": (DPSGD(clip=1.0, noise=1.195), 20, 1000, 100),
    "dp-mf, five rounds": (DPMF(clip=1.0, noise=2.5, bands=4), 5, 100, 20),
}
"""Defence, rounds, records and batch size."""
BOUNDS = {"": None, "; records may depend": 0, "; any mechanism": 1}
"""Which bound a row is of: that from all guesses, or one beside it."""


@cache
def steps_audit(name: str, seed: int) -> Audit:
    """An audit of a record's claim, as many canary records as a client has samples."""
    defense, rounds, samples, batch = STEPS[name]
    facts = federation(ModelState, rounds, samples, batch)
    claim = claim_of([defense], facts, [tuple(range(1, rounds + 1))] * 2)
    return audit_steps([defense], facts, claim, trials=samples, seed=seed)


def of_steps(name: str, bound: int | None, seed: int) -> Row:
    """The row of an audit's bound."""
    found = steps_audit(name, seed)
    row = _row(found)
    return row if bound is None else {**row, "shown": found.beside[bound].epsilon}


@cache
def clients_audit(clients: int, seed: int) -> Audit:
    """An audit of a client's claim by the clients of one training of one round."""
    facts = federation(EntangledRep, 1)
    defense = Gaussian(clip=1.0, epsilon=8.0).settled(facts)
    claim = claim_of([defense], facts, [(1,)] * 2)
    form = EntangledRep(torch.zeros(64), torch.tensor([0.5, 0.5]))
    return audit_mechanism([defense], facts, claim, [form], trials=clients, seed=seed)


def of_clients(clients: int, scores: bool, seed: int) -> Row:
    """The row of an audit's bound, from guesses or from scores."""
    found = clients_audit(clients, seed)
    row = _row(found)
    return {**row, "shown": found.beside[0].epsilon} if scores else row


def of_crowd(seed: int) -> Row:
    """An audit of a record's claim by one record in a crowd."""
    facts = federation(ModelState, 1, 100, 100)
    defense = DPSGD(clip=1.0, noise=1.0)
    claim = claim_of([defense], facts, [(1,)] * 2)
    return _row(audit_crowd([defense], facts, claim, trials=100, seed=seed))


@cache
def of_digits() -> AuditPlan:
    """The plan of FedGH on digits with private training and noise on uploads for one record."""
    problems: list[str] = []
    defense = ["dp-sgd:noise=2,clip=1", "gaussian:unit=record,clip=1,noise=2"]
    values = {
        "protocol": {"name": "fedgh"}, "data": {"name": "digits"}, "train": {"rounds": 4},
        "defense": defense,
    }  # fmt: skip
    settings = resolve_training(values, {}, problems)
    if settings is None:
        raise ConfigError(*problems)
    return plan_audit(settings)


def of_steps_and_uploads(seed: int) -> Row:
    """An audit of a record's claim on training and uploads together, 100 canary records."""
    return _row(audit_claim(of_digits(), (), trials=100, seed=seed))


CASES: dict[str, Callable[[int], Row]] = {
    "noise alone, z 1": lambda seed: noise_alone(1.0, seed),
    "noise alone, z 0.6": lambda seed: noise_alone(0.6, seed),
    "gaussian, one round": lambda seed: of_uploads(Gaussian(clip=1.0, noise=2.0), 1, seed),
    "gaussian, three rounds": lambda seed: of_uploads(Gaussian(clip=1.0, noise=2.0), 3, seed),
    "laplace, one round": lambda seed: of_uploads(Laplace(clip=1.0, epsilon=2.0), 1, seed),
    **{
        f"{name}{which}": partial(of_steps, name, bound)
        for name in STEPS
        for which, bound in BOUNDS.items()
    },
    "dp-sgd and noise for one record, four rounds": of_steps_and_uploads,
    "dp-sgd, one record in a crowd": of_crowd,
    **{
        f"one training, {clients} clients: {'scores' if scores else 'guesses'}": partial(
            of_clients, clients, scores
        )
        for clients in (50, 100, 300, 1000)
        for scores in (False, True)
    },
}


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """One row for each mechanism."""
    found = []
    for case, own in rows.groupby("case", sort=False):
        above = int((own["shown"] > own["promised"]).sum())
        low, high = share_interval(above, len(own))
        share = own["shown"] / own["promised"]
        found.append(
            {
                "mechanism": case,
                "n": len(own),
                "refuted": int(own["refuted"].sum()),
                "above the truth": f"{above / len(own):.1%} [{low:.1%}, {high:.1%}]",
                "least shown": f"{share.min():.3f}",
                "median shown": f"{share.median():.3f}",
                "true epsilon": f"{own['promised'].iloc[0]:.2f}",
            }
        )
    return pd.DataFrame(found)


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = tools.options(__doc__)
    made.add_argument("--repetitions", type=int, default=200, help="of each audit")
    made.add_argument("--only", choices=list(CASES), help="one mechanism (default: all)")
    made.add_argument("--out", type=Path, default=Path("runs/benchmarks/audits"))
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is not done yet, write ``audits.csv`` and print the table."""
    options = parser().parse_args(arguments)
    path = options.out / "audits.csv"
    rows = pd.read_csv(path).to_dict("records") if path.is_file() else []
    done = {(row["case"], row["seed"]) for row in rows}
    options.out.mkdir(parents=True, exist_ok=True)
    for case, audit in CASES.items():
        if options.only not in (None, case):
            continue
        for seed in range(options.repetitions):
            if (case, seed) not in done:
                rows.append({"case": case, "seed": seed, **audit(seed)})
            if (seed + 1) % 20 == 0 or seed + 1 == options.repetitions:
                files.write_frame(path, pd.DataFrame(rows))
    print(summary(pd.DataFrame(rows)).to_string(index=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
