"""A server's rehearsal is the clients' own training: what it depends on.

That it ends at the kept models, under every protocol, is a check of `fedre_privacy.testing`.
"""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.runs.training import train
from fedre_privacy.testing.federation import settings_of, trained_run
from fedre_privacy.testing.protocol_checks import (
    CLIENT,
    ROUNDS,
    distance,
    samples_of,
    shadow_training_of,
)

LAST = ROUNDS[-1]


def test_other_orders_and_images_end_elsewhere():
    run = trained_run("fedgh")
    images, labels, start = samples_of(run)
    rehearse = shadow_training_of(run)
    before = {name: value.clone() for name, value in start.state_dict().items()}
    seed = run.settings.train.seed
    found = [
        rehearse(CLIENT, start, images, labels, ROUNDS, seed + 1),
        rehearse(CLIENT, start, images.flip(3), labels, ROUNDS, seed),
    ]
    assert all(distance(one[LAST], run) > 1e-4 for one in found)
    assert all(value.equal(before[name]) for name, value in start.state_dict().items())


def test_rounds_in_which_a_client_sat_out_are_left_out(tmp_path):
    settings = settings_of("fedproto", train={"clients": 3, "rounds": 4, "batch_size": 8,
                                              "join_ratio": 0.67})  # fmt: skip
    run = train(settings, runs=tmp_path)
    uploads, _ = run.messages().of()
    for client in range(3):
        rounds = sorted(u.round for u in uploads if u.client == client)
        images, labels, start = samples_of(run, client)
        found = shadow_training_of(run)(client, start, images, labels, rounds, settings.train.seed)
        assert all(distance(m, run, client, r) < 1e-5 for r, m in found.items())


def test_training_under_a_declared_defence_is_rehearsed_with_it(tmp_path):
    settings = settings_of("fedgh", defense=[{"name": "dp-sgd", "noise": 0.5, "clip": 1.0}])
    run = train(settings, runs=tmp_path)
    images, labels, start = samples_of(run)
    defended = shadow_training_of(run)
    plainly = dataclasses.replace(defended, defense=())
    seed = settings.train.seed
    near, far = (
        distance(one(CLIENT, start, images, labels, ROUNDS, seed)[LAST], run)
        for one in (defended, plainly)
    )
    assert near < 1e-5 < 1e-3 < far  # its noise comes from the seed and the client's own images


def test_it_holds_settings_and_broadcasts_alone():
    run = trained_run("fedre")
    held = shadow_training_of(run)
    said = json.dumps(held.plain())
    assert "seed" not in held.plain()["training"] and "class_counts" not in said
    assert {item.name for item in dataclasses.fields(held)} == {
        "protocol", "model", "training", "defense", "image_shape", "num_classes", "broadcasts",
    }  # fmt: skip


def test_fresh_weights_are_nobodys():
    run = trained_run("fedgh")
    _, _, start = samples_of(run)
    rehearse = shadow_training_of(run)
    one, same, other = (rehearse.blank(CLIENT, seed) for seed in (0, 0, 1))
    weights = [m.head.weight for m in (one, same, other, start)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2]) and not torch.equal(weights[0], weights[3])


def test_nothing_to_train_on_is_refused():
    run = trained_run("fedgh")
    images, labels, start = samples_of(run)
    with pytest.raises(IncompatibleError, match="an image or more"):
        shadow_training_of(run)(CLIENT, start, images[:0], labels[:0], (1,), 0)
