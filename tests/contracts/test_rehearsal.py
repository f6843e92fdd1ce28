"""A server's rehearsal is the clients' own training, whatever the protocol: the evaluator checks.

With the true samples, the true start and the true order of batches it ends at the models that were
kept. Attacks have none of these; they rehearse on public images, from a seed of their own.
"""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from fedre_privacy.core.config import plain, plain_plugin
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.federation.rehearsal import Rehearsed
from fedre_privacy.protocols.base import protocols
from fedre_privacy.runs.preparing import prepare
from fedre_privacy.runs.starting import shared_start
from fedre_privacy.runs.training import train

from .conftest import settings_of

CLIENT, LAST = 1, 3
ROUNDS = (1, 2, LAST)


def rehearsal_of(run) -> Rehearsed:
    training = plain(run.settings.train)
    del training["seed"]
    _, sent = run.messages().of()
    return Rehearsed(
        protocol=plain_plugin(run.settings.protocol),
        model=plain(run.settings.model),
        training=training,
        defense=tuple(
            plain_plugin(one) for one in prepare(run.settings, torch.device("cpu")).defense
        ),
        image_shape=run.image_shape,
        num_classes=len(run.record["classes"]),
        broadcasts=tuple(sent),
    )


def truth_of(run, client=CLIENT):
    """The client's samples as floats, its labels, and its start."""
    data = run.settings.data.load()
    index = run.split_indices()[0][client]
    classes = len(run.record["classes"])
    start = shared_start(run.settings, client, run.image_shape, classes)
    return data.floats(index), data.labels[index], start


def farthest(found, run, client=CLIENT, round=LAST) -> float:
    kept = run.model(client, round).extractor.state_dict()
    return max(
        float((value - kept[name]).abs().max())
        for name, value in found.extractor.state_dict().items()
        if value.is_floating_point()
    )


SELDOM = {
    "fd", "fedala", "fedallrep", "fedapen", "fedavg", "fedavgdbe", "fedgen", "fedkd",
    "fedral", "fedsgd", "fedtgp", "fml", "fpl", "lg-fedavg", "local",
}  # fmt: skip
"""Rehearsed in the slow tests only; a protocol of your own always is."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in SELDOM else name
        for name in protocols.names()
    ],
)
def test_with_the_truth_it_ends_at_the_kept_model(trained, name):
    run = trained(name)
    images, labels, start = truth_of(run)
    seed = run.settings.train.seed
    held = rehearsal_of(run)
    again = Rehearsed.from_plain(json.loads(json.dumps(held.plain())), held.broadcasts)
    found = again(CLIENT, start, images, labels, ROUNDS, seed)
    assert set(found) == set(ROUNDS)
    for round, model in found.items():
        assert farthest(model, run, round=round) < 1e-5
        assert not model.training and not any(p.requires_grad for p in model.parameters())
    assert max(farthest(start, run, round=round) for round in found) > 1e-3  # it moved
    sent = again.uploads(CLIENT, start, images, labels, ROUNDS, seed)
    true = {u.round: u.artifacts for u in run.messages().of()[0] if u.client == CLIENT}
    for round in ROUNDS:
        made, uploaded = ([a.tensors() for a in one] for one in (sent[round], true.get(round, ())))
        assert [one.keys() for one in made] == [one.keys() for one in uploaded]
        for one, other in zip(made, uploaded, strict=True):
            assert all(torch.allclose(one[n], other[n], atol=1e-4) for n in one)


def test_other_orders_and_images_end_elsewhere(trained):
    run = trained("fedgh")
    images, labels, start = truth_of(run)
    rehearse = rehearsal_of(run)
    before = {name: value.clone() for name, value in start.state_dict().items()}
    seed = run.settings.train.seed
    found = [
        rehearse(CLIENT, start, images, labels, ROUNDS, seed + 1),
        rehearse(CLIENT, start, images.flip(3), labels, ROUNDS, seed),
    ]
    assert all(farthest(one[LAST], run) > 1e-4 for one in found)
    assert all(value.equal(before[name]) for name, value in start.state_dict().items())


def test_rounds_in_which_a_client_sat_out_are_left_out(tmp_path):
    settings = settings_of("fedproto", train={"clients": 3, "rounds": 4, "batch_size": 8,
                                              "join_ratio": 0.67})  # fmt: skip
    run = train(settings, runs=tmp_path)
    uploads, _ = run.messages().of()
    for client in range(3):
        rounds = sorted(u.round for u in uploads if u.client == client)
        images, labels, start = truth_of(run, client)
        found = rehearsal_of(run)(client, start, images, labels, rounds, settings.train.seed)
        assert all(farthest(m, run, client, r) < 1e-5 for r, m in found.items())


def test_training_under_a_declared_defence_is_rehearsed_with_it(tmp_path):
    settings = settings_of("fedgh", defense=[{"name": "dp-sgd", "noise": 0.5, "clip": 1.0}])
    run = train(settings, runs=tmp_path)
    images, labels, start = truth_of(run)
    defended = rehearsal_of(run)
    plainly = dataclasses.replace(defended, defense=())
    seed = settings.train.seed
    near, far = (
        farthest(one(CLIENT, start, images, labels, ROUNDS, seed)[LAST], run)
        for one in (defended, plainly)
    )
    assert near < 1e-5 < 1e-3 < far  # its noise comes from the seed and the client's own images


def test_it_holds_settings_and_broadcasts_alone(trained):
    run = trained("fedre")
    held = rehearsal_of(run)
    said = json.dumps(held.plain())
    assert "seed" not in held.plain()["training"] and "class_counts" not in said
    assert {item.name for item in dataclasses.fields(held)} == {
        "protocol", "model", "training", "defense", "image_shape", "num_classes", "broadcasts",
    }  # fmt: skip


def test_fresh_weights_are_nobodys(trained):
    run = trained("fedgh")
    _, _, start = truth_of(run)
    rehearse = rehearsal_of(run)
    one, same, other = (rehearse.blank(CLIENT, seed) for seed in (0, 0, 1))
    weights = [m.head.weight for m in (one, same, other, start)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2]) and not torch.equal(weights[0], weights[3])


def test_nothing_to_train_on_is_refused(trained):
    run = trained("fedgh")
    images, labels, start = truth_of(run)
    with pytest.raises(IncompatibleError, match="an image or more"):
        rehearsal_of(run)(CLIENT, start, images[:0], labels[:0], (1,), 0)
