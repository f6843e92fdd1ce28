"""What each defence does to what is sent: bounds, noise of the stated size, form, composition."""

import math
from functools import partial

import pytest
import torch

from fedre_privacy.core.artifacts import (
    EntangledRep,
    ModelState,
    Prototypes,
    Representations,
    is_one_of,
)
from fedre_privacy.core.errors import ConfigError, IncompatibleError
from fedre_privacy.core.types import Emission, Mixture
from fedre_privacy.defenses.apply import apply_defenses
from fedre_privacy.defenses.base import Defense, defenses
from fedre_privacy.defenses.values import num_rows, update_of, values_of

SETTINGS = {
    "gaussian": {"clip": 1.0, "noise": 0.5},
    "laplace": {"clip": 1.0, "epsilon": 2.0},
    "dp-sgd": {"clip": 1.0, "noise": 1.0},
    "dp-mf": {"clip": 1.0, "noise": 1.0},
    "statistics-noise": {"clip": 1.0, "noise": 1.0},
}
NAMES = defenses.names()


def make(name, **settings):
    return defenses.get(name)(**{**SETTINGS.get(name, {}), **settings})


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def copied(artifact):
    return type(artifact).from_tensors({n: t.clone() for n, t in artifact.tensors().items()})


def same(a, b):
    mine, theirs = a.tensors(), b.tensors()
    return all(torch.equal(mine[name], theirs[name]) for name in mine)


def flat(values):
    return torch.cat([value.flatten() for value in values.values()])


@pytest.mark.parametrize("name", NAMES)
def test_form_stays_inputs_stay_and_the_same_stream_gives_the_same(name, artifacts, sending):
    defense = make(name)
    for artifact in artifacts.values():
        if not is_one_of(type(artifact), defense.acts_on):
            continue
        before = copied(artifact)
        once = defense.defend(artifact, sending(), rng())
        assert same(artifact, before)
        assert type(once) is type(artifact)
        shapes = {n: (t.shape, t.dtype) for n, t in artifact.tensors().items()}
        assert {n: (t.shape, t.dtype) for n, t in once.tensors().items()} == shapes
        assert same(once, defense.defend(artifact, sending(), rng()))
        if "labels" in before.tensors():
            assert torch.equal(once.labels, artifact.labels)


@pytest.mark.parametrize("name", ["gaussian", "laplace", "quantise", "mask"])
def test_another_stream_gives_another_result(name, artifacts, sending):
    artifact = artifacts["model"]
    one, other = (make(name).defend(artifact, sending(), rng(s)) for s in (0, 1))
    assert not same(one, other)


# --- clip ----------------------------------------------------------------------------------------


def test_clip_shortens_what_is_longer_and_nothing_else(artifacts, sending):
    rows = torch.stack([torch.full((4,), 3.0), torch.full((4,), 0.1)])
    sent = make("clip", norm=2.0).defend(Prototypes(rows, torch.tensor([0, 1])), sending(), rng())
    torch.testing.assert_close(sent.means, torch.stack([torch.ones(4), torch.full((4,), 0.1)]))
    zero = make("clip").defend(Prototypes(rows * 0, torch.tensor([0, 1])), sending(), rng())
    assert torch.equal(zero.means, rows * 0)


def test_clip_bounds_the_update_not_the_model(artifacts, sending):
    sent = artifacts["model"]
    before = ModelState({name: value - 0.3 for name, value in sent.params.items()})
    there = sending(received=before)
    clipped = make("clip", norm=1.5).defend(sent, there, rng())
    assert flat(update_of(clipped, there)).norm().item() == pytest.approx(1.5, rel=1e-4)
    kept = make("clip", norm=1e4).defend(sent, there, rng())
    torch.testing.assert_close(kept.params["w"], sent.params["w"])
    direction = torch.nn.functional.cosine_similarity(
        flat(update_of(clipped, there)), flat(update_of(sent, there)), dim=0
    )
    assert direction.item() == pytest.approx(1, abs=1e-4)


# --- noise ---------------------------------------------------------------------------------------


