"""What defences cost and what they stop: FedRE, FedGH, FedProto and FedAvg under several defences.

Every variant is trained once per seed and attacked with the attacks that fit its uploads, which
know the defence; of prototypes, those of the fewest images. One table and one figure come out:
accuracy, scalars uploaded per round, image leakage over the floor of the strongest attack, centred
cosine of prototypes recovered from all rounds, AUC and true-positive rate at 1 % false positives of
the best membership attack, how often the true image is found among 100, how near an attack without
a prior could come on average and how often any attack could find it by what is guaranteed, and the
epsilon for one client or one record: shown at least, by an audit of the defences, and promised at
most. Finished jobs and audits are not repeated.

Usage: python benchmarks/defences.py --dataset npz:FILE [--seeds 11,12] [--only fedre] [--out DIR]
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

from fedre_privacy.api.workflows import PAGE
from fedre_privacy.auditing.recorded_run import audit_claim, plan_audit
from fedre_privacy.benchmarking.benchmark import BenchmarkResult, benchmark
from fedre_privacy.benchmarking.jobs import BenchmarkJob
from fedre_privacy.benchmarking.variants import Benchmark, read_sweep
from fedre_privacy.core import files
from fedre_privacy.core.artifacts import Artifact, EntangledRep, ModelState, Prototypes
from fedre_privacy.core.config import merge
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.events import Event
from fedre_privacy.core.gdp import gdp_mu
from fedre_privacy.core.tradeoff import VACUOUS
from fedre_privacy.defenses.accounting import epsilon_of, least_noise
from fedre_privacy.defenses.base import FederationFacts, Release, defenses
from fedre_privacy.defenses.statement import state
from fedre_privacy.eval.lower_bounds import share_interval
from fedre_privacy.eval.measures import SINGLE
from fedre_privacy.eval.report import save_figure
from fedre_privacy.eval.report.comparison import Column, Dot, comparison
from fedre_privacy.eval.report.frontier import Point
from fedre_privacy.reports.benchmark import write_benchmark_report
from fedre_privacy.runs.preparation import PreparedTraining, facts_of, prepare
from fedre_privacy.runs.resolution import resolve_training
from fedre_privacy.runs.settings import TrainSettings

BASE = {
    "data": {"per_class": 60},
    "partition": {"name": "pra", "alpha": 0.1},
    "train": {"clients": 10, "rounds": 20, "eval_every": 20},
}
LENGTH = 8
"""Bound on representations, near their usual length; updates are bounded to 1."""
WEAK, MEDIUM = 0.0055, 0.022
"""Noise multipliers whose noise on a vector of 512 is 1/4 and 1 times as long as its bound."""
CLIENT_EPSILON = 8
"""What noise promises a client that is meant as a promise; its noise is far longer."""
SCALE = 0.0235
"""What brings the same ratios to an update of cnn4 (878,538 parameters), sqrt(512 / 878538)."""
EPSILONS = (8, 2)
DELTA = 1e-5
RATE = 0.01
"""Of false positives, at which members found are counted."""
FEATURES = 512


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
        facts.append(plan_of(training)[1])
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
    made = {
        f"noise x{ratio}": f"gaussian:clip={bound:g},noise={noise * scale:.3g}"
        for ratio, noise in (("1/4", WEAK), ("1", MEDIUM))
    }
    promised = f"gaussian:clip={bound:g},epsilon={CLIENT_EPSILON}"
    return {**made, f"noise eps {CLIENT_EPSILON}": promised}


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


MEMBERSHIP = {
    "attack": {"name": "membership", "rounds": 10},
    "target": "membership",
    "threat": "strong",
}
OF_PROTOTYPES = Plan(
    for_vectors,
    (
        "average@uploaded@strong",
        {"attack": {"name": "linear"}, "target": "uploaded", "threat": "strong"},
        {"attack": {"name": "dip"}, "target": "uploaded", "threat": "strong"},
        MEMBERSHIP,
    ),
    every=True,
)
PLANS = {
    "fedre": Plan(
        for_vectors,
        (
            "disentangle@uploaded@strong",
            _on_recovered("disentangle", "linear"),
            _on_recovered("disentangle", "dip"),
            MEMBERSHIP,
        ),
        fixed=True,
    ),
    "fedgh": OF_PROTOTYPES,
    "fedproto": OF_PROTOTYPES,
    "fedavg": Plan(
        for_updates,
        (
            "head@uploaded@strong",
            _on_recovered("head", "linear"),
            _on_recovered("head", "dip"),
            {
                "attack": {"name": "update-inversion"},
                "target": "update",
                "threat": "strong",
                "eval": {"targets": 4, "fewest_first": False},
            },
            "loss-membership@membership@strong",
            "span@membership@strong",
            "alignment@membership@strong",
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
            "eval": {
                "targets": targets,
                "ceiling": 0,
                "fewest_first": True,
                **entry.get("eval", {}),
            },
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


FORMS: Mapping[type[Artifact], Callable[[int, int], Artifact]] = {
    Prototypes: lambda classes, held: Prototypes(torch.zeros(held, FEATURES), torch.arange(held)),
    EntangledRep: lambda classes, held: EntangledRep(
        torch.zeros(FEATURES), torch.full((classes,), 1 / classes)
    ),
    ModelState: lambda classes, held: ModelState({"weight": torch.zeros(FEATURES, 8)}),
}
"""Uploads of zeros, by the classes of the data and those that a client holds.

