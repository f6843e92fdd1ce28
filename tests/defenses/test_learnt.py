"""Learnt defences in local training, uploads and predictions."""

import importlib
import runpy
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from fedre_privacy.core.channels import Channel
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.registry import allow_module_paths
from fedre_privacy.defenses.defended_modules import defended_extractor
from fedre_privacy.federation import loop
from fedre_privacy.federation.accuracy import count
from fedre_privacy.federation.captured_steps import CapturedTraining
from fedre_privacy.protocols.base import protocols
from fedre_privacy.runs.training import train
from fedre_privacy.testing import check_defense

planted = runpy.run_path(str(Path(__file__).parent / "planted.py"))


def rows(fed, round=1):
    return {u.client: u.artifacts[0].rows() for u in fed.uploads(round)}


def test_a_term_moves_what_is_learnt(federation):
    made = [federation(protocols.get("fedgh")(), rounds=3) for _ in range(3)]
    for fed, weight in zip(made, (0.0, 0.0, 3.0), strict=True):
        fed.run(defenses=[planted["Short"](weight=weight)])
    plain, again, short = (rows(fed, 3) for fed in made)
    for k in plain:
        assert torch.equal(plain[k], again[k])
        assert short[k].norm() < 0.7 * plain[k].norm()


def test_without_a_term_the_numbers_are_those_of_no_defence(federation):
    free, silent = (federation(protocols.get("fedgh")(), rounds=2) for _ in range(2))
    free.run()
    silent.run(defenses=[planted["Short"](weight=0.0)])
    assert all(torch.equal(one, rows(silent, 2)[k]) for k, one in rows(free, 2).items())


@pytest.mark.parametrize("name", ["Rival", "Gate", "Constant", "Rounded"])
def test_it_trains(name, federation):
    fed = federation(protocols.get("fedgh")(), rounds=2)
    fed.run(defenses=[planted[name]()])
    assert all(one.isfinite().all() for one in rows(fed, 2).values())


@pytest.mark.parametrize(("name", "part"), [("Rival", "guess"), ("Gate", "gate")])
def test_own_modules_learn_and_their_state_is_kept(name, part, federation):
    fed, seen = federation(protocols.get("fedgh")(), rounds=2), []

    def keep(round, clients, sent):
        seen.append(clients[0].memory["defense 0"][part].weight.detach().clone())

    fed.run(defenses=[planted[name]()], keep=keep)
    assert not torch.equal(*seen)
    assert f"0/defense 0/{part}.weight" in fed.state()
    assert all(p.requires_grad for p in fed.clients[0].memory["defense 0"].parameters())


GATE = {"noise": 0.3}


def test_uploads_are_means_of_changed_representations(federation):
    fed = federation(protocols.get("fedgh")(), rounds=1)
    fed.run(defenses=[planted["Constant"]()])
    for upload in fed.uploads(1):
        assert torch.equal(upload.artifacts[0].means, torch.ones_like(upload.artifacts[0].means))


def test_noise_of_uploads_is_fresh_and_independent_of_who_takes_part(federation):
    noisy = planted["Gate"](**GATE)
    full = federation(protocols.get("fedallrep")(), rounds=2)
    full.run(defenses=[noisy])
    some = federation(protocols.get("fedallrep")(), rounds=1, join_ratio=0.34)
    some.run(defenses=[noisy])
    (alone,) = some.uploads(1)
    assert torch.equal(alone.artifacts[0].reps, rows(full)[alone.client])
    client = full.clients[0]
    images = client.train.images.float() / 255
    held = defended_extractor(full.kept[2][0].extractor.eval(), [noisy], client.memory)
    with torch.no_grad():
        apart = rows(full, 2)[0] - held(images)
        drawn = [held.sample(images, torch.Generator().manual_seed(s)) for s in (1, 2)]
    assert apart.std().item() == pytest.approx(GATE["noise"], rel=0.2)
    assert not torch.equal(*drawn)
    assert (drawn[0] - held(images)).std().item() == pytest.approx(GATE["noise"], rel=0.2)


def test_what_a_client_predicts_from_is_changed_and_draws_nothing(federation):
    fed = federation(protocols.get("local")(), rounds=1)
    fed.run(defenses=[planted["Constant"]()])
    client = fed.clients[0]
    counts = [
        count(fed.protocol, client, fed.setting, client.train, given)
        for given in ((planted["Constant"](),), ())
    ]
    assert counts[0].correct in torch.bincount(client.train.labels).tolist()  # one class for all
    assert not client.model.extractor._forward_hooks