def errors(defense, artifact, sending, count=300):
    """Noise of many draws on an artifact that needs no clipping, (count, numbers)."""
    clean = flat(values_of(artifact))
    return torch.stack(
        [flat(values_of(defense.defend(artifact, sending, rng(s)))) - clean for s in range(count)]
    )


def short(artifact):
    """The artifact with values too small to be clipped."""
    tensors = {
        n: t * 1e-3 if n in values_of(artifact) else t for n, t in artifact.tensors().items()
    }
    return type(artifact).from_tensors(tensors)


@pytest.mark.parametrize("kind", ["entangled", "prototypes", "model", "class-logits", "gradient"])
@pytest.mark.parametrize("name", ["gaussian", "laplace"])
def test_noise_for_a_client_has_the_stated_variance(name, kind, artifacts, sending):
    artifact = short(artifacts[kind])
    found = errors(make(name), artifact, sending(), 60 if kind in ("model", "gradient") else 300)
    sensitivity = 2 * math.sqrt(num_rows(artifact))
    if name == "gaussian":
        std = 0.5 * sensitivity
    else:
        std = math.sqrt(2) * sensitivity * math.sqrt(found.shape[1]) / 2.0
    numbers = found.numel()
    kurtosis = 3 if name == "gaussian" else 6
    spread = math.sqrt((kurtosis - 1) / numbers)  # of the variance, relative
    assert abs(found.mean().item()) < 5 * std / math.sqrt(numbers)
    assert abs(found.var().item() / std**2 - 1) < 6 * spread
    tails = (found.abs() > 3 * std).double().mean().item()
    assert tails == pytest.approx(0.0027 if name == "gaussian" else 0.0144, rel=0.5)


def test_noise_for_a_record_follows_the_size_of_its_class(artifacts, sending):
    artifact = short(artifacts["prototypes"])
    found = errors(make("gaussian", unit="record"), artifact, sending()).reshape(-1, 3, 40)
    for row, count in enumerate((2, 5, 3)):
        assert found[:, row].std().item() == pytest.approx(0.5 * 2 / count, rel=0.05)


def test_noise_for_a_record_follows_the_largest_weight_of_a_mix(artifacts, sending):
    artifact = short(artifacts["entangled"])
    weights = torch.tensor([0.05, 0.3, 0.25, 0.4])
    whole = Mixture(torch.zeros(4, dtype=torch.int64), torch.arange(4), weights, 1)
    found = errors(make("gaussian", unit="record"), artifact, sending(mixture=whole))
    assert found.std().item() == pytest.approx(0.5 * 2 * 0.4, rel=0.05)
    decoyed = Mixture(whole.row, whole.sample, weights / 2, 1)
    found = errors(make("gaussian", unit="record"), artifact, sending(mixture=decoyed))
    assert found.std().item() == pytest.approx(0.5 * 2 * (0.2 + 0.5 / 4), rel=0.05)


def test_noise_for_a_record_needs_to_know_where_rows_come_from(artifacts, sending):
    defense = make("gaussian", unit="record")
    with pytest.raises(IncompatibleError, match="does not say which records"):
        defense.defend(artifacts["entangled"], sending(mixture=None), rng())
    twice = Mixture(torch.tensor([0, 1]), torch.tensor([4, 4]), torch.ones(2), 2)
    with pytest.raises(IncompatibleError, match="entered several rows"):
        defense.defend(artifacts["prototypes"], sending(mixture=twice), rng())


def test_replacing_one_clipped_record_moves_a_prototype_by_its_share_at_most():
    """2 S / n is the sensitivity of a mean, and it is attained."""
    clip = make("clip", norm=1.0, where="representation").represent()
    reps = torch.randn(7, 12, generator=rng()) * 5
    moves = []
    for number in range(7):
        other = reps.clone()
        other[number] = torch.randn(12, generator=rng(number)) * 50
        moves.append((clip(other).mean(0) - clip(reps).mean(0)).norm().item())
    opposite = reps.clone()
    opposite[0] = -reps[0] * 10
    attained = (clip(opposite).mean(0) - clip(reps).mean(0)).norm().item()
    assert max(moves) <= 2 / 7 + 1e-6
    assert attained == pytest.approx(2 / 7, rel=1e-4)


