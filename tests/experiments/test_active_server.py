"""Every result of a run with an active server says so, and its twin is the honest run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fedre_privacy import api
from fedre_privacy.benchmarking.honest_twins import HonestTwins, detection_auc, honest_twin
from fedre_privacy.benchmarking.variants import read_sweep
from fedre_privacy.core.errors import ConfigError, IncompatibleError
from fedre_privacy.runs.received_messages import receipts

MARK = "ACTIVE SERVER (null-head, round 1)"
SMALL = {
    "clients": 3,
    "rounds": 2,
    "partition": "pra:0.5",
    "set": {"data.size": 16, "data.per_class": 12, "model.dim": 16, "train.batch_size": 8},
    "device": "cpu",
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> HonestTwins:
    runs = tmp_path_factory.mktemp("twins")
    return api.twins("null-head:rounds=1", "fedgh", seeds=(0,), runs=runs, **SMALL)


def attacked(run: api.recorded.Run) -> api.AttackResult:
    return api.attack(
        run, "linear", threat="strong", round=1, targets=6, device="cpu", set={"eval.ceiling": 0}
    )


@pytest.mark.slow
def test_every_result_says_so(pair):
    (steered,), (honest,) = pair.steered, pair.honest
    assert steered.record["active_server"] == MARK and steered.record["summary"].endswith(MARK)
    assert "active_server" not in honest.record and "ACTIVE" not in honest.record["summary"]
    for run, mark in ((steered, True), (honest, False)):
        result = attacked(run)
        record = json.loads((result.folder / "record.json").read_text(encoding="utf-8"))
        page = (result.folder / "report.html").read_text(encoding="utf-8")
        told = record["trial"]["Attacker"]
        assert told.startswith(f"{MARK}: ") == mark and (mark and "honest" in told) is False
        assert (record.get("active_server") == MARK) == mark
        assert ("did not follow the protocol" in page) == mark == (MARK in page)
        threat = result.trial.observation.threat
        assert threat.behaviour == ("malicious" if mark else "semi-honest")


@pytest.mark.slow
def test_twins_are_compared_on_the_same_targets(pair):
    learning = pair.learning()
    assert list(learning["moment"]) == ["post_broadcast", "post_local"]
    for row, run in zip(("honest", "steered"), (pair.honest[0], pair.steered[0]), strict=True):
        assert learning[row][0] == run.record["final"]["acc_post_broadcast"]
    found = pair.leakage(attacked)
    frames = [attacked(run).frame() for run in (pair.honest[0], pair.steered[0])]
    own = [frame[frame["group"] == "target"]["psnr"] for frame in frames]
    assert found["n"][0] == len(own[0]) > 0
    assert found["difference"][0] == pytest.approx(float((own[1] - own[0]).mean()), abs=1e-6)


def test_equal_rows_are_seen_by_the_centred_norm_and_not_by_the_norm(pair):
    found = pair.detection().set_index("detector")
    assert found.loc["centred-norm", "AUC"] == 1 and found.loc["centred-norm", "TPR at 1 %"] == 1
    assert found.loc["norm", "AUC"] == 0.5 and found.loc["norm", "TPR at 1 %"] == 0
    assert found.loc["receipt-loss", "steered"] == 3  # losses were worked out
    assert "often-chosen" not in found.index  # everybody takes part


def test_losses_at_receipt_are_those_that_the_client_met(pair):
    first, later = (
        [r.losses for r in receipts(pair.honest[0]) if r.round == round] for round in (1, 2)
    )
    assert all(len(losses) == 1 for losses in first) and all(len(x) == 2 for x in later)
    assert [losses[0] for losses in later] == [losses[0] for losses in first]
    assert all(1.5 < losses[0] < 3.5 for losses in first)  # ten classes, a random head: log 10


def test_gradients_at_receipt_are_those_of_the_clients_own_samples(pair):
    """Summed over the batch, single gradients are the first step's; norms are at least its norm."""
    steered, honest = (
        {r.client: r.gradients() for r in receipts(run) if r.round == 1}
        for run in (pair.steered[0], pair.honest[0])
    )
    for client, found in honest.items():
        assert {len(norms) for norms in found.values()} == {8}  # of the batch
        assert all(bool((norms > 0).all()) for norms in found.values())
        for name, norms in steered[client].items():  # equal rows pull on no representation
            small = float(norms.max() / found[name].max())
            assert (small < 1e-4) == (not name.startswith("head")), (name, small)


