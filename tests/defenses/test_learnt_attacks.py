"""Attackers of learnt defences: what they hold, what knowing is worth, and planted defences."""

import runpy
from pathlib import Path

import pytest
import torch

from fedre_privacy.attacks.base import attacks
from fedre_privacy.core import files
from fedre_privacy.core.artifacts import EntangledRep, Prototypes
from fedre_privacy.core.errors import MissingInputError
from fedre_privacy.core.registry import allow_module_paths
from fedre_privacy.core.rng import stream
from fedre_privacy.defenses.defended_modules import DefendedExtractor
from fedre_privacy.experiments.attack import attack
from fedre_privacy.experiments.targets import TargetSource
from fedre_privacy.runs.resolution import resolve_attack
from fedre_privacy.runs.training import train

HERE = Path(__file__).parent
adaptation = runpy.run_path(str(HERE / "test_adaptation.py"))
asked = adaptation["asked"]


@pytest.fixture
def planted(monkeypatch):
    """Name a defence of `planted.py`."""
    monkeypatch.syspath_prepend(HERE)

    def name(one):
        allow_module_paths(f"planted:{one.split(':')[0]}")
        return f"planted:{one}"

    return name


KEPT = {"record": {"keep_every": 1}}


@pytest.fixture
def run(planted, tiny, tmp_path):
    def make(name, protocol="fedgh", rounds=2, **sections):
        own = {"train": {"rounds": rounds, "clients": 2}, **sections}
        settings = tiny(protocol={"name": protocol}, defense=[planted(name)], **{**KEPT, **own})
        return train(settings, runs=tmp_path / "runs")

    return make


def test_who_knows_of_it_holds_the_extractor_that_made_the_upload(run):
    made = run("Gate")
    images = torch.rand(5, *made.image_shape)
    for attacker, held in (("adaptive", True), ("naive", False)):
        seen = asked(made, "linear", attacker=attacker).observation
        for extractor in seen.extractors.values():
            assert isinstance(extractor, DefendedExtractor) == held
    own = asked(made, "linear").observation.extractors[0, 2]
    assert torch.equal(own(images), made.extractor(0, 2)(images))


def test_what_is_sent_is_what_the_attackers_extractor_draws(run):
    made = run("Gate:noise=0.3", protocol="fedallrep")
    seen = asked(made, "linear").observation
    images = torch.rand(8, *made.image_shape)
    (upload,) = [u for u in seen.uploads if u.client == 0 and u.round == 2]
    source = made.settings.data.load()
    split = files.read_tensors(made.folder / "private" / "split.safetensors")["train0"]
    own = source.images[split].float() / 255
    extractor = seen.extractors[0, 2]
    left = upload.artifacts[0].reps - extractor(own)
    assert left.std().item() == pytest.approx(0.3, rel=0.1)
    assert not torch.equal(extractor.sample(images, stream(1, "a")), extractor(images))


def test_what_is_not_sent_is_drawn_as_a_client_would(run):
    made = run("Gate:noise=0.3")
    data = made.settings.data.load()
    source, again = (TargetSource(made, data, round=None, seed=0) for _ in range(2))
    found = source.group("representations", 20)
    images = iter(found.truth.images)
    for upload in found.uploads:
        reps = upload.artifacts[0].reps
        own = torch.stack([next(images) for _ in reps])
        left = reps - made.extractor(upload.client, source.round)(own)
        assert left.std().item() == pytest.approx(0.3, rel=0.1)
    again = TargetSource(made, made.settings.data.load(), round=None, seed=0).group(
        "representations", 20
    )
    assert torch.equal(again.uploads[0].artifacts[0].reps, found.uploads[0].artifacts[0].reps)


def test_gradients_went_through_learnt_changes_that_attacks_on_them_do_not_use(tiny, tmp_path):
    own = {"train": {"rounds": 1, "clients": 2}, "protocol": {"name": "fedsgd"}}
    made = train(tiny(defense=["mixup"], **own), runs=tmp_path / "runs")
    said = asked(made, "inverting-gradients").lines()["Attacker"]
    assert "knows mixup, does not use it" in said


READERS = {"fedgh": Prototypes, "fedre": EntangledRep}
PAIRS = [
    pytest.param(
        protocol, given, name, id=f"{name}-{protocol}-{given}",
        marks=() if name == "linear" and given == "Gate:noise=0.1" else (pytest.mark.slow,),
    )
    for protocol, kind in READERS.items()
    for given in ("Short", "Gate:noise=0.1")
    for name in attacks.names()
    if issubclass(kind, attacks.get(name).consumes)
]  # fmt: skip


@pytest.mark.parametrize(("protocol", "given", "name"), PAIRS)
def test_the_attacker_line_is_true(protocol, given, name, run):
    adaptation["told_truly"](run(given, protocol=protocol, rounds=3), name)


def difference(made, name, attacker, target="uploaded", targets=24, **settings):
    """PSNR over the floor of the best guess that does not know the upload, and the verdict."""
    values = {
        "attack": {"name": name, **settings}, "threat": "strong", "target": target,
        "eval": {"targets": targets, "ceiling": 0, "attacker": attacker, "candidates": 10},
    }  # fmt: skip
    card = attack(made, resolve_attack(values, {}, [])).card
    psnr = next(one for one in card.measures if one.key == "psnr")
    return psnr.value - psnr.floor, card.verdict.word