An audit of noise needs no more: it falls on each number alike, so that few do for a model.
"""


def promised(jobs: Sequence[BenchmarkJob], folder: Path, trials: int) -> dict[str, Any]:
    """What a variant promises, of the seed that promises least, and what an audit shows of it.

    Args:
        jobs: one for each seed. folder: where audits are kept, which are not repeated.
        trials: of an audit.
    """
    if not jobs[0].training.defense:
        return {}
    plans = [plan_of(job.training) for job in jobs]
    stated = [state(plan.defense, facts).guarantees for plan, facts in plans]
    weakest = max(range(len(jobs)), key=lambda n: min((g.epsilon for g in stated[n]), default=0))
    guarantees = stated[weakest]
    if not all(stated):
        return {}
    at_most = min(one.line_up for one in guarantees)
    return {
        "found_at_most": at_most if at_most < VACUOUS else None,
        "epsilon": min(one.epsilon for one in guarantees),
        "epsilon_of": ", ".join(
            f"{one.epsilon:.3g} (one {one.unit}, delta {one.delta:g})" for one in guarantees
        ),
        **audited(jobs[weakest], folder, trials),
    }


def plan_of(training: TrainSettings) -> tuple[PreparedTraining, FederationFacts]:
    """A training prepared, and what its defences reckon with."""
    prepared = prepare(training, torch.device("cpu"))
    return prepared, facts_of(training, prepared.setting)


def audited(job: BenchmarkJob, folder: Path, trials: int) -> dict[str, Any]:
    """What an audit of a job's defences shows of their claim; kept, and not repeated."""
    path = folder / "audits" / f"{job.name}-{trials}.json"
    if not path.is_file():
        plan = plan_audit(job.training)
        assert plan.claim is not None
        counts = plan.facts.class_counts[plan.claim.client]
        held = sum(count > 0 for count in counts)
        kinds = [kind for kind in job.training.protocol.uploads if kind in FORMS]
        sent = [FORMS[kind](len(counts), held) for kind in kinds]
        found = audit_claim(plan, sent, trials=trials)
        files.write_json(
            path,
            {
                "epsilon_shown": found.shown,
                "epsilon_could_show": found.ceiling,
                "audit": found.verdict,
                "audit_trials": found.trials,
            },
        )
    return files.read_json(path, dict)


def table(results: Sequence[BenchmarkResult], folder: Path, trials: int) -> pd.DataFrame:
    """One row per variant: accuracy, scalars, every kind of leakage with its floor, epsilon.

    A variant whose trainings all failed has what it promises alone.

    Args:
        folder: where audits are kept. trials: of each.
    """
    rows = []
    for result in results:
        points = {point.label: point for point in result.points()}
        for variant in result.wanted.variants:
            jobs = [job for job in result.wanted.jobs if job.label == variant.label]
            row = {"variant": variant.label, "seeds": 0}
            if variant.label in points:
                row |= measured(result, points[variant.label])
            else:
                own = result.rows[result.rows["label"] == variant.label]
                row["failure"] = str(own["failure"].iloc[0]).partition(":")[0]
            rows.append({**row, **promised(jobs, folder, trials)})
    return pd.DataFrame(rows)


