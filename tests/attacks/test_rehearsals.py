"""Copies of clients that a server trains: with whose class shares, and what heads tell by them."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from fedre_privacy.attacks.base import Context
from fedre_privacy.attacks.common.frozen_modules import outputs
from fedre_privacy.attacks.gradients.head_uploads import class_shares_of
from fedre_privacy.attacks.head import HeadUpdate
from fedre_privacy.attacks.inversion.class_means import ClassMeans, Mixes
from fedre_privacy.attacks.inversion.shadow_models import (
    CONCENTRATION,
    UploadComparison,
    _ShadowTraining,
    class_shares,
    train_shadow_models,
    upload_of,
)
from fedre_privacy.core.artifacts import Counts
from fedre_privacy.core.channels import Channel, ClippingStep, Masking
from fedre_privacy.core.errors import FedreError
from fedre_privacy.core.types import KnownDefense
from fedre_privacy.experiments.attack import prepare_attack
from fedre_privacy.experiments.compatibility import check_ahead
from fedre_privacy.runs.resolution import require_resolved, resolve_attack, resolve_training
from fedre_privacy.runs.training import train


def trained(folder, protocol):
    problems: list[str] = []
    values = {
        "data": {"name": "digits", "size": 16, "per_class": 60},
        "partition": {"name": "pra", "alpha": 0.1},
        "protocol": {"name": protocol},
        "train": {"rounds": 1, "clients": 5, "seed": 1},
        "record": {"keep_first": True},
    }
    settings = require_resolved(resolve_training(values, {}, problems), problems)
    return train(settings, runs=folder)


def asked(attack, threat="public-init", **sections):
    problems: list[str] = []
    values = {"attack": attack, "threat": threat, "eval": {"round": 1, "ceiling": 0}, **sections}
    return require_resolved(resolve_attack(values, {}, problems), problems)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def prototypes(folder):
    return trained(folder, "fedgh")


@pytest.fixture(scope="module")
def heads(folder):
    return trained(folder, "lg-fedavg")


def true_shares(run):
    counts = torch.tensor(run.record["class_counts"]).double()
    return counts / counts.sum(1, keepdim=True)


def apart(run, seen, client, copy):
    """How far a copy's representations of public images are from the client's own."""
    true = outputs(run.extractor(client, 1), seen.aux.float())
    made = outputs(copy.get_submodule("extractor"), seen.aux.float())
    return float((made - true).norm() / (true - true.mean(0)).norm())


def test_class_shares_are_sought_where_uploads_do_not_count_them(prototypes):
    seen = prepare_attack(prototypes, asked("shadow")).observation
    true = true_shares(prototypes)
    shape = torch.distributions.Dirichlet(torch.full((1,), CONCENTRATION).expand(10))
    missed, drawn_apart, sought_apart, guessed = [], [], [], []
    for client in range(3):
        found = class_shares(seen, Context(3), (client, 1), tries=6)
        share = found.mean(0)
        assert share.sum().item() == pytest.approx(1) and not share[true[client] == 0].any()
        missed.append((share - true[client]).abs().sum())
        torch.manual_seed(client)
        guess = (shape.sample((200,)) * (true[client] > 0)).double()
        guessed.append((guess / guess.sum(1, keepdim=True) - true[client]).abs().sum(1).mean())
        for shares, apart_by in ((None, drawn_apart), (found, sought_apart)):
            (copy,) = train_shadow_models(seen, Context(3), (client, 1), 1, shares)
            apart_by.append(apart(prototypes, seen, client, copy))
    assert sum(missed) < 0.6 * sum(guessed)
    assert sum(sought_apart) < 0.7 * sum(drawn_apart)


def test_shares_that_are_counted_are_used_as_they_are(prototypes):
    seen = prepare_attack(prototypes, asked("shadow")).observation
    client, counts = 0, torch.tensor(prototypes.record["class_counts"][0])
    named = ClassMeans.uploaded(upload_of(seen, (client, 1))).classes
    told = [
        dataclasses.replace(u, artifacts=(*u.artifacts, Counts(counts[named])))
        if (u.client, u.round) == (client, 1)
        else u
        for u in seen.uploads
    ]
    counting = dataclasses.replace(seen, uploads=tuple(told))
    shares = class_shares(counting, Context(3), (client, 1), tries=8)
    (copy,) = train_shadow_models(counting, Context(3), (client, 1), 1, shares)
    own = _ShadowTraining(seen, Context(3), (client, 1), False)(0, counts.double())
    for name, value in copy.state_dict().items():
        assert value.equal(own.state_dict()[name]), name


def test_a_search_leaves_out_what_is_not_finite(prototypes):
    seen = prepare_attack(prototypes, asked("shadow")).observation
    uploaded = Mixes.uploaded(upload_of(seen, (0, 1)), 10, seen.channel)
    lost = uploaded.rows.clone()
    lost[1:] = torch.nan
    rehearsal = _ShadowTraining(seen, Context(3), (0, 1), False)
    mixes = Mixes(lost, uploaded.weights)
    assert rehearsal.sought(UploadComparison.by(seen, (0, 1)), mixes, 2) is None


def test_heads_tell_class_shares(heads):
    seen = prepare_attack(heads, asked("head")).observation
    true = true_shares(heads)
    missed = [
        (class_shares_of(seen, (client, 1)) - true[client]).abs().sum() for client in range(5)
    ]
    uniform = [(0.1 - one).abs().sum() for one in true]
    assert sum(missed) < 0.3 * sum(uniform)
    assert class_shares_of(seen, (0, 2)) is None


def errors_of(trial, attack, observation=None):
    outcome = attack(observation or trial.observation, Context(trial.attack_seed))
    card = trial.score(outcome)
    return {m.key: m for m in card.measures if not m.group}


def test_heads_are_read_without_an_extractor(heads):
    trial = prepare_attack(heads, asked("head"))
    assert not len(trial.observation.extractors)
    rehearsed = errors_of(trial, HeadUpdate())
    found = errors_of(trial, HeadUpdate(centre="found"))
    assert rehearsed["relative_error"].value < 0.6 * found["relative_error"].value
    assert rehearsed["identified"].value > 0.8
    assert rehearsed["centred_cosine"].value > 0.6


def test_noise_in_place_of_heads_tells_no_prototypes(heads):
    trial = prepare_attack(heads, asked("head"))
    seen, rng = trial.observation, torch.Generator().manual_seed(5)

    def noised(upload):
        made = []
        for one in upload.artifacts:
            if hasattr(one, "params"):
                noise = {
                    name: value + value.std() * torch.randn(value.shape, generator=rng)
                    for name, value in one.params.items()
                }
                one = dataclasses.replace(one, params=noise)
            made.append(one)
        return dataclasses.replace(upload, artifacts=tuple(made))

    blind = dataclasses.replace(
        seen,
        targets=tuple(map(noised, seen.targets)),
        uploads=tuple(map(noised, seen.uploads)),
    )
    found = errors_of(trial, HeadUpdate(), blind)
    assert found["identified"].over < -0.2 and found["centred_cosine"].value < 0.4


@pytest.mark.slow
def test_prototypes_read_off_heads_are_inverted_without_an_extractor(heads):
    own = {"name": "shadow", "moves": 0, "views": 1, "shadows": 2}
    settings = asked(own, target="recovered-prototypes", via={"name": "head"})
    evaluation = dataclasses.replace(settings.evaluation, targets=4)
    settings = dataclasses.replace(settings, evaluation=evaluation)
    trial = prepare_attack(heads, settings)
    assert not len(trial.observation.extractors)
    found = settings.attack(trial.observation, Context(trial.attack_seed))
    assert found.images.isfinite().all()
    rows = trial.score(found).rows
    assert (rows["psnr"] > rows["psnr_mismatched"]).all()


def test_a_rehearsed_centre_needs_the_start(heads):
    settings = asked({"name": "head", "centre": "rehearsed"}, threat="fedre-paper")
    with pytest.raises(FedreError, match="needs ARCHITECTURE"):
        check_ahead(heads.settings, settings)


class Turned(torch.nn.Module):
    """What a copy makes of any image: a vector whose angle and length follow from a share."""

    def __init__(self, share):
        super().__init__()
        angle = share[2] * torch.pi / 2
        self.row = torch.stack([angle.cos(), angle.sin(), 4 * share[2]]) * (0.1 + share[2])

    def forward(self, images):
        return self.row.float().expand(len(images), -1)


@pytest.mark.parametrize("kind", ["each", "bound", "mask"])
def test_a_search_defends_its_copies_as_clients_declare(prototypes, monkeypatch, kind):
    """Lengths and the last coordinate are hidden by the defence; the angle is what is told."""
    seen = prepare_attack(prototypes, asked("shadow")).observation
    true = torch.tensor([0.2, 0.2, 0.6])
    row = Turned(true)(torch.zeros(1))[0]
    channel = {
        "each": Channel(each=(ClippingStep(0.1),)),
        "bound": Channel(rows=(ClippingStep(0.1),)),
        "mask": Channel(rows=(Masking(1.0), ClippingStep(0.1))),
    }[kind]
    if kind == "mask":
        row = row * torch.tensor([1.0, 1.0, 0.0])
    sent = row * 0.1 / row.norm()
    monkeypatch.setattr(
        _ShadowTraining,
        "__call__",
        lambda self, number, share: torch.nn.ModuleDict({"extractor": Turned(share)}),
    )
    weights = torch.zeros(1, 10)
    weights[0, :3] = 1 / 3
    missed = []
    for known in (channel, Channel()):
        told = dataclasses.replace(seen, defenses=(KnownDefense("stub", {}, known),))
        rehearsal = _ShadowTraining(told, Context(3), (0, 1), False)
        compared = UploadComparison.by(told, (0, 1))
        share = rehearsal.sought(compared, Mixes(sent[None], weights), 24).mean(0)
        made = Turned(share).row
        made = made * (sent != 0) if kind == "mask" else made
        missed.append(float(1 - torch.cosine_similarity(made, sent.double(), 0)))
    assert missed[0] < 0.02 and missed[0] < 0.5 * missed[1], missed
