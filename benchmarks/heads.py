"""How near do the prototypes come that `head` reads off heads in real federated training?

Trains federations, attacks the heads of the last round with each method of `head`, and prints one
row per setting and method beside public class means. Usage:

    python benchmarks/heads.py SETTING [SETTING ...] [--data FILE.npz] [--seeds 0,1,2] [--out DIR]

Settings: lg-digits, lg-cifar, fedral-digits, fedral-cifar (matrix blocks, `combined` alone),
fedavg-digits, fedavg-cifar, fedsgd-digits, fedsgd-cifar (10 clients, `pra:0.1`, 10 rounds, cnn4;
CIFAR needs FILE.npz with x_train and y_train). The method and its
constants were chosen on the images and seeds of `--part tuning`; the default, `--part report`,
holds neither.

Cosine and identification are those of `fedre-attack --target uploaded --attack head`. A method does
not answer for every prototype, so each is scored on its own answers and, to compare them, on the
prototypes that all methods answer; `over all` counts a prototype without an answer as cosine 0
and not identified.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from experiments import attacking
from gradients import TUNED_HEAD
from tools import options
from torch import Tensor

from fedre_privacy import api
from fedre_privacy.attacks.base import Context
from fedre_privacy.attacks.head import METHODS, HeadUpdate
from fedre_privacy.data.base import ImageData
from fedre_privacy.data.digits import Digits
from fedre_privacy.data.npz import Npz
from fedre_privacy.eval.prototype_scores import VectorScores
from fedre_privacy.experiments.attack import prepare_attack
from fedre_privacy.experiments.questions.prototypes import PrototypeTrial

PARTS = ("report", "tuning")
TUNED_DIGITS = 60
"""First images of each digit, the same."""
TUNED_SEEDS = 100
"""Seeds from here on served to choose `head`; those below it are for reports."""
PER_CLASS = 120
"""Images of each class that a federation on CIFAR shares out."""
SETTINGS = {
    "lg-digits": ("lg-fedavg", "digits"),
    "lg-cifar": ("lg-fedavg", "cifar"),
    "fedral-digits": ("fedral", "digits"),
    "fedral-cifar": ("fedral", "cifar"),
    "fedavg-digits": ("fedavg", "digits"),
    "fedavg-cifar": ("fedavg", "cifar"),
    "fedsgd-digits": ("fedsgd", "digits"),
    "fedsgd-cifar": ("fedsgd", "cifar"),
}
DEFAULT = "combined+public"
"""What `head` does where it holds extractors and public images, and all it does with blocks."""
MATRICES = ("combined", "combined+centre", DEFAULT)
Score = Callable[[Tensor], tuple[float, float, int]]


def ranks(labels: Tensor) -> Tensor:
    """How many images of its class come before each one, (N,)."""
    seen = torch.nn.functional.one_hot(labels.long()).cumsum(0)
    return seen.gather(1, labels.long()[:, None]).squeeze(1) - 1


def rows_of(part: str, kind: str, labels: Tensor) -> Tensor:
    """Rows of a data set (N,) that a part holds, ascending; the two parts share none.

    Raises:
        ValueError: no such part or data set.
    """
    if part not in PARTS or kind not in ("digits", "cifar"):
        raise ValueError(f"no part {part} of {kind}")
    if kind == "digits":
        tuned = ranks(labels) < TUNED_DIGITS
        return (tuned if part == "tuning" else ~tuned).nonzero().squeeze(1)
    if part == "tuning":
        return torch.arange(min(TUNED_HEAD, len(labels)))
    late = torch.arange(TUNED_HEAD, len(labels))
    return late[ranks(labels[late]) < PER_CLASS]


def check_seeds(part: str, seeds: Sequence[int]) -> None:
    """Refuse to report on a seed that the method was chosen on.

    Raises:
        ValueError: a seed of the other part.
    """
    wrong = [seed for seed in seeds if (seed >= TUNED_SEEDS) != (part == "tuning")]
    if wrong:
        raise ValueError(f"seeds {wrong} are not of part '{part}'")


def dataset(part: str, kind: str, file: str, out: Path) -> str:
    """Write the images of a part and name them as ``--dataset`` does."""
    data: ImageData = Digits().load() if kind == "digits" else Npz(path=file).load()
    labels = data.labels[: data.num_train]
    rows = rows_of(part, kind, labels)
    path = out / f"{kind}-{part}.npz"
    out.mkdir(parents=True, exist_ok=True)
    np.savez(path, x=data.images[rows].numpy(), y=labels[rows].numpy())
    return f"npz:{path}"


def game_of(run: api.Run) -> PrototypeTrial:
    """The prototypes' trial on the heads of a run's last round.

    Raises:
        TypeError: the question is another.
    """
    trial = prepare_attack(run, attacking({"attack": "head", "threat": "strong"}))
    if not isinstance(trial, PrototypeTrial):
        raise TypeError("the trial is not about prototypes")
    return trial


def line(name: str, scores: VectorScores, inside: Tensor, common: Tensor, said: str) -> str:
    """One printed row; `inside` and `common` (M,) say which prototypes count."""
    own = inside & scores.answered

    def mean(values: Tensor, rows: Tensor) -> float:
        return float(values[rows].mean()) if bool(rows.any()) else math.nan

    cosine, hit = scores.centred_cosine.nan_to_num(0.0), scores.identified.nan_to_num(0.0)
    return (
        f"  {name:<15} answers {int(own.sum()):>3} of {int(inside.sum()):>3}: "
        f"cosine {mean(cosine, own):6.3f}, identified {mean(hit, own):4.0%}, "
        f"error {mean(scores.relative_error, own):5.2f}; "
        f"common {int(common.sum()):>3}: {mean(cosine, common):6.3f}, {mean(hit, common):4.0%}; "
        f"over all {mean(cosine * own, inside):6.3f}, {mean(hit * own, inside):4.0%}{said}"
    )


def compare(trial: PrototypeTrial, seed: int, methods: Sequence[str]) -> dict[str, VectorScores]:
    """Scores of each method and of public class means; prints a row for each.

    A method is named as in `attack.method`, with ``+public`` for `attack.centre=public` and
    ``+centre`` for the same without leaning towards public means (`attack.conditional=false`).
    """
    found, said, truth = {}, {}, trial.truth
    for method in methods:
        started = time.process_time()
        name, _, centre = method.partition("+")
        attack = HeadUpdate(
            method=name,
            centre="public" if centre else "found",
            conditional=centre != "centre",
        )
        answer = attack(trial.observation, Context(seed))
        seconds = time.process_time() - started
        found[method] = truth.compare(answer.vectors, answer.clients, answer.labels)
        false = len(answer.labels) - int(found[method].answered.sum())
        said[method] = f"; {false} false classes, {seconds:.1f} s"
    found["public"] = truth.compare(truth.floors["public"], truth.clients, truth.labels)
    inside = found["public"].chance < 1
    common = inside.clone()
    for scores in found.values():
        common &= scores.answered
    for name, scores in found.items():
        print(line(name, scores, inside, common, said.get(name, "")), flush=True)
    return found


def joined(parts: Sequence[VectorScores]) -> VectorScores:
    """Scores of several runs as of one."""
    names = VectorScores.__dataclass_fields__
    return VectorScores(**{n: torch.cat([getattr(part, n) for part in parts]) for n in names})


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = options(__doc__)
    made.add_argument("settings", nargs="+", choices=SETTINGS)
    made.add_argument("--data", default="", help="CIFAR-10 as .npz")
    made.add_argument("--part", default="report", choices=PARTS)
    made.add_argument("--seeds", default="0,1,2")
    made.add_argument("--methods", default=",".join([*METHODS, "combined+centre", DEFAULT]))
    made.add_argument("--rounds", type=int, default=10)
    made.add_argument("--clients", type=int, default=10)
    made.add_argument("--out", type=Path, default=Path("runs"))
    return made


def main(given: Sequence[str] | None = None) -> None:
    """Train, attack and print."""
    chosen = parser().parse_args(given)
    seeds = [int(seed) for seed in chosen.seeds.split(",")]
    check_seeds(chosen.part, seeds)
    methods = chosen.methods.split(",")
    for setting in chosen.settings:
        protocol, kind = SETTINGS[setting]
        images = dataset(chosen.part, kind, chosen.data, chosen.out)
        all_found: list[dict[str, VectorScores]] = []
        for seed in seeds:
            run = api.train(
                protocol, images, clients=chosen.clients, rounds=chosen.rounds, seed=seed,
                device="cpu", resume=True, runs=chosen.out,
            )  # fmt: skip
            accuracy = run.table()[0]["accuracy after the broadcast"]
            print(f"{setting}, seed {seed}: accuracy {accuracy}, {run.folder}", flush=True)
            fitting = [m for m in methods if protocol != "fedral" or m in MATRICES]
            all_found.append(compare(game_of(run), seed, fitting))
        if len(seeds) > 1:
            print(f"{setting}, seeds {chosen.seeds} together")
            whole = {name: joined([one[name] for one in all_found]) for name in all_found[0]}
            inside = whole["public"].chance < 1
            common = inside.clone()
            for scores in whole.values():
                common &= scores.answered
            for name, scores in whole.items():
                print(line(name, scores, inside, common, ""), flush=True)


if __name__ == "__main__":
    main()