def measured(result: BenchmarkResult, point: Point) -> dict[str, Any]:
    """Accuracy, scalars and leakage of one variant."""
    row: dict[str, Any] = {
        "seeds": point.seeds,
        "accuracy": point.accuracy,
        "accuracy_sd": point.accuracy_sd,
        "scalars_up": point.scalars,
        "image_leakage_db": point.over,
        "image_leakage_sd": point.over_sd,
        "image_attack": point.attack,
    }
    part = result.summary[result.summary["label"] == point.label]
    own = result.rows[result.rows["label"] == point.label]
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
        if best is not None and measure == "auc":
            row["membership_attack"] = best["attack"]
            row |= rates(own[own["attack"] == best["attack"]])
    uploaded = part[part["target"] == "uploaded"]
    limits = uploaded[uploaded["measure"] == "unbiased_limit"]
    floors = uploaded[uploaded["measure"] == "psnr"]
    single = floors[floors["group"] == SINGLE]
    if len(limits):
        row["unbiased_limit"] = limits["value"].mean()
        # where all targets are of one image there is no group of them
        row["unbiased_limit_floor"] = (single if len(single) else floors)["floor"].mean()
    return row


def rates(own: pd.DataFrame) -> dict[str, Any]:
    """Members found at 1 % false positives, all seeds together, and a Clopper-Pearson interval.

    Args:
        own: rows of one membership attack on one variant; half of the candidates are members.
    """
    found = own[(own["measure"] == f"tpr_at_fpr_{RATE:g}") & own["value"].notna()]
    members = (found["n"] / 2).round().astype(int)
    hits, of = int((found["value"] * members).round().sum()), int(members.sum())
    if not of:
        return {}
    low, high = share_interval(hits, of)
    return {"tpr_at_1": hits / of, "tpr_low": low, "tpr_high": high, "members": of}


def figure(rows: pd.DataFrame) -> Any:
    """Variants in rows; accuracy, traffic, leakage and epsilon in columns."""

    def dots(
        key: str, sd: str | None = None, floor: str | None = None, most: str | None = None
    ) -> tuple[Dot, ...]:
        wanted = (key, sd, floor, most)
        return tuple(
            Dot(*(_number(row.get(name)) if name else None for name in wanted))
            for _, row in rows.iterrows()
        )

    columns = [
        Column("accuracy", dots("accuracy", "accuracy_sd"), absent="failed"),
        Column("scalars up", dots("scalars_up"), log=True, absent="failed"),
        Column("images: dB over\nthe floor", dots("image_leakage_db", "image_leakage_sd")),
        Column(
            "prototypes: centred\ncosine",
            dots("prototype_cosine", floor="prototype_cosine_floor"),
        ),
        Column("membership AUC", dots("membership_auc", floor="membership_auc_floor")),
        Column("membership: TPR at\n1 % FPR", dots("tpr_at_1", floor="chance")),
        Column(
            "found among 100",
            dots("found_among_100", floor="found_among_100_floor", most="found_at_most"),
        ),
        Column(
            "no unbiased attack\nabove, dB",
            dots("unbiased_limit", floor="unbiased_limit_floor"),
            absent="no limit",
        ),
        Column(
            "epsilon shown", dots("epsilon_shown", most="epsilon"), log=True, absent="no guarantee"
        ),
    ]
    caption = (
        "Attacks know the defence. Red: floor. Black: what no attack can exceed, where anything is "
        "promised. Noise xR: on average R times as long as the bounded vector or update. Epsilon: "
        "of one client for noise, of one record for dp-sgd; shown by an audit, and promised."
    )
    rows = rows.assign(chance=RATE)
    return comparison(
        list(rows["variant"]), columns, title="What defences cost and stop", caption=caption
    )


