"""How well do mixtures over rounds give the prototypes back, when they drift?

Without runs: synthetic prototypes of unit spread per dimension walk from round to round; the
centred cosine of the last round's is printed for least squares, a random walk with the true
variances, and one whose variances were found by likelihood, beside the figures expected.

With recorded FedRE runs (record.keep_every=1): every solver on the last round's prototypes, against
the rounds observed (1, 2 and 3 times a client's number of classes, and all) and by the number of
images behind a prototype, with the drift of the true prototypes; means over prototypes.

    python benchmarks/disentangle.py [--repeats 3]
    python benchmarks/disentangle.py RUN [RUN ...] --out rows.csv
    python benchmarks/disentangle.py --rows rows.csv [more.csv ...]

Solvers and their settings were chosen on runs of seeds 0 and 1 (`CHOSEN_SEEDS`) on the first 200
training images of each class and on test images. What is left of a file is written by

    python benchmarks/disentangle.py --unseen FILE.npz NEW.npz

and runs of NEW.npz with other seeds are report only: their tables are printed apart.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import tools
import torch
from experiments import attacking
from torch import Tensor

from fedre_privacy.attacks.disentangle import Disentangle
from fedre_privacy.attacks.mixtures.alignment_checks import head_of
from fedre_privacy.attacks.mixtures.aux_features import aux_reps, class_means
from fedre_privacy.attacks.mixtures.linear_solver import least_squares
from fedre_privacy.attacks.mixtures.mixing import Kind, Mixing, mixings
from fedre_privacy.attacks.mixtures.random_walk import random_walk
from fedre_privacy.attacks.mixtures.round_alignment import RoundAlignment, align, images_of
from fedre_privacy.core.artifacts import Prototypes
from fedre_privacy.core.files import tensor_sha256
from fedre_privacy.core.rng import stream
from fedre_privacy.data.base import ImageData, keep_per_class
from fedre_privacy.data.npz import Npz
from fedre_privacy.experiments.attack import prepare_attack
from fedre_privacy.experiments.questions.prototypes import PrototypeTrial
from fedre_privacy.protocols.blocks.local import represent
from fedre_privacy.protocols.blocks.prototypes import class_means as true_means
from fedre_privacy.protocols.blocks.state import Samples
from fedre_privacy.runs.run import Run


@dataclass(frozen=True)
class Row:
    """A setting, in units of the prototypes' spread, and the figures expected of it."""

    classes: int
    rounds: int
    drift: float = 0.0
    common: float = 0.0
    noise: float = 0.0
    fixed: bool = False
    least_squares: float = 1.0
    kalman: float = 1.0


ROWS = (
    Row(2, 2),
    Row(2, 100, 0.1, least_squares=0.92, kalman=0.996),
    Row(10, 10),
    Row(10, 100, noise=0.05, least_squares=0.996, kalman=0.996),
    Row(10, 100, 0.03, least_squares=0.984, kalman=0.996),
    Row(10, 100, 0.1, least_squares=0.90, kalman=0.977),
    Row(10, 100, 0.03, 0.1, least_squares=0.84, kalman=0.98),
    Row(20, 100, 0.1, least_squares=0.87, kalman=0.954),
    Row(20, 10, least_squares=0.65, kalman=0.68),
    Row(6, 20, 0.03, least_squares=0.995, kalman=0.998),
    Row(50, 100, 0.03, least_squares=0.95, kalman=0.982),
    Row(50, 100, 0.1, least_squares=0.76, kalman=0.893),
    Row(50, 100, 0.03, 0.03, least_squares=0.62, kalman=0.939),
    Row(94, 100),
    Row(94, 100, 0.03, least_squares=0.64, kalman=0.929),
    Row(94, 100, 0.1, least_squares=0.34, kalman=0.775),
    Row(10, 100, fixed=True, least_squares=0.07, kalman=0.0),
)


def synthetic(row: Row, seed: int, dims: int = 512) -> tuple[Tensor, Tensor, Tensor]:
    """Weights (T, n), uploads (T, d) and the last round's prototypes (n, d), float64."""
    rng = stream(seed, "synthetic mixtures", index=row.classes)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng, dtype=torch.float64)

    weights = torch.rand(row.rounds, row.classes, generator=rng, dtype=torch.float64)
    if row.fixed:
        weights = weights[:1].repeat(row.rounds, 1)
    weights = weights / weights.sum(1, keepdim=True)
    prototypes = normal(row.classes, dims)
    uploads = torch.empty(row.rounds, dims, dtype=torch.float64)
    for t in range(row.rounds):
        if t:
            moved = row.drift * normal(row.classes, dims) + row.common * normal(1, dims)
            prototypes = prototypes + moved
        uploads[t] = weights[t] @ prototypes + row.noise * normal(dims)
    return weights, uploads, prototypes