LEARNT = {
    "data": {"name": "digits", "size": 16, "per_class": 40},
    "partition": {"name": "pra", "alpha": 5.0},
    "model": {"name": "cnn4", "dim": 64},
}
QUICK = {"updates": 50, "width": 8, "steps": 20, "samples": 1}
GOOD = {"rounds": 6, "clients": 2, "epochs": 2, "lr": 0.1}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["linear", "ensemble-kalman"])
def test_hidden_gradients_are_no_defence_against_who_knows_of_them(name, run):
    made = run("Rounded", protocol="fedallrep", **{**LEARNT, "train": GOOD})
    known, word = difference(made, name, "adaptive")
    unknown, _ = difference(made, name, "naive")
    assert known > 1 and word == "leaks"
    assert unknown < known / 3  # false security: little beyond the mean of the class


@pytest.mark.slow
def test_a_search_by_gradients_sees_through_rounding(run):
    made = run("Rounded", protocol="fedallrep", **{**LEARNT, "train": GOOD})
    known, _ = difference(made, "dip", "adaptive", steps=100)
    unknown, _ = difference(made, "dip", "naive", steps=100)
    assert known >= unknown - 0.1
    extractor = asked(made, "linear").observation.extractors[0, 6]
    images = torch.rand(4, *made.image_shape, requires_grad=True)
    (slope,) = torch.autograd.grad(extractor(images).square().sum(), images)
    assert slope.norm() > 0
    with torch.no_grad():
        levels = extractor(images) / 0.5
    assert torch.equal(levels, levels.round())


@pytest.fixture(scope="module")
def noisy(tiny, tmp_path_factory):
    """Runs with and without learnt noise; loud enough that images do not show beside it."""
    sections = {**LEARNT, **KEPT, "train": GOOD, "protocol": {"name": "fedallrep"}}
    runs = tmp_path_factory.mktemp("noisy")
    return [train(tiny(**sections, defense=own), runs=runs) for own in ([], ["shredder:scale=1"])]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("dip", {"steps": 100}),
        ("diffusion", QUICK),
        ("ensemble-kalman", {"members": 300}),
    ],
)
def test_noise_of_few_vectors_hides_little_from_who_knows_them(name, settings, noisy):
    plain, made = noisy
    bare, _ = difference(plain, name, "adaptive", **settings)
    known, _ = difference(made, name, "adaptive", **settings)
    unknown, _ = difference(made, name, "naive", **settings)
    assert known > unknown + 3
    assert known > bare - 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings", "defence"),
    [
        ("dip", {"steps": 100}, "soteria:strength=0.4"),
        ("diffusion", QUICK, "soteria:strength=0.4"),
        ("diffusion", QUICK, "disco:ratio=0.5"),
    ],
)
def test_zeros_that_are_seen_hide_nothing_but_themselves(
    name, settings, defence, tiny, tmp_path, monkeypatch
):
    sections = {**LEARNT, **KEPT, "train": GOOD, "protocol": {"name": "fedallrep"}}
    made = train(tiny(**sections, defense=[defence]), runs=tmp_path / "runs")
    known, _ = difference(made, name, "adaptive", **settings)
    unknown, _ = difference(made, name, "naive", **settings)
    assert known > unknown + 1
    for module in ("diffusion", "inversion.search_settings"):
        place = f"fedre_privacy.attacks.{module}.unmasked_extractors"
        monkeypatch.setattr(place, lambda *_: None)
    # other settings, as a finished attack would be read back
    through, _ = difference(made, name, "adaptive", targets=23, **settings)
    assert known > through + 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["linear", "ensemble-kalman"])
def test_a_constant_representation_reads_as_no_leak(name, run):
    made = run("Constant", protocol="fedallrep", **{**LEARNT, "train": GOOD})
    for attacker in ("adaptive", "naive"):
        over, word = difference(made, name, attacker)
        assert over < 0 and word != "leaks"


def test_a_model_that_is_attacked_makes_what_the_client_trained_on(run):
    made = run("GateAnywhere", protocol="fedavg")
    for attacker, same in (("adaptive", True), ("naive", False)):
        seen = asked(made, "update-inversion", attacker=attacker, target="update").observation
        images = torch.rand(5, *made.image_shape)
        client, round = next(iter(seen.models))
        model, kept = seen.models[client, round], made.model(client, round)
        model.load_state_dict(made.state(client, round), strict=False)  # local training moved them
        reps = kept.extractor(images)
        assert torch.equal(model(images), kept.head(reps)) == same


def test_modules_of_a_round_that_was_not_kept_are_asked_for(run):
    made = run("GateAnywhere", protocol="fedavg", record={"keep_every": 0})
    seen = asked(made, "update-inversion", target="update").observation
    assert next(iter(seen.models))[1] not in made.kept_rounds()
    with pytest.raises(MissingInputError, match="not kept"):
        seen.models[next(iter(seen.models))]


@pytest.mark.slow
def test_masked_coordinates_of_one_image_show_in_the_gradient_of_the_head(tiny, tmp_path):
    own = {"train": {"rounds": 1, "clients": 8, "batch_size": 1}, "protocol": {"name": "fedsgd"}}
    made = train(tiny(**{**LEARNT, **own}, defense=["soteria"]), runs=tmp_path / "runs")
    known, unknown = (
        difference(made, "inverting-gradients", attacker, target="update", steps=100)[0]
        for attacker in ("adaptive", "naive")
    )
    assert known > unknown + 5
