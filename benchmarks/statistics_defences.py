"""What defences of class statistics stop, and what they cost.

    python benchmarks/statistics_defences.py --out defences.csv
    python benchmarks/statistics_defences.py --backbone cnn4 --data FILE.npz --out defences.csv

Representations are as for class_statistics.py: by default those of an untrained cnn4 on the
built-in digits. Four clients hold 200 of them (classes by a Dirichlet law of 1), send float32
statistics, and the server trains a head on them (`fedpft`) or solves for one (`fedcgs`, form
``moment``). Its accuracy is on the features that no client has. The first client's classes are
attacked by an attacker that knows the defence, and by one that does not. Found: representations to
1 % (of those bounded, where they are bounded), in up to 32 dimensions. Membership: mean area under
the curve over classes, against images that no client has. Rows are kept; ``--table FILE`` has sums
and means over seeds.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from class_statistics import WITHIN, backbone_options, loaded_features
from statistics_membership import OTHERS, area
from tools import RowsFile, options
from torch import Tensor, nn
from torch.nn import functional as F

from fedre_privacy.attacks.statistics.decomposition import take_apart
from fedre_privacy.attacks.statistics_membership import scores_by_statistics
from fedre_privacy.core.artifacts import ClassStatistics
from fedre_privacy.core.channels import NOTHING
from fedre_privacy.core.class_sums import ClassSums, statistics_of, sums_of
from fedre_privacy.core.rng import seeded_generators, stream
from fedre_privacy.core.types import Emission, Mixture
from fedre_privacy.defenses.apply import apply_defenses
from fedre_privacy.defenses.base import Defense, FederationFacts, Sending, defenses
from fedre_privacy.defenses.statement import state
from fedre_privacy.defenses.values import clip_rows
from fedre_privacy.protocols.blocks.class_statistics import REGULAR, drawn_from
from fedre_privacy.protocols.fedcgs import _discriminant

CLIENTS, HELD, MOST = 4, 200, 32
EPOCHS, BATCH, LR, MOMENTUM = 50, 128, 0.01, 0.9
"""Of the server's head training, as `fedpft` has it."""
KEY = ("backbone", "covariance", "defence", "seed")
FIELDS = (
    *KEY, "epsilon", "representations", "found_naive", "found", "certified", "certified_wrong",
    "auc_naive", "auc", "auc_floor", "classes", "sent", "accuracy",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A defence, or none, on statistics of a form."""

    form: str
    defence: str = "none"

    def made(self, bound: float) -> Defense | None:
        """The defence, its bound on lengths filled in."""
        name, _, given = self.defence.partition(":")
        if name == "none":
            return None
        values: dict[str, Any] = {}
        for setting in filter(None, given.split(",")):
            key, _, value = setting.partition("=")
            values[key] = value if key == "towards" else float(value)
        if name == "minimum-count":
            values["count"] = int(values["count"])
        if name == "statistics-noise":
            values |= {"clip": bound, "delta": 1e-3}
        return defenses.get(name)(**values)


def cases() -> Iterator[Case]:
    """All settings of the table."""
    for form in ("full", "diagonal", "moment"):
        yield Case(form)
    yield Case("full", "shrink-covariance:share=0.9,towards=identity")
    for share in (0.1, 0.5, 0.9, 1):
        yield Case("full", f"shrink-covariance:share={share},towards=diagonal")
    for count in (5, 10):
        yield Case("full", f"minimum-count:count={count}")
    yield Case("moment", "minimum-count:count=5")
    for noise in ("1e-6", "1e-5", "1e-4"):
        yield Case("full", f"statistics-noise:noise={noise}")
    for form in ("full", "moment"):
        yield Case(form, "statistics-noise:epsilon=8")
    for epsilon in (100, 8, 1):
        yield Case("diagonal", f"statistics-noise:epsilon={epsilon}")


def statistics(reps: Tensor, labels: Tensor, form: str) -> Emission:
    """What a client sends of representations (n, d), float32."""
    held, row = labels.unique(return_inverse=True)
    counts = torch.bincount(row)
    own, hot = reps.double(), F.one_hot(row).double()
    like = {
        "full": lambda: torch.stack([own[row == r].T @ own[row == r] for r in range(len(held))]),
        "diagonal": lambda: hot.T @ own.square(),
        "moment": lambda: own.T @ own,
    }[form]()
    shape = ClassStatistics(
        (hot.T @ own).float(), counts, held, {form: torch.zeros_like(like).float()}
    )
    sent = statistics_of(ClassSums(form, counts.double(), hot.T @ own, like), shape)
    if form == "full":
        sent.spread[form].diagonal(dim1=-2, dim2=-1).add_(REGULAR)
    mixture = Mixture(row, torch.arange(len(labels)), 1 / counts[row].float(), len(held))
    return Emission(sent, mixture)


def run(case: Case, features: Tensor, labels: Tensor, seed: int) -> dict[str, object]:
    """One row of the table."""
    rng = np.random.default_rng([seed, 52])
    order = torch.from_numpy(rng.permutation(len(features)))
    own, rest = order[:HELD], order[HELD:]
    shares = np.stack([rng.dirichlet(np.ones(CLIENTS)) for _ in range(int(labels.max()) + 1)])
    owner = torch.tensor([rng.choice(CLIENTS, p=shares[y]) for y in labels[own].tolist()])
    bound = float(features[rest].norm(dim=1).median())  # public images
    defense = case.made(bound)
    counts = tuple(
        tuple(torch.bincount(labels[own[owner == k]], minlength=len(shares)).tolist())
        for k in range(CLIENTS)
    )
    facts = FederationFacts(
        "fedpft", (ClassStatistics,), counts, (1,) * CLIENTS, rounds=1, trains=False,
        training_only=True,
    )  # fmt: skip
    told = NOTHING if defense is None else defense.channel(facts) or NOTHING
    sent: list[ClassStatistics] = []
    attacked = None
    for client in range(CLIENTS):
        mine = own[owner == client]
        reps = features[mine]
        if told.each:
            reps = clip_rows(reps, bound)
        made: Emission | None = statistics(reps, labels[mine], case.form)
        if defense is not None and made is not None:
            here = Sending(
                "fedpft", client, 1, 1, (ClassStatistics,), counts[client], mixture=made.mixture,
                seed=seed,
            )  # fmt: skip
            made = apply_defenses([defense], made, here, number=0)
        if made is not None and isinstance(made.artifact, ClassStatistics):
            sent.append(made.artifact)
            if client == 0:
                attacked = made.artifact
    mine = own[owner == 0]
    truth = clip_rows(features[mine], bound) if told.each else features[mine]
    found = {
        who: leaked(attacked, truth.double(), features, labels, mine, rest, steps, bound)
        for who, steps in (("naive", NOTHING), ("adaptive", told))
    }
    guarantees = state([defense], facts).guarantees if defense is not None else ()
    naive, adaptive = found["naive"], found["adaptive"]
    return {
        "covariance": case.form, "defence": case.defence, "seed": seed,
        "epsilon": f"{guarantees[0].epsilon:.3g}" if guarantees else "",
        **adaptive, "found_naive": naive["found"], "auc_naive": naive["auc"],
        "sent": sum(len(one.labels) for one in sent),
        "accuracy": round(accuracy(case.form, sent, features[rest], labels[rest], seed), 4),
    }  # fmt: skip


def leaked(
    sent: ClassStatistics | None, truth: Tensor, features: Tensor, labels: Tensor, mine: Tensor,
    rest: Tensor, told: Any, bound: float,
) -> dict[str, Any]:  # fmt: skip
    """What an attacker who was told a channel finds behind a client's statistics."""
    steps = told.statistics
    form = next(iter(sent.spread)) if sent is not None else ""
    hits = certified = wrong = 0
    answers = []
    if sent is not None:
        answers = take_apart(sent, 0, tries=20, most=MOST, steps=steps)
    for answer in answers:
        members = truth[labels[mine] == answer.label]
        certified += int(answer.certified.sum())
        if not len(answer.vectors):
            continue
        apart = (
            torch.cdist(members, torch.from_numpy(answer.vectors)) / members.norm(dim=1)[:, None]
        )
        hits += int((apart.amin(1) <= WITHIN).sum())
        wrong += int((apart.amin(0)[torch.from_numpy(answer.certified)] > WITHIN).sum())
    areas, floors = [], []
    for label in labels[mine].unique().tolist():
        inside = features[mine[labels[mine] == label]]
        others = features[rest[labels[rest] == label][: 2 * OTHERS]]
        candidates = torch.cat([inside, others[:OTHERS]])
        if told.each:
            candidates = clip_rows(candidates, bound)
        asked = torch.full((len(candidates),), label)
        outside = torch.ones(len(candidates))  # nothing is said of them
        if sent is not None:
            one = sent.take((sent.labels == label).nonzero().squeeze(1)) if form == "full" else sent
            outside = -scores_by_statistics(one, candidates.double(), asked, steps)[0]
        areas.append(area(outside, len(inside)))
        floors.append(area((candidates - others[OTHERS:].mean(0)).square().sum(1), len(inside)))
    return {
        "representations": len(truth), "found": hits, "certified": certified,
        "certified_wrong": wrong, "classes": len(areas), "auc": f"{np.mean(areas):.4f}",
        "auc_floor": f"{np.mean(floors):.4f}",
    }  # fmt: skip


def accuracy(
    form: str, sent: Sequence[ClassStatistics], features: Tensor, labels: Tensor, seed: int
) -> float:
    """Share of features that the server's head puts into the right class."""
    classes, dim = int(labels.max()) + 1, features.shape[1]
    if form == "moment":
        means, numbers = torch.zeros(classes, dim).double(), torch.zeros(classes).double()
        moment = torch.zeros(dim, dim).double()
        for one in sent:
            sums = sums_of(one)
            means.index_add_(0, one.labels, sums.sums)
            numbers.index_add_(0, one.labels, sums.counts)
            moment += sums.outer
        weight, bias = _discriminant(means, numbers, moment, 0.0)
        scores = features.double() @ weight.T + bias
        return float((scores.argmax(1) == labels).double().mean())
    rng = stream(seed, "server")
    drawn = [drawn_from(one, rng) for one in sent]
    reps, own = torch.cat([r for r, _ in drawn]), torch.cat([y for _, y in drawn])
    with seeded_generators(seed, "head"):
        head = nn.Linear(dim, classes)
    optimiser = torch.optim.SGD(head.parameters(), lr=LR, momentum=MOMENTUM)
    for _ in range(EPOCHS):
        for index in torch.randperm(len(own), generator=rng).split(BATCH):
            optimiser.zero_grad()
            F.cross_entropy(head(reps[index]), own[index]).backward()
            optimiser.step()
    with torch.no_grad():
        return float((head(features).argmax(1) == labels).double().mean())


def table(path: Path) -> pd.DataFrame:
    """Sums and means over seeds."""
    rows = pd.read_csv(path)
    found = []
    for (form, defence), own in rows.groupby(["covariance", "defence"], sort=False):
        found.append(
            {
                "covariance": form,
                "defence": defence,
                "epsilon": "-" if own["epsilon"].isna().all() else f"{own['epsilon'].iloc[0]:g}",
                "seeds": len(own),
                "n": own["representations"].sum(),
                "found, naive": own["found_naive"].sum(),
                "found": own["found"].sum(),
                "certified": own["certified"].sum(),
                "certified and wrong": own["certified_wrong"].sum(),
                "membership AUC, naive": f"{own['auc_naive'].mean():.3f}",
                "membership AUC": f"{own['auc'].mean():.3f}",
                "of the floor": f"{own['auc_floor'].mean():.3f}",
                "accuracy at the server (%)": f"{100 * own['accuracy'].mean():.1f}"
                + (f" +- {100 * own['accuracy'].std(ddof=1):.1f}" if len(own) > 1 else ""),
            }
        )
    return pd.DataFrame(found)


def parser() -> argparse.ArgumentParser:
    """Its options."""
    made = options(__doc__)
    backbone_options(made)
    made.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    made.add_argument("--only", default="", help="settings whose name holds this text")
    made.add_argument("--out", type=Path, required=True, help="CSV file; its rows are kept")
    made.add_argument("--table", type=Path, help="CSV file for the summary")
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Compute what the file lacks."""
    args = parser().parse_args(arguments)
    features, labels = loaded_features(args)
    file = RowsFile(args.out, FIELDS, KEY)
    done = file.done()
    for case in cases():
        for seed in args.seeds:
            key = (args.backbone, case.form, case.defence, str(seed))
            if key in done or args.only not in f"{case.form} {case.defence}":
                continue
            row = {"backbone": args.backbone} | run(case, features, labels, seed)
            file.add([row])
            print(
                f"{case.form}, {case.defence}, seed {seed}: found {row['found_naive']} and "
                f"{row['found']} of {row['representations']}, accuracy {row['accuracy']}",
                flush=True,
            )
    if args.table:
        table(args.out).to_csv(args.table, index=False)


if __name__ == "__main__":
    main()