def centred_cosine(vectors: Tensor, truth: Tensor) -> float:
    """Mean over classes, each set centred at its own mean."""
    found, wanted = vectors - vectors.mean(0), truth - truth.mean(0)
    return float(torch.cosine_similarity(found, wanted, dim=1).mean())


def measure(row: Row, seed: int) -> tuple[float, float, float]:
    """Centred cosine of least squares, the walk with true variances, and the likeliest walk."""
    weights, uploads, truth = synthetic(row, seed)
    rounds = torch.arange(row.rounds)
    known = random_walk(
        weights, uploads, rounds, drifts=(row.drift,), common=(row.common,), noises=(row.noise,)
    )
    found = random_walk(weights, uploads, rounds)
    answers = (least_squares(weights, uploads), known, found)
    one, two, three = (centred_cosine(answer.vectors, truth) for answer in answers)
    return one, two, three


CHOSEN_SEEDS = (0, 1)
"""Seeds of the runs on which solvers and their settings were chosen."""
CHOSEN_IMAGES = 200
"""First training images of each class that those runs held, beside test images."""
LEFT_OUT = "left_out"
"""Key of the digests of the images that `write_unseen` left out."""
REPORT_ONLY = "report only: no setting was chosen on these images or seeds"
NEW_SEEDS = "seeds on which no setting was chosen, on images of runs on which some were"
CHOSEN_ON = "settings were chosen on these runs"


def digests(images: Tensor) -> npt.NDArray[np.str_]:
    """SHA-256 (hex) of each of the images (N, C, H, W), uint8."""
    return np.array([tensor_sha256(image) for image in images])


def write_unseen(source: Path, to: Path) -> ImageData:
    """Write the images of an .npz file on which no setting was chosen, and digests of the rest."""
    whole = Npz(path=str(source)).load()
    chosen = keep_per_class(whole, CHOSEN_IMAGES)
    left_out = np.concatenate(
        [digests(chosen.images[: chosen.num_train]), digests(whole.images[whole.num_train :])]
    )
    train = digests(whole.images[: whole.num_train])
    new = torch.from_numpy(~np.isin(train, left_out)).nonzero().squeeze(1)
    if not len(new):
        raise ValueError(f"{source} has no class of more than {CHOSEN_IMAGES} training images")
    images = whole.images[new].permute(0, 2, 3, 1).numpy()
    labels = whole.labels[new].numpy()
    np.savez(
        to, x_train=images, y_train=labels, classes=np.array(whole.classes), **{LEFT_OUT: left_out}
    )
    return Npz(path=str(to)).load()


def kind_of(run: Run) -> str:
    """Whether settings were chosen on this run, by its seed and its images."""
    if run.settings.train.seed in CHOSEN_SEEDS:
        return CHOSEN_ON
    data = run.settings.data
    if isinstance(data, Npz) and data.path is not None:
        with np.load(data.path, allow_pickle=False) as found:
            if LEFT_OUT in found.files:
                seen = np.isin(digests(data.load().images), found[LEFT_OUT])
                return NEW_SEEDS if seen.any() else REPORT_ONLY
    return NEW_SEEDS


MULTIPLES = (1, 2, 3)
WHOLE = "all"
KEPT = Disentangle()
BARE = Disentangle(head_prior=False)
SOLVERS: dict[str, tuple[Disentangle, str, str]] = {
    "least squares": (BARE, "least-squares", "common"),
    "ridge": (BARE, "ridge", "common"),
    "non-negative": (BARE, "non-negative", "common"),
    "kalman": (BARE, "kalman", "common"),
    "kalman + head": (KEPT, "kalman", "common"),
    "aligned": (KEPT, "aligned", "common"),
    "ridge, class means": (BARE, "ridge", "class-mean"),
    "kalman, class means": (BARE, "kalman", "class-mean"),
    "aligned, class means": (KEPT, "aligned", "class-mean"),
}
FLOORS = {"upload": "last upload", "public": "public class mean"}
SCORES = ("centred_cosine", "relative_error", "identified")


