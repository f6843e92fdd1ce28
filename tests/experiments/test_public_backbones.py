"""Federations over a frozen public backbone: trained, recorded, attacked; features once."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torchvision
from safetensors.torch import save_file

from fedre_privacy.core.errors import ConfigError, IncompatibleError
from fedre_privacy.core.types import Knowledge
from fedre_privacy.data.base import datasets
from fedre_privacy.experiments.attack import attack, prepare_attack
from fedre_privacy.experiments.compatibility import check_ahead
from fedre_privacy.federation.recorder import read_messages
from fedre_privacy.models.families import build_model
from fedre_privacy.models.frozen_backbone import FeatureTable, SharedBackbone, frozen_backbones
from fedre_privacy.models.norm import take_statistics
from fedre_privacy.models.preprocessing import FitImages
from fedre_privacy.runs import backbone_features
from fedre_privacy.runs.backbone_features import FOLDER, compute_features
from fedre_privacy.runs.resolution import resolve_attack
from fedre_privacy.runs.training import train
from fedre_privacy.sandbox.observation_files import pack, unpack

SMALL = "torchvision:shufflenet_v2_x0_5"
SHAPE = (1, 16, 16)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A file of weights whose features differ between images."""
    torch.manual_seed(3)
    net = torchvision.models.get_model(SMALL.partition(":")[2], weights=None)
    digits = datasets.get("digits")(size=16, per_class=4).load()
    ready = FitImages(SHAPE, 32, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    take_statistics(net, [ready(digits.floats(torch.arange(40)))])
    path = tmp_path_factory.mktemp("weights") / "small.safetensors"
    save_file(net.state_dict(), path)
    return path


@pytest.fixture(scope="module")
def public(tiny, weights):
    """Settings of a tiny federation over a frozen backbone."""

    def made(protocol="fedgh", trainable="projection", **sections):
        model = {
            "name": SMALL, "checkpoint": str(weights), "trainable": trainable, "size": 32,
            "dim": 8 if trainable == "projection" else None,
        }  # fmt: skip
        return tiny(protocol=protocol, model=model, train={"lr": 0.01}, **sections)

    return made


@pytest.fixture
def passes(monkeypatch):
    """How many images the backbones have computed in this test, with none remembered before it."""
    seen: list[int] = []
    compute = SharedBackbone.compute

    def counted(self, images):
        seen.append(len(images))
        return compute(self, images)

    monkeypatch.setattr(SharedBackbone, "compute", counted)
    return seen


def backbone_of(settings):
    (found,) = frozen_backbones(build_model(settings.model, 0, SHAPE, 10))
    return found


def forget(settings):
    shared = backbone_of(settings)
    shared.table = FeatureTable(shared.length)


def vectors(run):
    uploads, _ = read_messages(run.folder / "uploads")
    return [t for u in uploads for a in u.artifacts for t in a.tensors().values()]


@pytest.mark.parametrize("protocol", ["fedre", "fedproto", "fedavg"])
def test_a_cached_run_is_an_uncached_one_up_to_rounding(public, tmp_path, monkeypatch, protocol):
    settings = public(protocol)
    forget(settings)
    cached = vectors(train(settings, runs=tmp_path / "cached"))
    monkeypatch.setattr(
        SharedBackbone, "features_of", torch.no_grad()(lambda self, images: self.compute(images))
    )
    monkeypatch.setattr(backbone_features, "compute_features", lambda *given: None)
    monkeypatch.setattr("fedre_privacy.runs.training.compute_features", lambda *given: None)
    anew = vectors(train(settings, runs=tmp_path / "anew"))
    assert len(cached) == len(anew) > 0
    for one, other in zip(cached, anew, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    assert max(float(t.float().std()) for t in cached if t.numel() > 8) > 1e-3


def test_features_are_computed_once_for_all_runs_of_a_folder(public, tmp_path, passes):
    settings = public("fedgh")
    forget(settings)
    passes.clear()
    first = train(settings, runs=tmp_path)
    images = sum(first.record["class_counts"][k][c] for k in range(3) for c in range(10))
    assert sum(passes) >= images and sum(passes) == len(backbone_of(settings).table)
    for protocol, trainable in (("fedre", "projection"), ("fedgh", "head")):
        passes.clear()
        forget(settings)
        train(public(protocol, trainable), runs=tmp_path)
        assert set(passes) <= {2}  # two images of noise, on which a new model is tried
    assert (tmp_path / FOLDER).is_dir() and not list(first.folder.rglob(FOLDER))


def test_a_computation_goes_on_where_it_was_stopped(public, tmp_path, monkeypatch, passes):
    monkeypatch.setattr(backbone_features, "PART", 8)
    settings = public()
    shared = backbone_of(settings)
    images = settings.data.load().images[:40]
    seen: list[int] = []

    def stop(event):
        seen.append(event.data["done"])
        if len(seen) == 2:
            raise KeyboardInterrupt

    forget(settings)
    with pytest.raises(KeyboardInterrupt):
        compute_features([shared], images, tmp_path, stop)
    assert seen == [8, 16]
    passes.clear()
    forget(settings)
    compute_features([shared], images, tmp_path)
    assert sum(passes) == 24 and len(shared.table) == 40
    (damaged, *_) = sorted((tmp_path / FOLDER).rglob("*.safetensors"))
    damaged.write_bytes(damaged.read_bytes()[:-9])
    forget(settings)
    passes.clear()
    compute_features([shared], images, tmp_path)
    assert sum(passes) == 8  # a damaged file is computed anew


def test_only_what_is_trained_crosses_the_wire_and_is_kept(public, tmp_path):
    run = train(public("fedavg", "head"), runs=tmp_path)
    uploads, _ = read_messages(run.folder / "uploads")
    (state,) = uploads[-1].artifacts
    assert sorted(state.params) == ["head.bias", "head.weight"]
    assert sorted(run.state(0, 2)) == ["head.bias", "head.weight"]
    again = run.model(0, 2)
    images = settings_images(run)
    assert again.extractor(images).shape == (3, 1024) and again(images).shape == (3, 10)


def settings_images(run):
    return run.settings.data.load().images[:3].float() / 255


def test_prototypes_of_a_frozen_extractor_stay_and_those_of_a_projection_move(public, tmp_path):
    moved = {}
    for trainable in ("head", "projection"):
        run = train(public("fedgh", trainable), runs=tmp_path)
        uploads, _ = read_messages(run.folder / "uploads")
        first, last = ([u for u in uploads if u.round == r and u.client == 0] for r in (1, 2))
        means = [one.artifacts[0].rows() for one in (*first, *last)]
        moved[trainable] = float((means[0] - means[1]).abs().max())
    assert moved["head"] == 0 and moved["projection"] > 1e-4


def test_several_backbones_are_one_federation(public, tiny, weights, tmp_path):
    pytest.importorskip(
        "efficientnet_lite_pytorch", reason="pip install 'fedre-privacy[backbones]'"
    )
    model = {
        "name": "efficientnet-lite0,efficientnet-lite1", "trainable": "projection", "size": 32,
        "dim": 8,
    }  # fmt: skip
    run = train(tiny(protocol="fedproto", model=model, data={"per_class": 3}), runs=tmp_path)
    assert run.record["dim"] == 8
    assert [type(run.model(k, 2).extractor.mapping).__name__ for k in (0, 1)] == ["Linear"] * 2
    names = [run.model(k, 2).extractor.backbone.shared.identity[:18] for k in (0, 1, 2)]
    assert names == ["efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite0"]


# --- the attacker ---------------------------------------------------------------------------------


def ask(name, threat, target="prototypes"):
    problems: list[str] = []
    values = {
        "target": target, "threat": threat, "attack": name, "eval": {"targets": 4, "ceiling": 0},
    }  # fmt: skip
    settings = resolve_attack(values, {}, problems)
    if settings is None or problems:
        raise ConfigError(*problems)
    return settings


def test_the_server_holds_a_public_extractor_and_no_trained_one(public, tmp_path):
    run = train(public("fedgh", "head"), runs=tmp_path)
    seen = prepare_attack(run, ask("linear", "public-backbone")).observation
    assert {Knowledge.EXTRACTOR, Knowledge.AUX_DATA} <= seen.threat.grants
    assert Knowledge.HEADS not in seen.threat.grants and not seen.heads
    images = settings_images(run)
    assert torch.equal(seen.extractors[0, 2](images), backbone_of(run.settings).features_of(images))
    trained = public("fedgh", "projection")
    with pytest.raises(IncompatibleError, match="needs EXTRACTOR") as caught:
        check_ahead(trained, ask("linear", "public-backbone"))
    assert "model.trainable=head" in str(caught.value)
    with pytest.raises(IncompatibleError):
        check_ahead(trained, ask("dip", "public-backbone"))
    check_ahead(trained, ask("linear", "strong"))


def test_an_observation_carries_the_weights_and_no_path(public, tmp_path, weights):
    run = train(public("fedgh", "projection"), runs=tmp_path / "runs")
    seen = prepare_attack(run, ask("dip", "strong")).observation
    room = tmp_path / "room"
    room.mkdir()
    pack(seen, room)
    assert str(weights.parent) not in (room / "observation.json").read_text()
    there = unpack(room)
    images = settings_images(run)
    key = next(iter(seen.extractors))
    assert there.extractors[key].mapping is not seen.extractors[key].mapping
    torch.testing.assert_close(there.extractors[key](images), seen.extractors[key](images))


@pytest.mark.slow
@pytest.mark.parametrize("name", [{"name": "dip", "steps": 2}, {"name": "linear"}])
def test_attacks_on_images_go_through_the_whole_model(public, tmp_path, name):
    run = train(public("fedgh", "head"), runs=tmp_path)
    result = attack(run, ask(name, "public-backbone"))
    assert result.outcome.images.shape[1:] == SHAPE
    assert bool(result.outcome.images.isfinite().all())


def mixtures(public, trainable, runs, **scheme):
    """A run of FedRE that keeps all rounds, more than a client has classes."""
    protocol = {"name": "fedre", **scheme}
    record = {"keep_every": 1}
    values = public(protocol, trainable, record=record)
    values = dataclasses.replace(values, train=dataclasses.replace(values.train, rounds=14))
    return train(values, runs=runs)


def test_mixtures_of_a_frozen_extractor_are_solved_without_it(public, tmp_path):
    asked = ask("disentangle", "frozen-extractor")
    trial = prepare_attack(mixtures(public, "head", tmp_path), asked)
    seen = trial.observation
    assert not seen.extractors and seen.aux is None and not seen.models and not seen.initial
    found = asked.attack(seen)
    error = trial.truth.compare(found.vectors, found.clients, found.labels).relative_error
    assert float(error.max()) < 1e-3 and bool(found.certified.all()) and len(error) > 6
    assert all("static" in note for note in found.notes)
    fixed = mixtures(public, "head", tmp_path, entanglement="vap")
    found = asked.attack(prepare_attack(fixed, asked).observation)
    assert not bool(found.vectors.isfinite().any()) and "cannot be told apart" in found.notes[0]


def test_a_projection_that_is_trained_is_no_frozen_extractor(public, tmp_path):
    asked = ask("disentangle", "frozen-extractor")
    trial = prepare_attack(mixtures(public, "projection", tmp_path), asked)
    threat = trial.observation.threat
    assert (
        Knowledge.FROZEN_EXTRACTOR not in threat.grants and "clients train theirs" in threat.summary
    )
    found = asked.attack(trial.observation)
    assert all("kalman" in note for note in found.notes)
    error = trial.truth.compare(found.vectors, found.clients, found.labels).relative_error
    assert bool((error[found.certified] < 0.1).all())
