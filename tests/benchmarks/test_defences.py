"""The table of defences: rates of all seeds together, and what is shown of a promise."""

import numpy as np
import pandas as pd
import pytest

from fedre_privacy.core.artifacts import Counts
from fedre_privacy.eval.lower_bounds import share_interval
from fedre_privacy.protocols.base import protocols

DATA = {"name": "digits", "per_class": 12}


@pytest.fixture(scope="module")
def defences(load):
    return load("defences")


@pytest.fixture(scope="module")
def jobs(defences):
    base = {"data": DATA, "train": {"rounds": 3, "clients": 3}}
    budgets = {8: defences.budget_of(8, base, [1])}

    def of(protocol, label):
        sweep = defences.sweep_of(protocol, base, [1], 2, budgets)
        return [job for job in sweep.jobs if job.label == f"{protocol}, {label}"]

    return of


def test_rates_of_all_seeds_are_one_share(defences):
    rows = pd.DataFrame(
        {
            "measure": ["tpr_at_fpr_0.01", "tpr_at_fpr_0.01", "auc", "tpr_at_fpr_0.01"],
            "value": [0.1, 0.3, 0.9, np.nan],
            "n": [200, 100, 200, 40],
        }
    )
    found = defences.rates(rows)
    low, high = share_interval(25, 150)
    assert found == {"tpr_at_1": 25 / 150, "tpr_low": low, "tpr_high": high, "members": 150}
    assert not defences.rates(rows[:0])


def test_every_protocol_of_the_table_has_a_form_of_what_is_noised(defences):
    sent = {kind for name in defences.PLANS for kind in protocols.get(name).uploads}
    assert sent - set(defences.FORMS) == {Counts}


@pytest.mark.parametrize("protocol", ["fedre", "fedproto", "fedavg"])
def test_noise_meant_as_a_promise_is_shown_and_kept(protocol, jobs, defences, tmp_path):
    found = defences.promised(jobs(protocol, "noise eps 8"), tmp_path, 300)
    assert found["audit"] == "consistent" and found["epsilon"] == pytest.approx(8)
    assert 2 < found["epsilon_shown"] < found["epsilon_could_show"]
    assert found["found_at_most"] == pytest.approx(0.068, abs=1e-3)


def test_a_record_has_its_own_epsilon(jobs, defences, tmp_path):
    found = defences.promised(jobs("fedgh", "dp-sgd eps 8"), tmp_path, 100)
    assert "one record" in found["epsilon_of"] and found["audit"] == "consistent"
    assert found["epsilon_shown"] < found["epsilon"] <= 8


def test_what_promises_nothing_is_not_audited(jobs, defences, tmp_path):
    for label in ("none", "bound only", "mask 10 %"):
        assert not defences.promised(jobs("fedre", label), tmp_path, 100)
    assert not list(tmp_path.iterdir())


def test_a_row_whose_trainings_failed_says_so(defences):
    rows = pd.DataFrame(
        [
            {"variant": "a, none", "seeds": 2, "accuracy": 0.5, "accuracy_sd": 0.1,
             "tpr_at_1": 0.2, "tpr_low": 0.1, "tpr_high": 0.3},
            {"variant": "a, noise", "seeds": 0, "failure": "Training diverged", "epsilon": 8.0,
             "epsilon_shown": 6.1, "epsilon_of": "8 (one client, delta 1e-05)",
             "found_at_most": 0.068},
        ]
    ).reindex(columns=COLUMNS)  # fmt: skip
    first, second = defences.in_words(rows).splitlines()[2:]
    assert first.startswith("| a, none | 0.50 ± 0.10 |") and "20.0% [10.0%, 30.0%]" in first
    assert first.endswith("| no bound | none | 2 |")
    assert second.startswith("| a, noise | training diverged | - |")
    assert second.endswith("| 6.8% | [6.10, 8] (client) | 0 |")


COLUMNS = (
    "variant", "seeds", "failure", "accuracy", "accuracy_sd", "image_leakage_db",
    "image_leakage_sd", "prototype_cosine", "prototype_cosine_floor", "membership_auc",
    "membership_auc_floor", "tpr_at_1", "tpr_low", "tpr_high", "found_among_100",
    "found_among_100_floor", "found_at_most", "epsilon", "epsilon_shown", "epsilon_of",
)  # fmt: skip
