"""Published learnt defences do what they are for, on clients small enough to train in a second."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import fedre_privacy
from fedre_privacy.core.artifacts import HeadState
from fedre_privacy.defenses.base import defenses
from fedre_privacy.defenses.cem import information_bound, mixture_of
from fedre_privacy.defenses.information_bottleneck import OFFSET, normal_divergence
from fedre_privacy.defenses.local_pass import ExtractorPass, LocalBatch, ModelShapes
from fedre_privacy.defenses.nopeek import distance_correlation
from fedre_privacy.protocols.base import protocols


@pytest.fixture
def trained(federation):
    """Train clients that send every representation, and return one with its images and labels."""

    def run(name, protocol="fedallrep", **settings):
        fed = federation(protocols.get(protocol)(), rounds=3, epochs=8, lr=0.1)
        fed.run(defenses=[defenses.get(name)(**settings)])
        (client, *_) = fed.clients
        images, labels = client.fitted.batch(slice(None))
        return fed, client, images, labels

    return run


def test_nopeek_lowers_the_distance_correlation(trained):
    found = []
    for strength in (0.0, 5.0):
        _, client, images, _ = trained("nopeek", strength=strength)
        found.append(float(distance_correlation(images, client.model.extractor(images)).detach()))
    assert found[1] < found[0] - 0.1, found


def test_the_decoder_in_the_loop_does_worse_against_a_trained_extractor(trained):
    found = []
    for strength in (0.0, 20.0):
        _, client, images, _ = trained("adversarial-decoder", strength=strength, decoder_lr=0.01)
        decoder = client.memory["defense 0"]["decoder"]
        made = decoder(client.model.extractor(images))
        found.append(float((made - images).square().mean().detach()))
    assert found[1] > 1.1 * found[0], found


def test_the_bottleneck_lowers_the_nats(trained):
    found = []
    for strength in (0.0, 0.1):
        _, client, images, _ = trained("information-bottleneck", strength=strength)
        mean = client.model.extractor(images)
        spread = nn.functional.softplus(client.memory["defense 0"]["spread"](mean) - OFFSET)
        found.append(float(normal_divergence(mean, spread).mean().detach()))
    assert found[1] < 0.75 * found[0], found


def test_shredder_learns_its_noise(trained):
    found = []
    for strength in (0.0, 0.1):
        fed, client, *_ = trained("shredder", strength=strength, tensors=2)
        noise = client.memory["defense 0"]["noise"]()
        found.append(float(noise.abs().mean().detach()))
        assert noise.requires_grad and f"{client.id}/defense 0/noise.tensors" in fed.state()
    assert found[1] > 2 * found[0], found


def test_cem_lowers_its_bound(trained):
    found = []
    for strength in (0.0, 1.0):
        _, client, images, labels = trained("cem", strength=strength)
        reps = client.model.extractor(images)
        number, centre = client.memory["defense 0"]["centres"](reps, labels)
        found.append(float(information_bound(*mixture_of(reps, centre, number), 0.1).detach()))
    assert found[1] < 0.7 * found[0], found


def test_disco_leaves_out_what_only_the_decoder_needs():
    """Coordinates 0 to 7 are the image, 8 to 11 the class: the mask learns which is which."""
    defense = defenses.get("disco")(strength=20.0, ratio=0.6, hidden=16)
    torch.manual_seed(0)
    modules = dict(defense.own_modules(ModelShapes((1, 2, 4), 12, 4)))
    pruner, decoder, head = modules["pruner"], modules["decoder"], nn.Linear(12, 4)
    rival = torch.optim.Adam(decoder.parameters(), lr=0.01)
    own = torch.optim.Adam([*pruner.parameters(), *head.parameters()], lr=0.01)
    for _ in range(300):
        images, labels = torch.rand(32, 1, 2, 4), torch.randint(4, (32,))
        whole = torch.cat([images.flatten(1), nn.functional.one_hot(labels, 4).float()], 1)
        seen = ExtractorPass(images, torch.flatten, modules, training=True)
        reps = defense.change(whole, seen)
        batch = LocalBatch(
            images, labels, reps, whole, torch.flatten, head, modules, torch.Generator()
        )
        rival.zero_grad()
        defense.opponent_loss(replace(batch, reps=reps.detach())).backward()
        rival.step()
        own.zero_grad()
        (nn.functional.cross_entropy(head(reps), labels) + defense.training_term(batch)).backward()
        own.step()
    sent = defense.change(whole, replace(seen, training=False))
    assert ((sent != 0).sum(1) <= 5).all()
    assert float((sent[:, :8] != 0).double().mean()) < 0.2  # by chance 5 of 12
    assert float((head(sent).argmax(1) == labels).double().mean()) > 0.9


def test_soteria_sends_what_it_leaves(trained):
    fed, client, images, _ = trained("soteria", strength=0.5)
    sent = next(u for u in fed.uploads(3) if u.client == client.id).artifacts[0].rows()
    whole = client.model.extractor(images)
    assert ((sent != 0).sum(1) <= 3).all() and ((whole != 0).sum(1) > 3).any()
    assert torch.allclose(sent, torch.where(sent == 0, 0.0, whole), atol=1e-5)


def test_mixup_sends_representations_of_mixes_anew_in_each_round(trained):
    fed, client, images, _ = trained("mixup")
    one, other = (fed.uploads(r)[0].artifacts[0].rows() for r in (2, 3))
    whole = client.model.extractor(images)
    apart = float(((other - whole).norm() / whole.norm()).detach())
    assert 0.1 < apart < 1 and not torch.allclose(one, other, atol=1e-2)


@pytest.mark.parametrize("name", ["mixup", "soteria"])
def test_updates_are_of_what_is_changed(name, trained, federation):
    changed, *_ = trained(name, "lg-fedavg")
    plain = federation(protocols.get("lg-fedavg")(), rounds=3, epochs=8, lr=0.1)
    plain.run()
    one, other = (fed.uploads(1)[0].artifacts[0] for fed in (changed, plain))
    assert isinstance(one, HeadState)
    assert not torch.allclose(one.params["weight"], other.params["weight"], atol=1e-4)


def test_the_same_seed_gives_the_same_numbers(trained):
    for name in ("cem", "shredder", "mixup", "information-bottleneck"):
        one, other = (trained(name)[0].uploads(3) for _ in range(2))
        for left, right in zip(one, other, strict=True):
            assert torch.equal(left.artifacts[0].rows(), right.artifacts[0].rows())


@pytest.mark.slow
def test_nopeek_costs_accuracy_and_takes_decibels_from_a_linear_attack(tmp_path):
    decibels, accuracy = [], []
    for defense in (None, "nopeek:strength=3"):
        run = fedre_privacy.train(
            "fedallrep", "digits", clients=3, rounds=20, seed=1, defense=defense,
            partition="iid", runs=tmp_path,
            set={
                "data.size": 16, "data.per_class": 40, "model.name": "cnn4", "model.dim": 64,
                "train.batch_size": 16, "train.lr": 0.1, "train.epochs": 3,
            },
        )  # fmt: skip
        result = fedre_privacy.attack(
            run, "linear", "uploaded", threat="strong", targets=12, isolation="same-process"
        )
        psnr = next(m for m in result.card.measures if (m.key, m.group) == ("psnr", ""))
        decibels.append(psnr.value)
        accuracy.append(run.record["final"]["acc_post_local_pooled"])
    assert decibels[1] < decibels[0] - 2, decibels
    assert accuracy[1] < accuracy[0] - 0.2, accuracy
