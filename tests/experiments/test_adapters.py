"""Federations over adapters: what is sent, counted, averaged and read."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torchvision
from safetensors.torch import save_file

from fedre_privacy.attacks.base import Context, attacks, can_read
from fedre_privacy.attacks.gradients.model_pairs import exchanges
from fedre_privacy.attacks.span import of_tokens
from fedre_privacy.core.artifacts import AdapterState, ModelState
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.data.base import datasets
from fedre_privacy.experiments.attack import prepare_attack
from fedre_privacy.federation.recorder import read_messages
from fedre_privacy.models.families import build_model
from fedre_privacy.models.norm import take_statistics
from fedre_privacy.models.preprocessing import FitImages
from fedre_privacy.models.split import num_parameters
from fedre_privacy.reproduction.measured_traffic import measure_traffic
from fedre_privacy.runs.resolution import resolve_attack
from fedre_privacy.runs.training import train

SMALL = "shufflenet_v2_x0_5"
SHAPE = (1, 16, 16)
READERS = ("span", "alignment", "loss-membership", "labels", "update-inversion", "head")


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A file of weights whose features differ between images."""
    torch.manual_seed(3)
    net = torchvision.models.get_model(SMALL, weights=None)
    digits = datasets.get("digits")(size=16, per_class=4).load()
    ready = FitImages(SHAPE, 32, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    take_statistics(net, [ready(digits.floats(torch.arange(40)))])
    path = tmp_path_factory.mktemp("weights") / "small.safetensors"
    save_file(net.state_dict(), path)
    return path


@pytest.fixture(scope="module")
def settings(tiny, weights):
    """Settings of a tiny federation over adapters."""

    def made(protocol="fedavg", rank=4, epochs=4, **sections):
        model = {
            "name": f"torchvision:{SMALL}", "checkpoint": str(weights), "trainable": "adapter",
            "rank": rank, "size": 32, "dim": None,
        }  # fmt: skip
        own = {"lr": 0.02, "epochs": epochs, "shared_test": 0}
        return tiny(protocol=protocol, model=model, train=own, **sections)

    return made


@pytest.fixture(scope="module")
def run(settings, tmp_path_factory):
    """A finished run of 24 local epochs a round on twenty digits of each class."""
    own = settings(
        epochs=24, data={"per_class": 20}, partition={"alpha": 1.0}, record={"keep_every": 1}
    )
    return train(own, runs=tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def short(settings, tmp_path_factory):
    """A finished run of one local epoch a round on twelve digits of each class."""
    return train(settings(epochs=1), runs=tmp_path_factory.mktemp("short"))


def trial_of(run, name, target="membership", **given):
    problems: list = []
    wanted = {"attack": {"name": name, **given}, "target": target, "threat": "strong"}
    asked = resolve_attack(wanted, {}, problems, uploads=run.settings.protocol.uploads)
    assert asked is not None and not problems, problems
    return prepare_attack(run, asked)


def noisy(seen, seed):
    """The observation with uploads whose change is noise of the same size."""
    rng = torch.Generator().manual_seed(seed)
    sent = {(b.round, k): b.artifacts[0].params for b in seen.broadcasts for k in b.recipients}

    def changed(upload):
        kept = []
        for one in upload.artifacts:
            if isinstance(one, AdapterState):
                before = sent[upload.round, upload.client]
                one = AdapterState({
                    name: before[name] + torch.randn(value.shape, generator=rng)
                    * (value - before[name]).square().mean().sqrt()
                    for name, value in one.params.items()
                })  # fmt: skip
            kept.append(one)
        return replace(upload, artifacts=tuple(kept))

    return replace(
        seen, targets=tuple(map(changed, seen.targets)), uploads=tuple(map(changed, seen.uploads))
    )


def test_adapters_and_head_alone_are_sent_averaged_and_counted(short):
    run = short
    uploads, broadcasts = read_messages(run.folder / "uploads")
    sent = [a for u in uploads if u.round for a in u.artifacts]
    given = [a for b in broadcasts if b.round for a in b.artifacts]
    assert {type(a) for a in sent + given} == {AdapterState}
    model = build_model(run.settings.model, 0, SHAPE, 10)
    own = dict(model.named_parameters())
    assert all(set(a.params) == set(own) for a in sent)
    assert all(".down." in name or ".up." in name or name.startswith("head.") for name in own)
    count, seen = num_parameters(model), measure_traffic(run)
    assert set(vars(seen.complete["up"]).values()) == {3 * count}
    assert set(vars(seen.nbytes["up"]).values()) == {4 * 3 * count}
    assert seen.formula is not None and seen.formula.up.complete == 3 * count
    first = [u.artifacts[0].params for u in uploads if u.round == 1]
    second = next(b for b in broadcasts if b.round == 2).artifacts[0].params
    trained = [sum(row) for row in run.record["class_counts"]]
    for name in own:
        wanted = sum(n * one[name].double() for n, one in zip(trained, first, strict=True))
        torch.testing.assert_close(second[name].double(), wanted / sum(trained), rtol=0, atol=1e-6)


def test_attacks_on_models_read_the_kind():
    for name in READERS:
        assert can_read(attacks.get(name), AdapterState), name
    assert not can_read(attacks.get("unpool"), AdapterState)
    assert issubclass(AdapterState, ModelState) and AdapterState.like == (ModelState,)


@pytest.mark.slow
def test_members_are_read_from_adapters_and_not_from_noise(run):
    trial = trial_of(run, "loss-membership")

    def auc(seen):
        return trial.score(trial.settings.attack(seen, Context(0))).get("auc")

    found = auc(trial.observation)
    assert found.n >= 40 and found.value > max(0.5, found.floor) + 0.15
    controls = [auc(noisy(trial.observation, seed)).value for seed in range(8)]
    assert sum(controls) / len(controls) < 0.5 + 0.08


@pytest.mark.slow
def test_an_adapter_is_attacked_with_the_public_backbone(run):
    (exchange,) = list(exchanges(trial_of(run, "span").observation).values())[:1]
    model = build_model(run.settings.model, 0, SHAPE, 10)
    frozen = dict(model.named_buffers())
    for one in (exchange.before, exchange.after):
        assert all(torch.equal(value, frozen[name]) for name, value in one.named_buffers())
    read = of_tokens(exchange, torch.zeros(2, *SHAPE))
    assert exchange.settled and read and all(name.endswith(".down") for name in read)


@pytest.mark.parametrize("protocol", ["fedavg", "fedgh"])
def test_a_rank_that_no_layer_has_is_refused_before_training(settings, tmp_path, protocol):
    with pytest.raises(IncompatibleError, match="'model.rank' is 1000, more than the width"):
        train(settings(protocol, rank=1000), runs=tmp_path)
    assert not list(tmp_path.glob("*/uploads"))


@pytest.mark.slow
def test_a_server_imprints_bottlenecks_and_says_so(settings, tmp_path):
    steering = [{"name": "imprint", "directions": 1, "samples": 4}]
    own = settings("fedsgd", epochs=1, steering=steering, record={"keep_every": 1})
    run = train(own, runs=tmp_path)
    trial = trial_of(run, "imprint", "update", by={"name": "linear"})
    assert trial.observation.threat.behaviour == "malicious"
    found = trial.settings.attack(trial.observation, Context(0))
    assert "inputs of the imprinted layer read" in found.stopped_because
    assert bool((found.images != 0.5).any())


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["fedala", "fedsgd"])
def test_other_protocols_of_whole_models_share_adapters(settings, tmp_path, protocol):
    run = train(settings(protocol, epochs=1), runs=tmp_path)
    uploads, broadcasts = read_messages(run.folder / "uploads")
    assert {type(a) for b in broadcasts if b.round for a in b.artifacts} == {AdapterState}
    count = num_parameters(build_model(run.settings.model, 0, SHAPE, 10))
    sent = [sum(t.numel() for a in u.artifacts for t in a.tensors().values()) for u in uploads]
    assert max(sent) == count
