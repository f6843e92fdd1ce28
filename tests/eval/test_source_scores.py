"""Whose image is this: what counts as found, what a guess finds, and what is refused."""

import pytest
import torch

from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.eval.membership import GRANTED, RECEIVED
from fedre_privacy.eval.source_scores import evaluate_sources

CLIENTS, EACH = 6, 8


def asked():
    """Every client gives eight images of one class; each is asked about all six clients."""
    sources = torch.arange(CLIENTS).repeat_interleave(EACH)
    records = torch.arange(len(sources)).repeat_interleave(CLIENTS)
    clients = torch.arange(CLIENTS).repeat(len(sources))
    shuffled = torch.randperm(len(records), generator=torch.Generator().manual_seed(0))
    own = clients == sources[records]
    return own[shuffled], records[shuffled], clients[shuffled]


def scored(scores, baseline=None, beside=RECEIVED):
    own, records, clients = asked()
    return evaluate_sources(
        scores(own, clients), own, records, clients, torch.zeros_like(clients),
        baseline=torch.zeros(len(own)) if baseline is None else baseline(own, clients),
        beside=beside,
    )  # fmt: skip


def noise(own, clients, seed=1):
    return torch.randn(len(own), generator=torch.Generator().manual_seed(seed))


def told(own, clients):
    return own + 0.1 * noise(own, clients)


def test_the_right_scores_find_every_source():
    card = scored(told)
    assert card.get("source").value == 1 and card.get("source_pairs").value == 1
    assert card.get("source").floor == pytest.approx(1 / CLIENTS)
    assert card.n == CLIENTS * EACH and card.verdict.word == "leaks"
    assert card.rows["right"].tolist() == [1.0] * card.n
    assert card.rows["client"].tolist() == sorted(card.rows["client"])


def test_a_client_whose_scores_are_all_higher_does_not_win():
    """Scores are compared within a client and class: a louder model is not a likelier source."""
    card = scored(lambda own, clients: told(own, clients) * (1 + clients) + 100.0 * clients)
    assert card.get("source").value > 0.95


def test_noise_finds_what_a_guess_finds():
    found = [
        scored(lambda own, clients, seed=seed: noise(own, clients, seed)).get("source").value
        for seed in range(20)
    ]
    assert sum(found) / len(found) == pytest.approx(1 / CLIENTS, abs=0.04)


@pytest.mark.parametrize("value", [0.0, torch.nan])
def test_equal_scores_and_none_are_a_guess(value):
    card = scored(lambda own, clients: torch.full((len(own),), value))
    assert card.get("source").value == pytest.approx(1 / CLIENTS)
    assert card.get("source_pairs").value == pytest.approx(0.5)
    assert card.verdict.word == "inconclusive"
    assert "could still be up to +" in card.verdict.because
    assert card.diverged == (card.n if value != value else 0)


def test_to_give_up_on_the_source_does_not_pay():
    card = scored(lambda own, clients: torch.where(own, torch.nan, noise(own, clients)))
    assert card.get("source").value == 0


def test_a_granted_model_must_be_beaten():
    equal = scored(told, baseline=told, beside=GRANTED).verdict
    assert equal.word == "inconclusive" and "over the model alone" in equal.because
    assert scored(told, baseline=noise, beside=GRANTED).verdict.word == "leaks"
    assert scored(told, baseline=told).verdict.word == "leaks"


def test_few_clients_say_little():
    own = torch.tensor([True, False, False, True])
    records, clients = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])
    card = evaluate_sources(
        own.float(), own, records, clients, torch.zeros(4), baseline=torch.zeros(4),
        beside=RECEIVED,
    )  # fmt: skip
    assert card.verdict.word == "inconclusive" and "2 clients of at least 5" in str(card.verdict)


def test_every_image_has_one_source():
    own, records, clients = asked()
    labels, nothing = torch.zeros_like(clients), torch.zeros(len(own))
    for wrong in (torch.zeros_like(own), torch.ones_like(own)):
        with pytest.raises(IncompatibleError, match="exactly one source"):
            evaluate_sources(
                nothing, wrong, records, clients, labels, baseline=nothing, beside=RECEIVED
            )
    with pytest.raises(IncompatibleError, match="one entry per image and client"):
        evaluate_sources(
            nothing[:3], own, records, clients, labels, baseline=nothing, beside=RECEIVED
        )