@pytest.mark.parametrize("name", ["Short", "Rival", "Gate"])
def test_a_killed_training_goes_on_to_the_same_bytes(name, federation, monkeypatch, tmp_path):
    given = {"defenses": [planted[name]()]}
    whole = federation(protocols.get("fedgh")(), rounds=3)
    whole.run(**given)

    def stop(event):
        if event.name == "train.round" and event.data["round"] == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0)
    cut = federation(protocols.get("fedgh")(), rounds=3, folder=tmp_path / "cut")
    with pytest.raises(KeyboardInterrupt):
        cut.run(report=stop, **given)
    again = federation(protocols.get("fedgh")(), rounds=3, folder=tmp_path / "cut")
    again.run(resume=True, **given)
    assert all(torch.equal(one, again.state()[key]) for key, one in whole.state().items())
    assert all(torch.equal(one, rows(again, 3)[k]) for k, one in rows(whole, 3).items())


LARGE = {"fedala", "fedavg", "fedavgdbe", "fedsgd"}
"""Protocols whose server builds a model of the settings, for larger images than these."""
TRAINED = [
    name for name in protocols.names()
    if protocols.get(name)().trains() and not protocols.get(name)().shared_model()
    and name not in LARGE
]  # fmt: skip


@pytest.mark.parametrize("name", TRAINED)
def test_every_protocol_that_trains_an_extractor_takes_it(name, federation):
    fed = federation(protocols.get(name)(), rounds=1)
    before = [m.detach().clone() for m in _gates(fed)]
    seen = fed.run(defenses=[planted["Gate"](), planted["Short"](weight=0.1)])
    assert seen[0]["loss"] > 0 and not before
    assert all(m.isfinite().all() for m in _gates(fed)) and _gates(fed)


def _gates(fed):
    return [c.memory["defense 0"]["gate"].weight for c in fed.clients if "defense 0" in c.memory]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(LARGE))
def test_so_does_one_whose_server_has_a_model(name, tiny, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent)
    allow_module_paths("planted:RivalAnywhere")
    for weight in (0, 3):
        given = f"planted:RivalAnywhere:weight={weight}"
        run = train(tiny(protocol=name, defense=given), runs=tmp_path)
        assert run.record["status"] == "complete"


# --- the contract --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Short", "Rival", "Gate", "Constant", "Rounded"])
def test_planted_defences_keep_the_promises(name, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent)
    check_defense(getattr(importlib.import_module("planted"), name))


def broken(monkeypatch, name, **changes):
    monkeypatch.syspath_prepend(Path(__file__).parent)
    module = importlib.import_module("planted")
    made = type("Broken", (getattr(module, name),), {**changes, "__doc__": "Broken."})
    made = dataclass(frozen=True, kw_only=True)(made)
    made.__module__ = "planted"
    monkeypatch.setattr(module, "Broken", made, raising=False)
    return made


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("Gate", {"change": lambda self, reps, seen: reps[:, :3]}, "the shape must stay"),
        ("Gate", {"change": lambda self, reps, seen: reps + torch.rand(6)}, "two passes differ"),
        ("Gate", {"change": lambda self, reps, seen: reps + seen.normal(reps)}, "random=False"),
        ("Gate", {"channel": lambda self, facts: Channel()}, "no LearntChange"),
        ("Short", {"channel": lambda self, facts: Channel()}, "no TrainingTerm"),
        ("Short", {"training_term": lambda self, batch: batch.reps}, "no finite scalar"),
        ("Rival", {"opponents": ("other",)}, "none of its own modules: other"),
        ("Gate", {"sets_zeros": True}, "does more than to set coordinates to 0"),
        ("Gate", {"change": lambda self, reps, seen: reps * (reps > 0.7)}, "sets_zeros = True"),
    ],
)
def test_broken_promises_are_caught(name, changes, says, monkeypatch):
    with pytest.raises((AssertionError, IncompatibleError), match=says):
        check_defense(broken(monkeypatch, name, **changes))


@pytest.mark.parametrize(
    ("protocol", "given", "says"),
    [
        ("fedcgs", ["planted:Short"], "clients of protocol 'fedcgs' do not train"),
        ("fedgh", ["planted:Short", "dp-sgd:clip=1,noise=1"], "which 'dp-sgd' replaces"),
        (
            "fedgh",
            ["planted:Gate", "gaussian:clip=1,noise=1,unit=record"],
            "may let a record change the representations of others",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_training(
    protocol, given, says, tiny, tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(Path(__file__).parent)
    allow_module_paths("planted:Short", "planted:Gate")
    with pytest.raises(IncompatibleError, match=says):
        train(tiny(protocol=protocol, defense=given), runs=tmp_path)


def test_steps_are_not_captured_and_the_log_says_so_once(federation, caplog):
    fed = federation(protocols.get("fedgh")(), rounds=1)
    captured = CapturedTraining(fed.protocol, fed.setting, [planted["Short"]()])
    captured._captures = lambda client: None
    with caplog.at_level("INFO", logger="fedre_privacy"):
        assert [captured.train(fed.clients, (0, 1), round) for round in (1, 2)] == [{}, {}]
    (said,) = [r.message for r in caplog.records]
    assert said.endswith("takes part in local training")
