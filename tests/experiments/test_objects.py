"""Parts as objects, by name, and by name and settings: the same checks and the same folders."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

import fedre_privacy as fp
from fedre_privacy import api
from fedre_privacy.attacks.base import attacks
from fedre_privacy.attacks.dip import DeepImagePrior
from fedre_privacy.attacks.head import HeadUpdate
from fedre_privacy.attacks.pixel import PixelInversion
from fedre_privacy.benchmarking.variants import read_sweep
from fedre_privacy.core.config import knob, plain_plugin
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.types import ThreatModel
from fedre_privacy.data.digits import Digits
from fedre_privacy.defenses.base import defenses
from fedre_privacy.defenses.clip import Clip
from fedre_privacy.defenses.mask import Mask
from fedre_privacy.entanglement.base import schemes
from fedre_privacy.entanglement.rap import RAP
from fedre_privacy.entanglement.rar import RAR
from fedre_privacy.eval.metrics.base import metrics
from fedre_privacy.eval.metrics.psnr import Psnr
from fedre_privacy.eval.metrics.ssim import Ssim
from fedre_privacy.models.families import ModelSettings
from fedre_privacy.partition.base import partitions
from fedre_privacy.partition.pra import PRA
from fedre_privacy.protocols.base import protocols
from fedre_privacy.protocols.fedgh import FedGH
from fedre_privacy.protocols.fedre import FedRE
from fedre_privacy.runs.plain_settings import (
    attack_values,
    brief,
    layer_settings,
    plain_value,
    training_values,
)
from fedre_privacy.runs.resolution import require_resolved, resolve_attack, resolve_training
from fedre_privacy.threats.base import threats

NEEDING = {"gaussian": {"clip": 1, "noise": 1}, "laplace": {"clip": 1, "epsilon": 9},
           "dp-sgd": {"clip": 1, "noise": 1}, "dp-mf": {"clip": 1, "noise": 1},
           "statistics-noise": {"clip": 1, "noise": 1}}  # fmt: skip


def training(**asked):
    problems: list[str] = []
    values, where = layer_settings(training_values(**asked), {})
    return require_resolved(resolve_training(values, where, problems), problems)


def attacking(**asked):
    problems: list[str] = []
    values, where = layer_settings(attack_values(**asked), {})
    return require_resolved(resolve_attack(values, where, problems), problems)


@pytest.mark.parametrize(
    ("key", "registry"),
    [
        ("protocol", protocols),
        ("scheme", schemes),
        ("partition", partitions),
        ("defense", defenses),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_a_name_and_its_object_name_the_same_run(key, registry):
    for name in registry.names():
        given = NEEDING.get(name, {}) if key == "defense" else {}
        made = registry.get(name)(**given)
        assert training(**{key: made}) == training(**{key: {"name": name, **given}})
        assert training(**{key: made}).run_name == training(**{key: plain_plugin(made)}).run_name


def test_a_name_and_its_object_name_the_same_attack():
    for name in attacks.names():
        made = attacks.get(name)()
        assert attacking(attack=made).folder_name == attacking(attack=name).folder_name
    every = {name: metrics.get(name)() for name in metrics.names() if name != "lpips"}
    by_object = attacking(metrics=list(every.values()))
    assert by_object == attacking(metrics=list(every)) == attacking(metrics=",".join(every))


def test_objects_are_taken_as_they_are():
    made = FedRE(entanglement=RAR(), resample=False)
    both = [Clip(norm=2), Mask(keep=0.5)]
    settings = training(
        protocol=made, dataset=Digits(size=16), partition=PRA(alpha=0.5), defense=both,
        models=ModelSettings(name="cnn4", dim=8), rounds=3,
    )  # fmt: skip
    assert settings.protocol == made and settings.defense == tuple(both)
    assert (settings.data, settings.partition) == (Digits(size=16), PRA(alpha=0.5))
    assert settings.model.dim == 8 and settings.train.rounds == 3
    by_name = training(
        protocol={"name": "fedre", "resample": False}, scheme="rar", partition="pra:0.5",
        dataset={"name": "digits", "size": 16}, models={"name": "cnn4", "dim": 8}, rounds=3,
        defense=["clip:norm=2", "mask:keep=0.5"],
    )  # fmt: skip
    assert settings.run_name == by_name.run_name
    assert training(protocol="fedre", scheme=RAR()).protocol == FedRE(entanglement=RAR())
    asked = attacking(
        attack=DeepImagePrior(steps=10), target="recovered-prototypes", via=HeadUpdate(steps=5),
        threat=threats.get("strong"), metrics=[Psnr(), "ssim"],
    )  # fmt: skip
    assert asked.attack == DeepImagePrior(steps=10) and asked.via == HeadUpdate(steps=5)
    assert asked.threat.name == "strong" and asked.metrics == {"psnr": Psnr(), "ssim": Ssim()}


def test_an_object_wins_over_a_preset_and_single_settings_win_over_it():
    values, _ = layer_settings(
        training_values(partition=PRA(alpha=0.3)), {"partition": {"min_samples": 4}},
        presets=["paper:fedre-table12-cifar10-pra"],
    )  # fmt: skip
    own = plain_plugin(PRA(alpha=0.3))  # it names no seed, so that of the preset stays
    assert values["partition"] == {**own, "min_samples": 4, "seed": 0}


@dataclass(frozen=True, kw_only=True)
class Own(RAP):
    """A scheme of one's own that is not registered; it inherits the name of another."""

    more: int = knob(1, help="anything", ge=1)