def answers(trial: PrototypeTrial) -> Iterator[tuple[str, str, int, Tensor, Tensor]]:
    """Solver, rounds asked for, client, classes and answers of each client with two classes."""
    seen = trial.observation
    for mixing in mixings(seen):
        if mixing.kind is not Kind.MIXED:
            continue
        length, rounds = mixing.uploads.shape[1], mixing.rounds.tolist()
        device = torch.device("cpu")
        reps = aux_reps(seen, device, mixing.client, rounds, length=length, limit=500)
        whole = align([images_of(r) for r in reps], mixing.uploads)
        asked = {f"{k} n": min(k * len(mixing.classes), len(rounds)) for k in MULTIPLES}
        for name, count in {**asked, WHOLE: len(rounds)}.items():
            latest = mixing.take(torch.arange(len(rounds) - count, len(rounds)))
            carried = RoundAlignment(whole.uploads[-count:], whole.errors[-count:, -count:])
            if seen.aux_labels is None:
                raise ValueError("the auxiliary images have no labels")
            means = class_means(reps[-1], seen.aux_labels[:500], latest.classes)
            for solver, vectors in solved(latest, carried, means, head_of(seen)).items():
                yield solver, name, mixing.client, latest.classes, vectors


def solved(
    mixing: Mixing, carried: RoundAlignment, means: Tensor, head: Tensor | None
) -> dict[str, Tensor]:
    """What every solver answers, (n, d) each."""
    return {
        name: attack.solve(
            solver,
            mixing,
            alignment=carried if solver == "aligned" else None,
            means=means if prior == "class-mean" else None,
            head=head,
        )[0].vectors
        for name, (attack, solver, prior) in SOLVERS.items()
    }


def scores_of(run: Run) -> pd.DataFrame:
    """Scores of every solver and floor, one row per prototype and number of rounds."""
    trial = prepare_attack(run, attacking({"attack": "disentangle", "threat": "strong"}))
    if not isinstance(trial, PrototypeTrial):
        raise TypeError("the trial is not about prototypes")
    found: dict[tuple[str, str], list[tuple[int, Tensor, Tensor]]] = {}
    for solver, rounds, client, classes, vectors in answers(trial):
        found.setdefault((solver, rounds), []).append((client, classes, vectors))
    tables, truth = [], trial.truth

    def score(solver: str, rounds: str, vectors: Tensor, clients: Tensor, labels: Tensor) -> None:
        scored = truth.compare(vectors.double(), clients, labels)
        columns = ("clients", "labels", "counts", *SCORES)
        table = pd.DataFrame({name: getattr(scored, name).numpy() for name in columns})
        tables.append(table.assign(solver=solver, rounds=rounds))

    for name, title in FLOORS.items():
        for rounds in (*(f"{k} n" for k in MULTIPLES), WHOLE):
            score(title, rounds, truth.floors[name], truth.clients, truth.labels)
    for (solver, rounds), parts in found.items():
        clients = torch.cat([torch.full((len(c),), client) for client, c, _ in parts])
        labels = torch.cat([classes for _, classes, _ in parts])
        score(solver, rounds, torch.cat([v for _, _, v in parts]), clients, labels)
    table = pd.concat(tables)
    table = table[table["clients"].map(table.groupby("clients")["labels"].nunique()) > 1]
    table = with_given_up(table.reset_index(drop=True))
    moved = drifts(run, trial)
    table["drift"] = table["clients"].map({c: float(d.median()) for c, d in moved.items()})
    table["drift_max"] = table["clients"].map({c: float(d.max()) for c, d in moved.items()})
    return table.assign(run=run.name, seed=run.settings.train.seed, kind=kind_of(run))


def with_given_up(table: pd.DataFrame) -> pd.DataFrame:
    """Score prototypes without an answer as the worst floor and as not identified."""
    floors = table[table["solver"].isin(FLOORS.values())].groupby(["clients", "labels"])
    least, most = floors["centred_cosine"].min(), floors["relative_error"].max()
    lost = table["relative_error"].isna()
    whose = pd.MultiIndex.from_frame(table.loc[lost, ["clients", "labels"]])
    table.loc[lost, "centred_cosine"] = least.reindex(whose).to_numpy()
    table.loc[lost, "relative_error"] = most.reindex(whose).to_numpy()
    table.loc[lost, "identified"] = 0.0
    return table


def drift(prototypes: Tensor) -> Tensor:
    """How far a client's prototypes move apart from each other, round by round.

    drift_t = mean_c ||p_(c,t) - p_(c,t-1) - common_t|| / mean_c ||p_(c,t) - mean p_t||, with
    common_t the mean movement over classes: the number that decides whether uploads of past
    rounds say anything about the prototypes of today.

    Args:
        prototypes: (T, n, d), the same classes in each round.

    Returns:
        (T - 1,) float64; NaN for a client of one class.
    """
    prototypes = prototypes.double()
    moved = prototypes.diff(dim=0)
    own: Tensor = (moved - moved.mean(1, keepdim=True)).norm(dim=2).mean(1)
    spread: Tensor = (prototypes - prototypes.mean(1, keepdim=True)).norm(dim=2).mean(1)[1:]
    if prototypes.shape[1] < 2:
        return torch.full_like(own, torch.nan)
    return own / spread


