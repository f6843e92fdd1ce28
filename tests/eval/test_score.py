"""The whole evaluation on answers whose worth is known."""

import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.types import Mixture, Truth
from fedre_privacy.eval import PublicImages, evaluate, mean_images
from fedre_privacy.eval.measures import BETTER
from fedre_privacy.eval.metrics import metrics

SINGLES = [1] * 60


def originals(truth):
    return truth.images[truth.mixture.sample]


def noisy(images, spread, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return (images + spread * torch.randn(images.shape, generator=rng)).clamp(0, 1)


def shuffled(truth):
    """The same images with each target owned by another client's image."""
    return Truth(
        truth.images[truth.mixture.sample.roll(7)][truth.mixture.sample.argsort()],
        truth.labels, truth.clients, truth.mixture, truth.target_clients, truth.target_labels,
    )  # fmt: skip


def test_exact_answers_leak_and_shuffled_truth_brings_them_to_the_floor(
    make_truth, make_rec, public, usual
):
    truth = make_truth(SINGLES, clients=60)
    rec = make_rec(noisy(originals(truth), 0.02))
    real = evaluate(rec, truth, public, metrics=usual, gallery=50)
    assert real.get("psnr").value > 30
    assert real.get("psnr").over_interval[0] > 10
    assert real.get("psnr_over_mismatched").over_interval[0] > 10
    assert real.get("hit1").value == 1.0
    assert real.verdict.word == "leaks"

    fake = evaluate(rec, shuffled(truth), public, metrics=usual, gallery=50)
    assert fake.get("psnr").over < 0
    assert fake.get("psnr").value < real.get("psnr").value - 10
    assert fake.get("psnr_over_mismatched").over_interval[0] < 0
    assert fake.get("hit1").value < 0.2
    assert fake.verdict.word == "no evidence"


def test_a_grey_card_is_not_better_than_the_floor(make_truth, make_rec, public, usual):
    truth = make_truth(SINGLES, clients=60)
    rec = make_rec(torch.full_like(originals(truth), 0.5))
    found = evaluate(rec, truth, public, metrics=usual)
    assert found.verdict.word == "no evidence"
    assert "could still be up to +" in found.verdict.because
    assert found.verdict.because.endswith("floors of 200 public images")
    assert found.get("psnr").over <= 0
    assert found.get("psnr").over_text().startswith("no: -")


def test_the_answer_of_the_best_floor_does_not_leak(make_truth, make_rec, public, usual):
    truth = make_truth(SINGLES)
    classes = torch.stack([public.images[public.labels == c].mean(dim=0) for c in range(4)])
    found = evaluate(make_rec(classes[truth.target_labels]), truth, public, metrics=usual)
    psnr = found.get("psnr")
    assert psnr.floor_name == "class-mean-image"
    assert psnr.over == pytest.approx(0, abs=1e-6)
    assert found.verdict.word != "leaks"


def test_few_targets_or_a_wide_interval_are_inconclusive(make_truth, make_rec, public, usual):
    truth = make_truth([1] * 4)
    grey = torch.full_like(originals(truth), 0.5)
    few = evaluate(make_rec(grey), truth, public, metrics=usual)
    assert few.verdict.word == "inconclusive" and "too few" in few.verdict.because
    truth = make_truth([1] * 40, clients=4)
    grey = torch.full_like(originals(truth), 0.5)
    few = evaluate(make_rec(grey), truth, public, metrics=usual)
    assert few.verdict.word == "inconclusive" and "40 targets of 4 clients" in few.verdict.because
    truth = make_truth([1] * 8)
    wide = originals(truth).clone()
    mean = public.images.mean(dim=0)
    wide[:] = mean + 0.02 * torch.randn(8, 1, 1, 1, generator=torch.Generator().manual_seed(0))
    wide[0] = originals(truth)[0] * 0.9
    found = evaluate(make_rec(wide), truth, public, metrics={}, gallery=50)
    assert found.verdict.word == "inconclusive"


def test_images_that_were_found_leak_however_few_their_clients(make_truth, make_rec, public, usual):
    truth = make_truth([1] * 9, clients=4)
    found = evaluate(make_rec(originals(truth)), truth, public, metrics=usual)
    assert found.verdict.word == "leaks"
    assert "little is said of other clients" in found.verdict.because
    # one image that is sought nine times counts once
    same = Truth(truth.images, truth.labels, truth.clients,
                 dataclasses.replace(truth.mixture, sample=truth.mixture.sample[:1].repeat(9)),
                 truth.target_clients, truth.target_labels)  # fmt: skip
    found = evaluate(make_rec(originals(same)), same, public, metrics=usual)
    assert "(p = 0.02 by guessing)" in found.verdict.because


def test_one_client_with_half_of_the_targets_does_not_cost_all_power(
    make_truth, make_rec, public, usual
):
    truth = make_truth([1] * 48)
    truth.target_clients[:24], truth.target_clients[24:] = 0, 1 + torch.arange(24) % 8
    answers = noisy(originals(truth), 0.15)
    psnr = evaluate(make_rec(answers), truth, public, metrics=usual).get("psnr")
    assert psnr.over > 0 and psnr.p < 1e-3


def test_rows_floors_and_measures_agree(make_truth, make_rec, public, usual):
    truth = make_truth([1, 2, 40, 1, 5, 31] * 4)
    scores = evaluate(make_rec(noisy(mean_images(truth), 0.1)), truth, public, metrics=usual)
    rows = scores.rows
    assert rows.columns.tolist()[:6] == [
        "target", "client", "label", "support_size", "psnr", "psnr_floor",
    ]  # fmt: skip
    assert rows["support_size"].tolist() == [1, 2, 40, 1, 5, 31] * 4
    groups = {"1": (1, 1), "2-30": (2, 30), ">30": (31, 99)}
    assert [scores.get("psnr", group).n for group in groups] == [8, 8, 8]
    for name in usual:
        found = scores.get(name)
        assert found.value == pytest.approx(rows[name].mean())
        assert found.sd == pytest.approx(rows[name].std())
        assert found.quantiles[2] == pytest.approx(rows[name].quantile(0.95))
        sign = 1 if found.higher_is_more_leakage else -1
        gap = (rows[name] - rows[f"{name}_floor"]).mean()
        assert found.over == pytest.approx(sign * gap)
        assert found.over_interval[0] <= found.over <= found.over_interval[1]
        table = scores.floor_means.set_index("floor")[name]
        chosen = found.floors_chosen
        assert sum(chosen.values()) == 24 and found.floor_name == max(chosen, key=chosen.get)
        best = table.max() if found.higher_is_more_leakage else table.min()
        assert sign * found.floor <= sign * best + 1e-9
        assert rows[f"{name}_floor"].mean() == pytest.approx(found.floor)
        for group, (low, high) in groups.items():
            inside = rows[rows["support_size"].between(low, high)]
            assert scores.get(name, group).value == pytest.approx(inside[name].mean())
    of_mean = scores.get("psnr_of_mean_mse").value
    assert scores.get("psnr").value >= of_mean
    mse = scores.get("mse255").value / 255**2
    assert of_mean == pytest.approx(-10 * torch.tensor(mse).log10().item())
    assert torch.equal(scores.originals, truth.images[rows["original"].to_list()])
    json.dumps(scores.record(), allow_nan=False)


def test_every_floor_goes_through_the_same_rule(make_truth, make_rec, public, usual):
    """Best match rises with the number of candidates, so its floors must rise as well."""
    truth = make_truth([30] * 12)
    rec = make_rec(torch.full((12, 1, 12, 12), 0.5))
    by_rule = {
        rule: evaluate(rec, truth, public, metrics=usual, rule=rule, nearest=nearest)
        for rule, nearest in (("best", None), ("nearest-rep", truth.mixture.sample[::30]))
    }
    floors = {rule: scores.floor_means.set_index("floor") for rule, scores in by_rule.items()}
    for name in ("grey", "mean-image", "random-image"):
        assert floors["best"].loc[name, "psnr"] > floors["nearest-rep"].loc[name, "psnr"] + 1
    grey = by_rule["best"].get("psnr").value
    assert floors["best"].loc["grey", "psnr"] == pytest.approx(grey)


def test_mean_image_rule_scores_against_the_mixture(make_truth, make_rec, public, usual):
    truth = make_truth([9] * 10, mixed=True)
    scores = evaluate(make_rec(mean_images(truth)), truth, public, metrics=usual, rule="mean-image")
    assert scores.get("psnr").value == 100
    assert scores.rows["original"].tolist() == [-1] * 10
    assert scores.rows["label"].tolist() == [-1] * 10


def test_diverged_answers_count_as_the_worst_floor_and_as_not_found(
    make_truth, make_rec, public, usual
):
    truth = make_truth(SINGLES)
    answers = noisy(originals(truth), 0.1)
    whole = evaluate(make_rec(answers), truth, public, metrics=usual)
    holes = answers.clone()
    holes[[3, 10, 11]] = float("nan")
    rec = make_rec(holes)
    flagged = rec.diverged.clone()
    flagged[20] = True
    rec = Reconstruction(holes, rec.prior, rec.fit, rec.trace, rec.trace_steps, "steps", flagged)
    scores = evaluate(rec, truth, public, metrics=usual)
    lost = [3, 10, 11, 20]
    assert scores.diverged == 4 and scores.n == 60 == scores.targets
    assert scores.get("ssim").n == 60 == scores.get("hit1").n
    assert scores.rows.index[scores.rows["diverged"]].tolist() == lost
    gone, kept = scores.rows.loc[lost], scores.rows.drop(index=lost)
    assert (gone["hit1"] == 0).all() and gone["rr"].to_list() == pytest.approx([0.01] * 4)
    assert gone["original"].tolist() == [-1] * 4
    assert (gone["fit"] == kept["fit"].max()).all()
    black = evaluate(make_rec(torch.zeros_like(holes)), truth, public, metrics=usual).rows.loc[lost]
    for name in usual:
        sign = 1 if scores.get(name).higher_is_more_leakage else -1
        assert (sign * gone[name] <= sign * gone[f"{name}_floor"] + 1e-9).all()
        assert (sign * gone[name] <= sign * black[name] + 1e-9).all()
        assert kept[name].to_list() == whole.rows.drop(index=lost)[name].to_list()
    assert (scores.floor_means["n"] == 60).all()


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("rule", [pytest.param("best", marks=pytest.mark.slow), "mean-image"])
def test_abstaining_never_scores_higher_than_a_floor_image(
    make_truth, make_rec, public, usual, rule, dark
):
    """Whatever the metric, and where black itself is a good answer too."""
    truth = make_truth([1, 3, 40] * 10, clients=6)
    if dark:
        truth = Truth(truth.images * 0.15, truth.labels, truth.clients, truth.mixture,
                      truth.target_clients, truth.target_labels)  # fmt: skip
        public = PublicImages(public.images * 0.15, public.labels)
    good = noisy(mean_images(truth), 0.1)
    base = evaluate(make_rec(good), truth, public, metrics=usual, rule=rule)
    worst = base.rows["psnr"].nsmallest(8).index.to_list()
    quitter = good.clone()
    quitter[worst] = float("nan")
    quits = evaluate(make_rec(quitter), truth, public, metrics=usual, rule=rule)
    fallbacks = (
        torch.full_like(good, 0.5), torch.zeros_like(good), public.images.mean(0).expand_as(good),
    )  # fmt: skip
    assert quits.diverged == 8
    for image in fallbacks:
        answers = good.clone()
        answers[worst] = image[worst]
        stays = evaluate(make_rec(answers), truth, public, metrics=usual, rule=rule)
        for name in usual:
            sign = 1 if stays.get(name).higher_is_more_leakage else -1
            assert sign * quits.get(name).value <= sign * stays.get(name).value + 1e-9
        for name in ("hit1", "hit5", "rr"):
            assert quits.get(name).value <= stays.get(name).value
    # and the control that borrows the attack's own answers is still there
    assert (
        "mismatched" in set(quits.floor_means["floor"])
        and quits.rows["psnr_mismatched"].notna().all()
    )


def test_giving_everything_up_is_reported_not_raised(make_truth, make_rec, public, usual):
    truth = make_truth([1] * 8)
    rec = make_rec(torch.full((8, 1, 12, 12), float("nan")))
    scores = evaluate(rec, truth, public, metrics=usual)
    assert scores.n == 8 and scores.diverged == 8
    assert scores.get("psnr").over < 0
    assert scores.verdict.word == "inconclusive"
    json.dumps(scores.record(), allow_nan=False)
    assert scores.table()[0][BETTER].startswith("no: -")


def test_targets_that_all_share_their_images_have_no_mismatched_control(
    make_truth, make_rec, public, usual
):
    """Otherwise an attack on one client over many rounds would be compared with itself."""
    base = make_truth([6], clients=1)
    many = base.mixture
    rows = torch.arange(10).repeat_interleave(6)
    mixture = type(many)(rows, many.sample.repeat(10), many.weight.repeat(10), 10)
    truth = Truth(
        base.images, base.labels, base.clients, mixture, torch.zeros(10, dtype=torch.int64),
        torch.zeros(10, dtype=torch.int64),
    )  # fmt: skip
    scores = evaluate(make_rec(noisy(mean_images(truth), 0.01)), truth, public, metrics=usual,
                      rule="mean-image")  # fmt: skip
    assert "mismatched" not in set(scores.floor_means["floor"])
    assert scores.get("psnr_over_mismatched").over is None
    assert scores.get("psnr").over_interval[0] > 0  # of this client's targets
    assert scores.verdict.word == "inconclusive"
    assert "10 targets of 1 client are too few" in scores.verdict.because


def test_the_verdict_names_a_group_that_leaks_alone(make_truth, make_rec, public):
    truth = make_truth([1] * 10 + [40] * 60, clients=40)
    images = torch.full((70, 1, 12, 12), 0.5)
    mean = public.images.mean(dim=0)
    images[:10] = mean + 0.5 * (mean_images(truth)[:10] - mean)
    found = evaluate(make_rec(images), truth, public, metrics={}, gallery=9, noun="prototype")
    assert found.verdict.groups == {
        "1": "leaks", "2-30": "too few to say", ">30": "no evidence",
    }  # fmt: skip
    assert [row["verdict"] for row in found.groups()] == ["leaks", "no evidence"]
    assert found.verdict.word == "leaks" and found.get("psnr").over < 0
    because = found.verdict.because
    assert because.startswith("the 10 prototypes of one image: 10 of 10 found among 9 (guess 11.1")
    assert "; no evidence for the other 60: " in because
    assert "; n = 70 of 40 clients" in because

    four = make_truth([1] * 8 + [40] * 60, clients=4)
    four.target_clients[8:] = torch.arange(60) % 10
    images = images[2:]
    images[:8] = 0.5
    found = evaluate(make_rec(images), four, public, metrics={}, gallery=50)
    assert found.verdict.groups["1"] == "too few to say"
    assert found.verdict.word == "no evidence"
    assert "too few to say of those of one image alone" in found.verdict.because


def test_the_verdict_says_that_the_attacker_knows_which(make_truth, make_rec, public, usual):
    truth = make_truth(SINGLES, clients=10)
    half = torch.arange(len(truth.target_labels)) % 2 == 0
    images = torch.where(half[:, None, None, None], originals(truth), torch.full((1,), 0.5))
    rec = make_rec(images)
    for sign, said in ((1, True), (-1, False)):
        sure = dataclasses.replace(
            rec, confidence=sign * half.float() + torch.arange(len(half)) / 1e3
        )
        found = evaluate(sure, truth, public, metrics=usual)
        assert ("the attacker knows which: 15 of the 15" in found.verdict.because) == said
        assert "a ranking" in found.words["confidence"]


def test_same_seed_same_scores(make_truth, make_rec, public, usual):
    truth = make_truth([1, 4] * 8)
    rec = make_rec(noisy(mean_images(truth), 0.2))
    once, again, other = (
        evaluate(rec, truth, public, metrics=usual, seed=seed) for seed in (3, 3, 4)
    )
    pd.testing.assert_frame_equal(once.rows, again.rows)
    assert once.record() == again.record() != other.record()


def test_psnr_is_added_for_the_verdict(make_truth, make_rec, public):
    truth = make_truth([1] * 8)
    scores = evaluate(
        make_rec(originals(truth)), truth, public, metrics={"mse": metrics.get("mse")()}
    )
    assert [m.key for m in scores.whole()] == ["psnr", "mse", "hit1"]


def test_table_and_its_neighbours(make_truth, make_rec, public, usual):
    truth = make_truth(SINGLES)
    scores = evaluate(make_rec(noisy(originals(truth), 0.1)), truth, public, metrics=usual)
    table = scores.with_others({"ceiling": scores}, {"ceiling": "ceiling"}).table()
    assert [row["metric"] for row in table] == [
        "PSNR dB", "SSIM", "MSE", "MSE, 0-255", "found among 100",
    ]  # fmt: skip
    assert all(row["ceiling"] == row["this attack"] for row in table)
    mse = scores.get("mse255")
    assert mse.over > 0  # turned: less error is more leakage
    assert table[3][BETTER].startswith(f"yes: {mse.over:+.0f} [")
    guess = scores.get("hit1").floor
    assert table[-1]["floor"] == f"{100 * guess:.1f} % by a guess that knows the class"
    assert f"60 of 60 found among 100 (guess {100 * guess:.1f} %)" in scores.verdict.because
    assert table[-1][BETTER].startswith("yes: +") and "points [" in table[-1][BETTER]
    brief = [row["metric"] for row in scores.table(brief=True)]
    assert brief == ["PSNR dB", "found among 100"]


def test_parts_that_do_not_belong_together_are_refused_at_once(make_truth, make_rec, public, usual):
    truth = make_truth([1] * 6)
    with pytest.raises(IncompatibleError) as caught:
        evaluate(make_rec(torch.rand(5, 3, 12, 12)), truth, public, metrics=usual)
    assert len(caught.value.problems) == 4
    assert "(5, 3, 12, 12)" in str(caught.value) and "6 targets" in str(caught.value)


def test_images_outside_the_range_are_refused(make_truth, make_rec, public, usual):
    truth = make_truth([1] * 6)
    with pytest.raises(IncompatibleError, match="divide by 255"):
        evaluate(make_rec(originals(truth) * 255), truth, public, metrics=usual)


def test_floors_on_real_images_agree_with_independent_figures(make_rec):
    """CIFAR-10: means of PSNR from other subsets; -10 log10(var) of the whole for mean colour."""
    folder = os.environ.get("FEDRE_TEST_DATA")
    if folder is None or not (Path(folder) / "cifar10-lossless-6k.npz").is_file():
        pytest.skip("FEDRE_TEST_DATA does not name a folder with cifar10-lossless-6k.npz")
    with np.load(Path(folder) / "cifar10-lossless-6k.npz", allow_pickle=False) as file:
        arrays = {name: file[name] for name in ("x_train", "y_train", "x_test", "y_test")}
    images, others = (
        torch.from_numpy(arrays[name]).permute(0, 3, 1, 2).float() / 255
        for name in ("x_train", "x_test")
    )
    labels, other_labels = (torch.from_numpy(arrays[name]).long() for name in ("y_train", "y_test"))
    count = 400
    index = torch.arange(count)
    truth = Truth(
        images[:count], labels[:count], index % 10,
        Mixture(index, index, torch.ones(count), count), index % 10, labels[:count],
    )  # fmt: skip
    rec = make_rec(torch.full((count, 3, 32, 32), 0.5))
    scores = evaluate(rec, truth, PublicImages(others, other_labels), metrics={}, gallery=20)
    psnr = scores.floor_means.set_index("floor")["psnr"]
    expected = {"grey": 12.7, "mean-image": 13.0, "class-mean-image": 13.1, "random-image": 9.6}
    for name, value in expected.items():
        assert psnr[name] == pytest.approx(value, abs=0.5), name
    mean_colour = scores.floor_means.set_index("floor").loc["mean-colour", "psnr_of_mean_mse"]
    assert mean_colour == pytest.approx(12.01, abs=0.15)
    assert scores.verdict.word != "leaks"
