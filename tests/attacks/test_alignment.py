"""Gradients along an update: whitening finds members where the cosine does not."""

import pytest
import torch
from torch import Tensor, nn

from fedre_privacy.attacks.alignment import Alignment, OwnListAlignment, by_own_list, by_strangers
from fedre_privacy.core.artifacts import ModelState
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.rng import stream
from fedre_privacy.core.types import Broadcast, Candidates, Observation, Upload
from fedre_privacy.eval.membership import auc
from fedre_privacy.threats.base import threats

WIDTH, COUNT = 1000, 150


def slopes(seed: int, count: int = COUNT) -> Tensor:
    """Gradients that are far from isotropic, spreads .97^j, and share a direction."""
    scale = 0.97 ** torch.arange(WIDTH)
    return (torch.randn(count, WIDTH, generator=stream(seed, "slopes")) + 0.5) * scale


@pytest.fixture(scope="module")
def update():
    own = slopes(0)
    members = torch.rand(COUNT, generator=stream(0, "members")) < 0.5
    return own, members, own[members].sum(0)


def test_whitening_tells_what_the_cosine_does_not(update):
    own, members, along = update
    cosine = own @ along / own.norm(dim=1)
    assert auc(cosine, members) <= 0.75
    assert auc(by_own_list(own, along, 1e-2), members) >= 0.95
    strangers = by_strangers(own, slopes(1, 400), along, 1e-3)
    assert auc(strangers, members) > auc(cosine, members) + 0.1


def test_known_noise_belongs_into_the_ridge(update):
    own, members, along = update
    noise = 0.3 * float(along.norm()) / WIDTH**0.5
    noisy = along + noise * torch.randn(WIDTH, generator=stream(2, "noise"))
    aware = auc(by_own_list(own, noisy, 1e-4, noise), members)
    assert aware >= auc(by_own_list(own, noisy, 1e-4), members) + 0.05


def test_an_update_of_noise_is_at_chance(update):
    own, members, along = update
    found = []
    for seed in range(20):
        noise = torch.randn(WIDTH, generator=stream(seed, "nothing"))
        found.append(auc(by_own_list(own, noise, 1e-2), members))
        found.append(auc(by_strangers(own, slopes(1, 400), noise, 1e-3), members))
    assert sum(found) / len(found) == pytest.approx(0.5, abs=0.03)


def observation(threat: str = "strong") -> tuple[Observation, Tensor]:
    """Two clients that took one step on half of their images from a model that was broadcast."""
    rng = stream(0, "observed")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(36, 4))
    images = torch.rand(60, 1, 6, 6, generator=rng)
    labels = torch.randint(4, (60,), generator=rng)
    clients, members = torch.arange(60) % 2, torch.rand(60, generator=rng) < 0.5
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    uploads = []
    for client in (0, 1):
        own = members & (clients == client)
        loss = nn.functional.cross_entropy(model(images[own]), labels[own])
        steps = torch.autograd.grad(loss, list(model.parameters()))
        sent = {k: v - 0.1 * g for (k, v), g in zip(before.items(), steps, strict=True)}
        uploads.append(Upload(client, 1, (ModelState(sent),)))
    aux = torch.rand(50, 1, 6, 6, generator=rng)
    granted = threat == "strong"
    return (
        Observation(
            threat=threats.get(threat),
            targets=tuple(uploads),
            uploads=tuple(uploads),
            broadcasts=(Broadcast(1, (0, 1), (ModelState(before),)),),
            extractors={},
            image_shape=(1, 6, 6),
            num_classes=4,
            aux=aux if granted else None,
            aux_labels=torch.randint(4, (50,), generator=rng) if granted else None,
            candidates=Candidates(images, labels, clients),
            models={(client, 1): model for client in (0, 1)},
        ),
        members,
    )


@pytest.mark.parametrize("attack", [Alignment(), OwnListAlignment()])
@pytest.mark.parametrize("threat", ["strong", "realistic"])
def test_one_step_tells_who_made_it(attack, threat):
    seen, members = observation(threat)
    found = attack(seen)
    assert auc(found.scores, members) > 0.8
    assert found.notes[0] == (attack.assumes or "strangers' images")


def test_fewer_parameters_are_those_of_the_last_layers():
    seen, members = observation()
    assert auc(Alignment(parameters=4)(seen).scores, members) >= 0.5  # the bias alone


def test_whitening_without_strangers_is_refused():
    seen, _ = observation("realistic")
    alone = Candidates(
        *(
            part[seen.candidates.clients == 0]
            for part in (seen.candidates.images, seen.candidates.labels, seen.candidates.clients)
        )
    )
    one = Observation(**{**vars(seen), "targets": seen.targets[:1], "candidates": alone})
    with pytest.raises(IncompatibleError, match="there are none"):
        Alignment()(one)
