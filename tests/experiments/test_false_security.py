"""Defended trainings under naive and adaptive attackers: what is planned, and what is concluded."""

from dataclasses import asdict
from pathlib import Path

import pandas as pd
import pytest

from fedre_privacy.benchmarking.benchmark import BenchmarkResult
from fedre_privacy.benchmarking.false_security import defence_costs
from fedre_privacy.benchmarking.results import frame, over_seeds
from fedre_privacy.benchmarking.variants import plan_jobs, read_sweep
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.eval.measures import COMPARISON, FRONTIER, SINGLE, Measure

BASE = {"data": {"name": "digits", "per_class": 12}, "train": {"clients": 3, "rounds": 1}}
SWEEP = {
    "name": "tiny", "protocols": ["fedgh"], "defenses": ["none", "cem"], "seeds": [0, 1],
    "attackers": ["adaptive", "naive"],
}  # fmt: skip


def wanted(**keys):
    return read_sweep({**SWEEP, **keys}, BASE, name="")


def test_only_defended_trainings_are_attacked_twice():
    one = {"attack": {"name": "linear"}, "threat": "strong"}
    plain, _, defended, _ = plan_jobs(wanted(attacks=[one]))
    assert [a.evaluation.attacker for a in plain.attacks] == ["adaptive"]
    assert [a.evaluation.attacker for a in defended.attacks] == ["adaptive", "naive"]
    naive = {**one, "eval": {"attacker": "naive"}}  # as a file may say itself: once
    assert len(plan_jobs(wanted(attacks=[one, naive]))[2].attacks) == 2
    before = plan_jobs(wanted(attacks=[one], attackers=None))[2]
    assert before.attacks == defended.attacks[:1]  # names of folders stay
    with pytest.raises(ConfigError, match="a list of adaptive and naive"):
        wanted(attackers=["blind"])


def job(label, seed, **leaks):
    """A finished job: what attackers reach over a floor of 10 dB, and how many of 9 they find."""

    def measures(over):
        return [
            asdict(Measure(key="psnr", title="PSNR", value=10.0 + over, floor=10.0, over=over, n=9,
                           unit="dB", shown=FRONTIER)),
            asdict(Measure(key="hit1", title="found", value=over / 10, floor=0.1,
                           over=over / 10 - 0.1, n=9, shown=COMPARISON)),
        ]  # fmt: skip

    return {
        "label": label, "seed": seed, "status": "complete", "round_s": 0.5 + seed,
        "training": {"protocol": {"name": "fedgh"}, "train": {"rounds": 3}},
        "final": {"acc_post_local": 0.5, "acc_post_broadcast": 0.5, "up_scalars": 7,
                  "up_bytes": 2048},
        "attacks": [
            {"attack": "linear", "answers": "images", "target": "uploaded", "threat": "strong",
             "attacker": who, "verdict": "leaks", "because": "", "counterfactual": False,
             "measures": measures(over)}
            for who, over in leaks.items()
        ],
    }  # fmt: skip


def result(jobs):
    rows = frame(jobs)
    return BenchmarkResult(Path("x"), rows, over_seeds(rows), wanted(), jobs, Path("x"))


def test_attackers_are_never_averaged_and_their_difference_is_false_security():
    made = result(
        [job("fedgh", seed, adaptive=5.0) for seed in (0, 1)]
        + [job("fedgh + cem", seed, adaptive=4.0 + seed, naive=-2.0 - seed) for seed in (0, 1)]
    )
    plain, cem = defence_costs(made.summary, made.rows)
    assert plain.naive is None and plain.false_security is None and plain.adaptive.over == 5.0
    assert (cem.adaptive.over, cem.naive.over, cem.false_security) == (4.5, -2.5, 7.0)
    assert cem.found == pytest.approx(0.45) and cem.guess == 0.1  # the adaptive one's
    assert cem.found_naive == pytest.approx(-0.25) and plain.found_naive is None
    first, second = made.defences()
    assert first["naive, dB over floor"] == first["false security"] == "-"
    assert second["false security"] == "+7.00" and second["n"] == "18"
    assert second["seconds a round"] == "0.5" and second["sent a round"] == "2.0 KiB"
    assert made.points()[1].over == 4.5  # the strongest of both
    titles = [axes.get_title() for axes in made.defences_figure().get_axes()]
    assert "false security,\ndB" in titles


def test_a_naive_attack_that_is_stronger_is_the_one_that_counts():
    made = result([job("fedgh + cem", seed, adaptive=1.0, naive=3.0) for seed in (0, 1)])
    assert made.points()[0].over == 3.0 and made.points()[0].attack.endswith("naive")
    assert made.defences()[0]["false security"] == "-2.00"


def test_both_attackers_are_compared_on_images_that_are_alone_in_their_target():
    jobs = [job("fedgh + cem", seed, adaptive=1.0, naive=0.0) for seed in (0, 1)]
    for own in jobs:
        for entry, over in zip(own["attacks"], (4.0, -6.0), strict=True):
            psnr, hit = entry["measures"]
            entry["measures"] += [
                {**psnr, "group": SINGLE, "over": over, "n": 3},
                {**hit, "group": SINGLE, "value": 1.0, "n": 3},
            ]
    made = result(jobs)
    ((cem,), (row,)) = defence_costs(made.summary, made.rows), made.defences()
    assert (cem.adaptive.over, cem.false_security, cem.found, cem.single) == (4.0, 10.0, 1.0, True)
    assert row["n"] == "6" and row["targets"] == "one image each"
    (few,) = result(jobs[:1]).defences()  # three are too few
    assert few["n"] == "9" and few["targets"] == "all" and few["false security"] == "+1.00"


def test_results_without_naive_attacks_have_no_such_table():
    jobs = [job("fedgh", 0, adaptive=5.0)]
    for entry in jobs[0]["attacks"]:
        del entry["attacker"]  # as an earlier version wrote it
    made = result(jobs)
    assert made.defences() == [] and made.points()[0].over == 5.0
    assert defence_costs(pd.DataFrame(), made.rows) == []
