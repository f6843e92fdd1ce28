"""Which image is it: what counts as retrieved, what a guess retrieves, and what is refused."""

from dataclasses import replace

import pytest
import torch

from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.eval.retrieval_scores import LineUps, evaluate_retrieval

CLIENTS, EACH, AMONG, CLASSES = 6, 8, 10, 4
N = CLIENTS * EACH
M = N * (AMONG + 1) + 5 * CLASSES


def asked(**other):
    """Line-ups of ten images of one class, with stand-ins; five public images of each class."""
    target_labels = torch.arange(N) % CLASSES
    rows = torch.arange(N * (AMONG + 1)).reshape(N, AMONG + 1)
    labels = torch.cat([target_labels.repeat_interleave(AMONG + 1), torch.arange(20) % CLASSES])
    given = LineUps(
        index=rows[:, :AMONG], stand_in=rows[:, AMONG], labels=labels,
        pool=torch.arange(M) >= N * (AMONG + 1), target_labels=target_labels,
        clients=torch.arange(CLIENTS).repeat_interleave(EACH), sizes=torch.ones(N).long(),
        commonest=torch.zeros(N).long(),
    )  # fmt: skip
    return replace(given, **other)


def noise(seed=1):
    return torch.randn(N, M, generator=torch.Generator().manual_seed(seed))


def right():
    """The original highest, images of its class above the others."""
    line_ups = asked()
    alike = line_ups.labels == line_ups.target_labels[:, None]
    scores = 0.01 * noise() + alike.double()
    scores[torch.arange(N), line_ups.index[:, 0]] += 5
    return scores


def test_the_right_scores_retrieve_everything():
    card = evaluate_retrieval(right(), asked())
    for key in ("retrieved1", "retrieved5", "present", "class_found"):
        assert card.get(key).value == 1, key
    assert card.get("retrieved1").floor == pytest.approx(1 / AMONG)
    assert card.get("class_found").floor == pytest.approx(1 / CLASSES)
    assert card.n == N and card.verdict.word == "leaks"
    assert "100.0 % of the originals first among 10" in card.verdict.because


def test_noise_retrieves_what_a_guess_does():
    cards = [evaluate_retrieval(noise(seed), asked()) for seed in range(20)]
    for key, chance in (
        ("retrieved1", 1 / AMONG), ("retrieved5", 5 / AMONG), ("present", 0.5),
        ("class_found", 1 / CLASSES),
    ):  # fmt: skip
        mean = sum(card.get(key).value for card in cards) / len(cards)
        assert mean == pytest.approx(chance, abs=0.03), key
    assert sum(card.verdict.word == "leaks" for card in cards) <= 2


def test_the_class_alone_retrieves_no_more_than_a_guess_that_knows_it():
    line_ups = asked()
    scores = (line_ups.labels == line_ups.target_labels[:, None]).double()
    card = evaluate_retrieval(scores, line_ups)
    assert card.get("class_found").value == 1
    for key in ("retrieved1", "retrieved5", "present"):
        assert card.get(key).over == pytest.approx(0), key
    assert card.verdict.word != "leaks"


def test_no_score_is_the_lowest():
    lost = right()
    lost[torch.arange(N), asked().index[:, 0]] = torch.nan
    card = evaluate_retrieval(lost, asked())
    assert card.get("retrieved1").value == 0 and card.diverged == 0
    nothing = evaluate_retrieval(torch.full((N, M), torch.nan), asked())
    assert nothing.get("retrieved1").over == pytest.approx(0) and nothing.diverged == N


def test_scores_of_the_wrong_targets_are_at_the_floor():
    card = evaluate_retrieval(right().roll(1, 0), asked())
    assert card.get("retrieved1").value < 0.25 and card.verdict.word != "leaks"


def test_targets_without_a_class_or_a_stand_in_have_no_such_measure():
    line_ups = asked(target_labels=torch.full((N,), -1), stand_in=torch.full((N,), -1))
    card = evaluate_retrieval(right(), line_ups)
    assert card.get("class_found").value is None and card.get("present").value is None
    assert card.get("retrieved1").value == 1 and card.verdict.word == "leaks"


def test_sizes_are_told_apart():
    card = evaluate_retrieval(right(), asked(sizes=1 + torch.arange(N) % 2))
    assert card.get("retrieved1", "1").n == N / 2 == card.get("retrieved1", "2-30").n


@pytest.mark.parametrize(
    "scores, other, says",
    [
        (torch.zeros(N, M - 1), {}, "one a target and candidate"),
        (torch.zeros(N, M), {"index": torch.zeros(N, 1).long()}, "two images at least"),
    ],
)
def test_what_cannot_be_scored_is_refused(scores, other, says):
    with pytest.raises(IncompatibleError, match=says):
        evaluate_retrieval(scores, asked(**other))