@dataclass(frozen=True, kw_only=True)
class Unwritten(RAP):
    """A scheme with a field that is no setting."""

    memory: list[int] | None = None


def test_ones_own_object_is_found_again_by_its_class():
    settings = training(scheme=Own(more=3))
    assert settings.protocol.entanglement == Own(more=3)
    assert settings.plain()["protocol"]["entanglement"]["name"] == f"{__name__}:Own"
    assert settings.run_name == training(scheme={"name": f"{__name__}:Own", "more": 3}).run_name
    assert settings.run_name != training(scheme="rap").run_name


def test_what_cannot_be_made_again_is_refused():
    @dataclass(frozen=True, kw_only=True)
    class Hidden(RAP):
        """A scheme that no name leads to."""

    @dataclass(frozen=True, kw_only=True)
    class Usurper(DeepImagePrior):
        """An attack under a name that is taken."""

        name = "dip"

    refused = {
        "defined inside a function": lambda: training(scheme=Hidden()),
        "named 'dip', which is another class": lambda: attacking(attack=Usurper()),
        "fields that are no settings: memory": lambda: training(scheme=Unwritten()),
        "give an object: FedRE": lambda: training(protocol=FedRE),
        "Unknown protocol 'rap'": lambda: training(protocol=RAP()),
        "is no attack, data set": lambda: training(protocol=Odd()),
    }
    for words, ask in refused.items():
        with pytest.raises(ConfigError, match=words):
            ask()
    assert plain_value(threats.get("strong")) == "strong"
    other = ThreatModel("strong", frozenset(), "last", "nobody")
    with pytest.raises(ConfigError, match="'strong' is not the registered one"):
        plain_value(other)


@dataclass
class Odd:
    """No part of anything."""


def test_objects_are_checked_like_names():
    with pytest.raises(ConfigError) as refused:
        fp.train(FedGH(), partition=PRA(alpha=-1), defense=Clip(norm=0), set={"train.lr": 0})
    said = str(refused.value)
    for text in ("'partition.alpha' is -1", "'defense.norm' is 0", "'train.lr' is 0", "--explain"):
        assert text in said
    assert len(refused.value.problems) == 3


@pytest.mark.slow
def test_train_and_attack_by_object_are_those_by_name(tmp_path):
    small = {"data.size": 16, "data.per_class": 12}
    runs = tmp_path / "runs"
    run = fp.train(FedRE(), clients=3, rounds=1, models=ModelSettings(dim=8), set=small, runs=runs,
                   device="cpu")  # fmt: skip
    heard: list[str] = []
    again = fp.train("fedre", clients=3, rounds=1, set={**small, "model.dim": 8}, runs=runs,
                     device="cpu", report=lambda event: heard.append(event.name))  # fmt: skip
    assert again.folder == run.folder and heard == ["train.reused"]
    few = {"targets": 3, "metrics": [Psnr()], "isolation": "same-process", "device": "cpu"}
    first = fp.attack(run, PixelInversion(steps=2), set={"eval.ceiling": 0}, **few)
    second = fp.attack(str(run.folder), "pixel", "uploaded",
                       set={"attack.steps": 2, "eval.ceiling": 0}, **few)  # fmt: skip
    assert first.folder == second.folder and first.verdict() == second.verdict()
    assert (first.folder / "report.html").is_file()
    with pytest.raises(ConfigError) as refused:
        fp.attack(run, "prototypes", PixelInversion(steps=0), via="head")
    assert "'prototypes' is a target, not an attack" in str(refused.value)
    with pytest.raises(ConfigError, match="'attack.steps' is 0; it must be >= 1"):
        fp.attack(run, PixelInversion(steps=0))


def test_a_benchmark_of_objects():
    asked = {
        "protocols": [FedRE(entanglement=RAR()), "fedgh", {"name": "fedre", "resample": False}],
        "schemes": [RAP()],
        "defenses": ["none", Clip(norm=2)],
        "attacks": [PixelInversion(steps=2), "labels@labels",
                    {"attack": PixelInversion(), "target": "prototypes"}],
        "targets": 3,
    }  # fmt: skip
    wanted = read_sweep(asked, {"train": {"rounds": 1}}, name="")
    assert [variant.label for variant in wanted.variants[::2]] == [
        "fedre (entanglement=rar)", "fedgh", "fedre (resample=False)", "rap",
    ]  # fmt: skip
    assert wanted.variants[1].label == "fedre (entanglement=rar) + clip (norm=2)"
    first = wanted.jobs[0]
    assert first.training.protocol == FedRE(entanglement=RAR())
    assert [settings.attack for settings in first.attacks[::2]] == [
        PixelInversion(steps=2), PixelInversion(),
    ]  # fmt: skip
    assert first.attacks[0].evaluation.targets == 3
    assert brief(FedRE(entanglement=RAR(), resample=False)) == (
        "fedre (entanglement=rar, resample=False)"
    )


def test_one_part_is_as_good_as_a_list_of_one(monkeypatch):
    seen = []
    monkeypatch.setattr(api, "run_benchmark", lambda wanted, **how: seen.append(wanted))
    for protocols_ in ("fedgh", ["fedgh"], FedGH(), [FedGH()]):
        fp.benchmark(protocols_, seeds=[0], attacks="labels@labels", rounds=1)
    assert {wanted.name for wanted in seen[:2]} == {seen[0].name}
    assert [len(wanted.jobs) for wanted in seen] == [1] * 4
    assert len({wanted.jobs[0].training.run_name for wanted in seen}) == 1