def test_noise_from_epsilon_is_the_noise_that_spends_it(artifacts, sending, facts):
    wanted = make("gaussian", noise=None, epsilon=4.38)
    (release,) = wanted.cost(facts()).releases[0]
    assert release.count == 100 and release.noise == pytest.approx(10, rel=5e-3)
    here = sending(kinds=(EntangledRep,), rounds=100)
    found = errors(wanted, short(artifacts["entangled"]), here)
    assert found.std().item() == pytest.approx(2 * release.noise, rel=0.05)
    assert wanted.public(facts())["noise"] == release.noise


# --- heuristics ----------------------------------------------------------------------------------


def test_prune_keeps_the_largest_changes(artifacts, sending):
    sent = artifacts["head"]
    before = copied(artifacts["model"])
    there = sending(received=type(sent)(before.params))
    old = flat(update_of(sent, there))
    new = flat(update_of(make("prune", keep=0.1).defend(sent, there, rng()), there))
    kept = new.abs() > 1e-6
    assert kept.sum().item() == 62  # a tenth of 620
    torch.testing.assert_close(new[kept], old[kept])
    assert old[kept].abs().min() >= old[~kept].abs().max()


def test_quantise_has_few_levels_and_is_right_on_average(artifacts, sending):
    artifact = artifacts["entangled"]
    defense = make("quantise", bits=2)
    draws = torch.stack([defense.defend(artifact, sending(), rng(s)).rep for s in range(2000)])
    assert len(draws.unique()) == 4
    top = artifact.rep.abs().max()
    gap = 2 * top / 3
    assert (draws - artifact.rep).abs().max() < gap
    assert (draws.mean(0) - artifact.rep).abs().max() < 5 * gap / 2 / math.sqrt(2000)
    fine = make("quantise", bits=16).defend(artifact, sending(), rng()).rep
    assert (fine - artifact.rep).abs().max() <= 2 * top / (2**16 - 1) + 1e-6
    zero = EntangledRep(artifact.rep * 0, artifact.encoding)
    assert torch.equal(defense.defend(zero, sending(), rng()).rep, zero.rep)


def test_mask_drops_the_same_coordinates_of_all_rows(artifacts, sending):
    sent = make("mask", keep=0.25).defend(artifacts["prototypes"], sending(), rng())
    kept = sent.means != 0
    assert kept.sum(1).tolist() == [10, 10, 10] and torch.equal(kept[0], kept[1])
    torch.testing.assert_close(sent.means[kept], artifacts["prototypes"].means[kept])
    more = make("mask", keep=0.25, rescale=True).defend(artifacts["prototypes"], sending(), rng())
    torch.testing.assert_close(more.means, 4 * sent.means)


def test_a_fixed_mask_stays_and_is_the_clients_own(artifacts, sending):
    defense = make("mask", fixed=True)
    sent = [
        defense.defend(artifacts["entangled"], sending(client=k, round=r), rng(r)).rep != 0
        for k, r in ((0, 1), (0, 2), (1, 1))
    ]
    assert torch.equal(sent[0], sent[1]) and not torch.equal(sent[0], sent[2])


def test_label_smoothing_leaves_no_class_out(artifacts, sending):
    sent = make("label-smoothing", alpha=0.2).defend(artifacts["entangled"], sending(), rng())
    torch.testing.assert_close(sent.encoding, torch.tensor([0.45, 0.05, 0.29, 0.21]))
    assert torch.equal(sent.rep, artifacts["entangled"].rep)


# --- several, in order ---------------------------------------------------------------------------


def test_defences_act_in_order_each_with_its_own_stream(artifacts, sending):
    emission = Emission(artifacts["entangled"], sending().mixture)
    send = partial(apply_defenses, sending=sending(), number=0)
    noise, few = make("gaussian"), make("quantise", bits=3)
    one = send([noise, few], emission)
    assert len(one.artifact.rep.unique()) <= 8
    assert len(send([few, noise], emission).artifact.rep.unique()) == 40
    assert one.mixture is emission.mixture
    assert same(one.artifact, send([noise, few], emission).artifact)
    alone, second = send([noise], emission), send([make("clip", norm=1e6), noise], emission)
    assert not torch.equal(alone.artifact.rep, second.artifact.rep)
    for other in (
        partial(apply_defenses, sending=sending(client=1), number=0),
        partial(apply_defenses, sending=sending(round=2), number=0),
        partial(apply_defenses, sending=sending(seed=1), number=0),
        partial(apply_defenses, sending=sending(), number=1),
    ):
        assert not torch.equal(other([noise], emission).artifact.rep, alone.artifact.rep)


