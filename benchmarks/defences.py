"""What defences cost and what they stop: FedRE, FedGH and FedAvg, each under several defences.

Every variant is trained once per seed and attacked with the attacks that fit its uploads, which
know the defence; of prototypes, those of the fewest images. One table and one figure come out:
accuracy, scalars uploaded per round, image leakage over the floor of the strongest attack, centred
cosine of prototypes recovered from all rounds, membership AUC, how often the true image is found
among 100 and how often any attack could find it by what is guaranteed, and the epsilon that the run
may state for one client or one record. Finished jobs are not repeated.

Usage: python benchmarks/defences.py --dataset npz:FILE [--seeds 0,1] [--only fedre] [--out DIR]
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import tools
import torch

from fedre_privacy.core import files
from fedre_privacy.core.config import merge
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.events import Event
from fedre_privacy.core.gdp import gdp_mu
from fedre_privacy.core.tradeoff import VACUOUS
from fedre_privacy.defenses.accounting import epsilon_of, least_noise
from fedre_privacy.defenses.base import Release, defenses
from fedre_privacy.eval.report import save_figure
from fedre_privacy.eval.report.comparison import Column, Dot, comparison
from fedre_privacy.job import WORKER
from fedre_privacy.pages.benchmark import write_benchmark_report
from fedre_privacy.runs.preparing import facts_of, prepare
from fedre_privacy.runs.resolving import resolve_training
from fedre_privacy.study.benchmark import BenchmarkResult, benchmark
from fedre_privacy.study.description import Benchmark, read_sweep

BASE = {
    "data": {"per_class": 60},
    "partition": {"name": "pra", "alpha": 0.1},
    "train": {"clients": 10, "rounds": 20, "eval_every": 20},
}
LENGTH = 8
"""Bound on representations, near their usual length; updates are bounded to 1."""
WEAK, MEDIUM, STRONG = 0.0055, 0.022, 0.088
"""Noise multipliers whose noise on a vector of 512 is 1/4, 1 and 4 times as long as its bound."""
SCALE = 0.0235
"""What brings the same ratios to an update of cnn4 (878,538 parameters), sqrt(512 / 878538)."""
EPSILONS = (8, 2)
DELTA = 1e-5


@dataclass(frozen=True)
class Budget:
    """Noise multipliers with which the client that spends most spends an epsilon, for one record.

    Args:
        alone: of training steps where nothing else is sent of the data.
        steps, uploads: of training steps and of uploads that spend it together, about half each.
    """

    alone: float
    steps: float
    uploads: float


def budget_of(epsilon: float, base: Mapping[str, Any], seeds: Sequence[int]) -> Budget:
    """Work noise multipliers out of the shares of data and the rounds of these trainings."""
    made = defenses.get("dp-sgd")
    facts = []
    for seed in seeds:
        problems: list[str] = []
        values = merge(merge(BASE, base), {"train": {"seed": seed}})
        training = resolve_training(values, {}, problems)
        if training is None:
            raise ConfigError(*problems)
        facts.append(facts_of(training, prepare(training, torch.device("cpu")).setting))
    rounds = facts[0].rounds
    uploads = math.sqrt(rounds) / gdp_mu(epsilon / 2, DELTA)

    def least(*others: Release) -> float:
        def within(noise: float) -> bool:
            costs = [made(noise=noise, clip=1.0).cost(one).releases for one in facts]
            spent = {(*own, *others) for cost in costs for own in cost}
            return all(epsilon_of(one, DELTA, "rdp") <= epsilon for one in spent)

        return least_noise(within)

    return Budget(least(), least(Release(uploads, 1.0, rounds)), uploads)


def _noisy(bound: float, scale: float = 1.0) -> dict[str, Any]:
    return {
        f"noise x{ratio}": f"gaussian:clip={bound:g},noise={noise * scale:.3g}"
        for ratio, noise in (("1/4", WEAK), ("1", MEDIUM), ("4", STRONG))
    }


Budgets = Mapping[int, Budget]


def for_vectors(budgets: Budgets) -> dict[str, Any]:
    """Defences of protocols that send vectors."""
    return {
        "none": None,
        "bound only": f"clip:norm={LENGTH:g}",
        **_noisy(LENGTH),
        **{
            f"dp-sgd eps {epsilon}": [
                f"dp-sgd:noise={own.steps:.4f},clip=1",
                f"gaussian:unit=record,clip={LENGTH},noise={own.uploads:.4f}",
            ]
            for epsilon, own in budgets.items()
        },
        "mask 10 %": "mask:keep=0.1",
    }


def for_updates(budgets: Budgets) -> dict[str, Any]:
    """Defences of protocols that send parameters."""
    return {
        "none": None,
        "bound only": "clip:norm=1",
        **_noisy(1, SCALE),
        **{
            f"dp-sgd eps {epsilon}": f"dp-sgd:noise={own.alone:.4f},clip=1"
            for epsilon, own in budgets.items()
        },
        "prune 10 %": "prune:keep=0.1",
    }


@dataclass(frozen=True)
class Plan:
    """The defences of one protocol, and the attacks that fit its uploads.

    Args:
        fixed: one more variant mixes with the same weights in every round.
        every: extractors of every round are kept, which the strong threat model grants.
    """

    defenses: Callable[[Budgets], dict[str, Any]]
    attacks: Sequence[Any]
    fixed: bool = False
    every: bool = False


def _on_recovered(via: str, attack: str, threat: str = "strong") -> dict[str, Any]:
    return {
        "attack": {"name": attack},
        "target": "recovered-prototypes",
        "threat": threat,
        "via": {"name": via},
    }


PLANS = {
    "fedre": Plan(
        for_vectors,
        (
            "disentangle@uploaded@strong",
            _on_recovered("disentangle", "linear"),
            _on_recovered("disentangle", "dip"),
            "membership@uploaded@strong",
        ),
        fixed=True,
    ),
    "fedgh": Plan(
        for_vectors,
        (
            "average@uploaded@strong",
            {"attack": {"name": "linear"}, "target": "uploaded", "threat": "strong"},
            {"attack": {"name": "dip"}, "target": "uploaded", "threat": "strong"},
            _on_recovered("average", "linear"),
            _on_recovered("average", "dip"),
            "membership@uploaded@strong",
        ),
        every=True,
    ),
    "fedavg": Plan(
        for_updates,
        (
            "head@uploaded@strong",
            _on_recovered("head", "linear"),
            _on_recovered("head", "dip"),
            "update-inversion@update@strong",
        ),
    ),
}


def sweep_of(
    name: str,
    base: Mapping[str, Any],
    seeds: Sequence[int],
    targets: int,
    budgets: Budgets,
    steps: int | None = None,
) -> Benchmark:
    """The benchmark of one protocol: its defences as variants.

    Args:
        steps: of dip; None: its own default.
    """
    plan = PLANS[name]
    if plan.every:
        base = merge(base, {"record": {"keep_every": 1}})
    vary: dict[str, Any] = {
        f"{name}, {label}": {
            "protocol": {"name": name},
            **({} if given is None else {"defense": given}),
        }
        for label, given in plan.defenses(budgets).items()
    }
    if plan.fixed:
        vary[f"{name}, fixed weights"] = {"protocol": {"name": name, "resample": False}}
    attacks = [
        {
            **merge(entry, {"attack": {"steps": steps}} if steps and _is_dip(entry) else {}),
            "eval": {"targets": targets, "ceiling": 0, "fewest_first": True},
        }
        if isinstance(entry, dict)
        else entry
        for entry in plan.attacks
    ]
    return read_sweep(
        {"vary": vary, "seeds": list(seeds), "attacks": attacks, "targets": targets, "base": BASE},
        base,
        name=f"defences-{name}",
    )


def _is_dip(entry: Mapping[str, Any]) -> bool:
    return bool(entry["attack"]["name"] == "dip")


def table(results: Sequence[BenchmarkResult], runs: Path) -> pd.DataFrame:
    """One row per variant: accuracy, scalars, every kind of leakage with its floor, epsilon."""
    rows = []
    for result in results:
        for point in result.points():
            part = result.summary[result.summary["label"] == point.label]
            names = result.rows.loc[result.rows["label"] == point.label, "run"].unique()
            records = [files.read_json(runs / name / "record.json", dict) for name in names]
            row: dict[str, Any] = {
                "variant": point.label,
                "seeds": point.seeds,
                "accuracy": point.accuracy,
                "accuracy_sd": point.accuracy_sd,
                "scalars_up": point.scalars,
                "image_leakage_db": point.over,
                "image_leakage_sd": point.over_sd,
                "image_attack": point.attack,
            }
            for key, measure in (
                ("prototype_cosine", "centred_cosine"),
                ("membership_auc", "auc"),
                ("found_among_100", "hit1"),
            ):
                whole = (part["measure"] == measure) & (part["group"] == "")
                found = part[whole & part["value"].notna()]
                best = found.loc[found["value"].idxmax()] if len(found) else None
                row[key] = None if best is None else best["value"]
                row[f"{key}_floor"] = None if best is None else best["floor"]
            stated = [one.get("privacy", {}).get("guarantees", ()) for one in records]
            guarantees = max(stated, key=_least)  # the seed that may promise least
            row["epsilon"] = _least(guarantees) if guarantees else None
            at_most = min((float(g["line_up"]) for g in guarantees), default=1.0)
            row["found_at_most"] = at_most if at_most < VACUOUS else None
            row["epsilon_of"] = ", ".join(
                f"{g['epsilon']:.3g} (one {g['unit']}, delta {g['delta']:g})" for g in guarantees
            )
            rows.append(row)
    return pd.DataFrame(rows)


def _least(guarantees: Sequence[Mapping[str, Any]]) -> float:
    return min((float(one["epsilon"]) for one in guarantees), default=math.inf)


def figure(rows: pd.DataFrame) -> Any:
    """Variants in rows; accuracy, traffic, leakage and epsilon in columns."""

    def dots(key: str, sd: str | None = None, floor: str | None = None) -> tuple[Dot, ...]:
        return tuple(
            Dot(
                _number(row[key]),
                _number(row[sd]) if sd else None,
                _number(row[floor]) if floor else None,
            )
            for _, row in rows.iterrows()
        )

    columns = [
        Column("accuracy", dots("accuracy", "accuracy_sd")),
        Column("scalars up", dots("scalars_up"), log=True),
        Column("images: dB over\nthe floor", dots("image_leakage_db", "image_leakage_sd")),
        Column(
            "prototypes: centred\ncosine",
            dots("prototype_cosine", floor="prototype_cosine_floor"),
        ),
        Column("membership AUC", dots("membership_auc", floor="membership_auc_floor")),
        Column(
            "found among 100",
            dots("found_among_100", floor="found_among_100_floor"),
        ),
        Column("found among 100:\nany attack, at most", dots("found_at_most"), absent="no bound"),
        Column("epsilon stated", dots("epsilon"), log=True, absent="no guarantee"),
    ]
    caption = (
        "Attacks know the defence. Noise xR: on average R times as long as the bounded vector or "
        "update. Epsilon: of one client for noise, of one record for dp-sgd; no dot: no guarantee."
    )
    return comparison(
        list(rows["variant"]), columns, title="What defences cost and stop", caption=caption
    )


def _number(value: Any) -> float | None:
    return None if value is None or pd.isna(value) else float(value)


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = tools.options(__doc__)
    made.add_argument("--dataset", required=True, metavar="D[:PATH]", help="npz:FILE, or a name")
    made.add_argument("--seeds", default="0", help="seeds of the trainings")
    made.add_argument("--only", default=",".join(PLANS), help="protocols")
    made.add_argument("--defences", default="", help="labels of defences to run; none: all")
    made.add_argument("--targets", type=int, default=16, help="targets per attack")
    made.add_argument("--rounds", type=int, default=20)
    made.add_argument("--clients", type=int, default=10)
    made.add_argument("--steps", type=int, default=None, help="of dip; none: its default")
    made.add_argument("--jobs", type=int, default=1, help="jobs at once")
    made.add_argument("--out", type=Path, default=Path("runs/benchmarks/defences"))
    made.add_argument("--runs-dir", type=Path, default=Path("runs"))
    made.add_argument("--prune", action="store_true", help="remove models of finished runs")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is not done yet and write ``defences.csv`` and ``defences.png``."""
    options = parser().parse_args(arguments)
    name, _, path = options.dataset.partition(":")
    data: dict[str, Any] = {"name": name}
    if path:
        data["path"] = str(Path(path).expanduser().resolve())
    base = {"data": data, "train": {"rounds": options.rounds, "clients": options.clients}}
    seeds = [int(seed) for seed in options.seeds.split(",")]
    wanted = set(filter(None, (part.strip() for part in options.defences.split(","))))
    needed = [e for e in EPSILONS if not wanted or f"dp-sgd eps {e}" in wanted]
    budgets = {epsilon: budget_of(epsilon, base, seeds) for epsilon in needed}
    results = []
    for protocol in options.only.split(","):
        if protocol not in PLANS:
            raise ConfigError(f"--only takes {', '.join(PLANS)}; got '{protocol}'.")
        sweep = sweep_of(protocol, base, seeds, options.targets, budgets, options.steps)
        if wanted:
            kept = tuple(v for v in sweep.variants if v.label.split(", ", 1)[1] in wanted)
            sweep = Benchmark(
                sweep.name, sweep.base, kept, sweep.seeds, sweep.attacks, sweep.targets
            )
        results.append(
            benchmark(
                sweep, folder=options.out / protocol, runs=options.runs_dir, device="cpu",
                workers=options.jobs, report=_say, prune=options.prune, worker=WORKER,
            )
        )  # fmt: skip
    for result in results:
        write_benchmark_report(result)
    rows = table(results, options.runs_dir)
    if rows.empty:
        print("no variant finished")
        return 1
    options.out.mkdir(parents=True, exist_ok=True)
    files.write_frame(options.out / "defences.csv", rows)
    save_figure(figure(rows), options.out / "defences", data=rows)
    print(rows.drop(columns=["image_attack"]).to_string(index=False, float_format="%.3g"))
    for result in results:
        for text in result.failures():
            print("FAILED", text)
    return 0


def _say(event: Event) -> None:
    if event.name == "sweep.job":
        data = event.data
        took = "--" if data["wall_s"] is None else f"{data['wall_s']:.0f} s"
        print(f"{data['done']}/{data['of']} {data['job']} {data['status']} {took}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