def in_words(rows: pd.DataFrame) -> str:
    """The table as a page shows it."""

    def beside(value: Any, floor: Any, digits: int = 2) -> str:
        told = _number(value)
        return "-" if told is None else f"{told:.{digits}f} ({_number(floor) or 0:.{digits}f})"

    def spread(value: Any, sd: Any, form: str) -> str:
        told, width = _number(value), _number(sd)
        if told is None:
            return "-"
        return f"{told:{form}}" + ("" if width is None else f" ± {width:{form.lstrip('+')}}")

    heads = (
        "", "accuracy", "images, dB over floor", "prototypes, cosine (floor)",
        "membership AUC (floor)", "TPR at 1 % FPR [95 %]", "found among 100 (guess)",
        "unbiased, dB (floor)", "any attack", "epsilon [shown, promised]", "seeds",
    )  # fmt: skip
    lines = [heads, ("---",) * len(heads)]
    for row in rows.to_dict("records"):
        rate, most, shown = (
            _number(row.get(k)) for k in ("tpr_at_1", "found_at_most", "epsilon_shown")
        )
        unit = str(row.get("epsilon_of")).partition("(one ")[2].partition(",")[0]
        lines.append(
            (
                row["variant"],
                spread(row["accuracy"], row["accuracy_sd"], ".2f")
                if row["seeds"]
                else str(row["failure"]).lower(),
                spread(row["image_leakage_db"], row["image_leakage_sd"], "+.1f"),
                beside(row["prototype_cosine"], row["prototype_cosine_floor"]),
                beside(row["membership_auc"], row["membership_auc_floor"]),
                "-"
                if rate is None
                else f"{rate:.1%} [{row['tpr_low']:.1%}, {row['tpr_high']:.1%}]",
                beside(row["found_among_100"], row["found_among_100_floor"]),
                beside(row.get("unbiased_limit"), row.get("unbiased_limit_floor"), 1),
                "no bound" if most is None else f"{most:.1%}",
                "none" if shown is None else f"[{shown:.2f}, {row['epsilon']:.3g}] ({unit})",
                str(row["seeds"]),
            )
        )
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


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
    made.add_argument("--trials", type=int, default=400, help="of each audit of a claim")
    made.add_argument("--jobs", type=int, default=1, help="jobs at once")
    made.add_argument("--out", type=Path, default=Path("runs/benchmarks/defences"))
    made.add_argument("--runs-dir", type=Path, default=Path("runs"))
    made.add_argument("--retry", action="store_true", help="run again what failed before")
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
    unknown = [name for name in options.only.split(",") if name not in PLANS]
    if unknown:
        raise ConfigError(f"--only takes {', '.join(PLANS)}; got '{unknown[0]}'.")
    wanted = set(filter(None, (part.strip() for part in options.defences.split(","))))
    needed = [e for e in EPSILONS if not wanted or f"dp-sgd eps {e}" in wanted]
    budgets = {epsilon: budget_of(epsilon, base, seeds) for epsilon in needed}
    results: list[BenchmarkResult] = []
    rows = pd.DataFrame()
    for protocol in options.only.split(","):
        sweep = sweep_of(protocol, base, seeds, options.targets, budgets, options.steps)
        if wanted:
            kept = tuple(v for v in sweep.variants if v.label.split(", ", 1)[1] in wanted)
            sweep = Benchmark(
                sweep.name, sweep.base, kept, sweep.seeds, sweep.attacks, sweep.targets
            )
        result = benchmark(
            sweep, folder=options.out / protocol, runs=options.runs_dir, device="cpu",
            workers=options.jobs, report=_say, prune=options.prune, retry=options.retry,
            page=PAGE,
        )  # fmt: skip
        write_benchmark_report(result)
        results.append(result)
        rows = table(results, options.out, options.trials)
        if len(rows):  # after each protocol, so that there is something to look at
            files.write_frame(options.out / "defences.csv", rows)
            files.write_text(options.out / "defences.md", in_words(rows))
            save_figure(figure(rows), options.out / "defences", data=rows)
    for result in results:
        for text in result.failures():
            print("FAILED", text)
    if rows.empty:
        print("no variant finished")
        return 1
    print(in_words(rows))
    return 0


def _say(event: Event) -> None:
    if event.name == "sweep.job":
        data = event.data
        took = "--" if data["wall_s"] is None else f"{data['wall_s']:.0f} s"
        print(f"{data['done']}/{data['of']} {data['job']} {data['status']} {took}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