def test_counts_are_nobodys(artifacts, sending):
    for name in NAMES:
        sent = apply_defenses([make(name)], Emission(artifacts["counts"]), sending(), number=0)
        assert same(sent.artifact, artifacts["counts"])


class Grows(Defense):
    """Sends one number too many."""

    name = "grows"
    acts_on = (EntangledRep,)

    def defend(self, artifact, sending, rng):
        return EntangledRep(torch.cat([artifact.rep, torch.ones(1)]), artifact.encoding)


class Breaks(Defense):
    """Divides by zero."""

    name = "breaks"
    acts_on = (EntangledRep,)

    def defend(self, artifact, sending, rng):
        return EntangledRep(artifact.rep / 0, artifact.encoding)


@pytest.mark.parametrize(("defense", "says"), [(Grows(), "must stay"), (Breaks(), "not finite")])
def test_a_broken_defence_is_named(defense, says, artifacts, sending):
    with pytest.raises(IncompatibleError, match=f"Defence '{defense.name}' made .*{says}"):
        apply_defenses([defense], Emission(artifacts["entangled"]), sending(), number=0)


def test_representations_collected_elsewhere_are_not_called_bounded(artifacts, sending):
    emission = Emission(artifacts["prototypes"], sending().mixture)
    defense = make("gaussian", unit="record")
    with pytest.raises(IncompatibleError, match="collected those of client 0 elsewhere"):
        apply_defenses([defense], emission, sending(), number=0, passes=0)
    apply_defenses([defense], emission, sending(), number=0, passes=1)


def test_an_artifact_outside_the_account_is_refused(artifacts, sending):
    for kind, round in (("rep-statistic", 1), ("prototypes", 0)):
        emission = Emission(artifacts[kind], sending().mixture)
        with pytest.raises(IncompatibleError, match="the accounting of defence 'gaussian'"):
            apply_defenses([make("gaussian")], emission, sending(round=round), number=0)


# --- bad values ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("gaussian", {"noise": 1.0}, "needs clip"),
        ("gaussian", {"clip": 1.0}, "needs one of noise"),
        ("gaussian", {"clip": 1.0, "noise": 1.0, "epsilon": 1.0}, "needs one of noise"),
        ("gaussian", {"clip": 1.0, "noise": 0.0}, "no privacy to state"),
        ("gaussian", {"clip": 1.0, "epsilon": 0.0}, "epsilon 0; it must be > 0"),
        ("gaussian", {"clip": 1.0, "epsilon": 1.0, "unit": "record"}, "for unit=record"),
        ("laplace", {}, "needs clip"),
        ("laplace", {"clip": 1.0, "epsilon": -1.0}, "epsilon -1; it must be > 0"),
        ("dp-sgd", {"noise": 1.0}, "needs clip"),
        ("dp-sgd", {"clip": 1.0}, "needs one of noise"),
        ("dp-sgd", {"clip": 1.0, "noise": 1.0, "epsilon": 8.0}, "needs one of noise"),
        ("dp-sgd", {"clip": 1.0, "epsilon": 0.0}, "epsilon 0; it must be > 0"),
        ("dp-sgd", {"clip": 1.0, "noise": 0.0}, "no privacy to state"),
    ],
)
def test_settings_without_privacy_are_refused(name, settings, says):
    with pytest.raises(ConfigError, match=says):
        defenses.get(name)(**settings)


def test_single_representations_have_the_full_sensitivity(sending):
    reps = Representations(torch.zeros(3, 40), torch.tensor([0, 1, 2]))
    each = Mixture(torch.arange(3), torch.arange(3), torch.ones(3), 3)
    found = errors(make("gaussian", unit="record"), reps, sending(mixture=each))
    assert found.std().item() == pytest.approx(0.5 * 2, rel=0.05)