STEERED = {
    "imprint": ("fedproto", {}, "replaces ModelState or SmallModelState"),
    "fishing": ("fedproto", {}, "replaces ModelState"),
    "imprint resnet": (
        "fedavg",
        {"set": {**SMALL["set"], "model.name": "resnet8"}},
        "no linear layer in its",
    ),
    "fishing:label=10": ("fedsgd", {}, "'steering.label' 10 is none of them"),
    "imprint:directions=0": ("fedavg", {}, "'steering.directions'"),
}


@pytest.mark.parametrize("given", STEERED)
def test_what_weights_cannot_be_steered_into_is_refused_before_training(tmp_path, given):
    protocol, options, said = STEERED[given]
    steering = given.split(" ")[0]
    with pytest.raises((IncompatibleError, ConfigError), match=said):
        api.train(protocol, steering=steering, runs=tmp_path, **{**SMALL, **options})
    assert not list(Path(tmp_path).iterdir())


@pytest.mark.parametrize(("name", "protocol"), [("imprint", "fedavg"), ("fishing", "fedsgd")])
def test_attacks_on_what_a_server_prepares_are_refused_of_an_honest_one(tmp_path, name, protocol):
    run = api.train(protocol, runs=tmp_path, **SMALL)
    with pytest.raises(IncompatibleError, match=f"steering {name}; the server of this run is hon"):
        api.attack(run, name, target="update", threat="strong", device="cpu")


def test_what_is_no_twin_is_refused(pair):
    with pytest.raises(IncompatibleError, match="is no honest twin of"):
        HonestTwins(pair.steered, pair.steered)
    with pytest.raises(IncompatibleError, match="has an honest server"):
        honest_twin(pair.honest[0].settings)


def test_a_steering_that_the_protocol_gives_no_hold_is_refused_before_training(tmp_path):
    with pytest.raises(IncompatibleError, match="replaces HeadState; the server of this protocol"):
        api.train("fedproto", steering="null-head", runs=tmp_path, **SMALL)
    with pytest.raises(IncompatibleError, match="clients have the numbers 0 to 2"):
        api.train("fedgh", steering="isolate:victim=3", runs=tmp_path, **SMALL)
    with pytest.raises(ConfigError, match="Did you mean 'null-head'"):
        api.train("fedgh", steering="nullhead", runs=tmp_path, **SMALL)
    assert not list(Path(tmp_path).iterdir())


def test_a_steered_variant_is_in_no_mean_with_honest_ones():
    sweep = {"protocols": ["fedgh", "fedproto"], "steerings": ["none", "isolate:victim=1"]}
    wanted = read_sweep(sweep, {}, name="x")
    mark = "ACTIVE SERVER (isolate, all rounds)"
    assert [v.label for v in wanted.variants] == [
        "fedgh", f"fedgh, {mark}", "fedproto", f"fedproto, {mark}",
    ]  # fmt: skip
    shared = read_sweep({"protocols": ["fedgh"]}, {"steering": "null-head:rounds=1"}, name="x")
    assert [v.label for v in shared.variants] == [f"fedgh, {MARK}"]


def test_separation_counts_by_hand():
    inside, outside = torch.tensor([1.0, 3.0]), torch.tensor([2.0, 2.0, 0.0])
    found = detection_auc(inside, outside)  # of 6 pairs 1 > 0, 3 > 2, 2, 0
    assert found["AUC"] == pytest.approx(4 / 6) and found["TPR at 1 %"] == 0.5
    assert (found["steered"], found["honest"]) == (2, 3)


@pytest.mark.slow
def test_an_isolated_victim_is_attacked_in_spite_of_secure_aggregation(tmp_path):
    options = {**SMALL, "rounds": 1, "defense": "secagg", "runs": tmp_path}
    with pytest.raises(IncompatibleError, match="the server sees one sum over clients a round"):
        attacked(api.train("fedproto", **options))
    isolated = api.train("fedproto", steering="isolate:victim=1,helpers=2", **options)
    result = attacked(isolated)
    assert set(result.frame()["client"]) == {1} and len(result.frame()) > 1
    told = result.trial.lines()["Attacker"]
    assert "ACTIVE SERVER (isolate, all rounds)" in told and "honest" not in told
    few = api.train("fedproto", steering="isolate:victim=1,helpers=1", **options)
    with pytest.raises(IncompatibleError, match="the server sees one sum"):
        attacked(few)