def drifts(run: Run, trial: PrototypeTrial) -> dict[int, Tensor]:
    """Drift of the true prototypes between rounds, in units of their spread, by client."""
    train, _ = run.split_indices()
    data, out = run.settings.data.load(), {}
    for client in trial.truth.clients.unique().tolist():
        own = Samples(data.images[train[client]], data.labels[train[client]])
        rounds = []
        for round in run.kept_rounds():
            reps = represent(run.model(client, round).extractor, own)
            made = true_means(reps, own.labels, data.num_classes).artifact
            if isinstance(made, Prototypes):
                rounds.append(made.means)
        out[client] = drift(torch.stack(rounds))
    return out


def report(rows: pd.DataFrame) -> None:
    """Print the tables of recorded runs, those on which settings were chosen apart."""
    for kind, own in rows.groupby("kind"):
        print(f"\n{kind}")
        report_kind(own)


def report_kind(rows: pd.DataFrame) -> None:
    """Print the tables of runs of one kind."""
    seeds = ", ".join(map(str, sorted(rows["seed"].unique())))
    per_client = rows.drop_duplicates(["run", "clients"])
    print(
        f"{rows['run'].nunique()} runs (seeds {seeds}), {len(per_client)} clients with two classes "
        f"or more; drift per round, median over rounds: {per_client['drift'].min():.2f} to "
        f"{per_client['drift'].max():.2f}, largest {per_client['drift_max'].max():.2f}"
    )
    groups = {"all": (1, 10**9), "1": (1, 1), "2-30": (2, 30), "> 30": (31, 10**9)}
    order = [*FLOORS.values(), *SOLVERS]
    asked = [*(f"{k} n" for k in MULTIPLES), WHOLE]
    for name, (low, high) in groups.items():
        part = rows[rows["counts"].between(low, high)]
        count = len(part.drop_duplicates(["run", "clients", "labels"]))
        print(f"\nimages behind a prototype: {name}, n = {count}")
        print("centred cosine / relative error / identification")
        print(f"{'':22}" + "".join(f"{f'{a} rounds':>22}" for a in asked))
        means = part.groupby(["solver", "rounds"])[list(SCORES)].mean()
        for solver in (s for s in order if s in set(part["solver"])):
            cells = [means.loc[(solver, a)] for a in asked]
            shown = [f"{c.iloc[0]:.3f} / {c.iloc[1]:.3f} / {c.iloc[2]:.2f}" for c in cells]
            print(f"{solver:22}" + "".join(f"{text:>22}" for text in shown))


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = tools.options(__doc__)
    options.add_argument("runs", nargs="*", type=Path, metavar="RUN")
    options.add_argument("--out", type=Path, help="where to write the scores of the runs")
    options.add_argument("--rows", nargs="+", type=Path, help="scores written before")
    options.add_argument("--repeats", type=int, default=3, help="of each synthetic setting")
    options.add_argument("--first", type=int, default=None, help="synthetic settings; none: all")
    options.add_argument(
        "--unseen", nargs=2, type=Path, metavar=("FILE", "NEW"), help="write unseen images of FILE"
    )
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table of synthetic walks, or those of recorded runs."""
    given = parser().parse_args(arguments)
    if given.unseen:
        print(write_unseen(*given.unseen))
        return
    if given.runs or given.rows:
        tables = [scores_of(Run(folder)) for folder in given.runs]
        tables += [pd.read_csv(path) for path in given.rows or ()]
        rows = pd.concat(tables)
        if given.out:
            rows.to_csv(given.out, index=False, float_format="%.5g")
        report(rows)
        return
    synthetic_table(given.repeats, ROWS[: given.first])


def synthetic_table(repeats: int, settings: Sequence[Row]) -> None:
    """Print the table of synthetic walks."""
    print(f"means of {repeats} draws; n classes, T rounds")
    print(
        f"{'n':>3}{'T':>5}{'drift':>7}{'common':>8}{'noise':>7}{'':>7}"
        f"{'LS':>8}{'expected':>9}{'walk':>8}{'expected':>9}{'likeliest':>10}{'s':>6}"
    )
    for row in settings:
        started = time.perf_counter()
        found = torch.tensor([measure(row, seed) for seed in range(repeats)]).mean(0).tolist()
        print(
            f"{row.classes:>3}{row.rounds:>5}{row.drift:>7}{row.common:>8}{row.noise:>7}"
            f"{'fixed' if row.fixed else '':>7}{found[0]:>8.3f}{row.least_squares:>9}"
            f"{found[1]:>8.3f}{row.kalman:>9}{found[2]:>10.3f}"
            f"{time.perf_counter() - started:>6.1f}"
        )


if __name__ == "__main__":
    main()
