"""The laws of the schemes that are built on others."""

import pytest
import torch

from fedre_privacy.entanglement.base import blend, by_class, on_some, schemes
from fedre_privacy.entanglement.quantised import largest_remainder

TEN = torch.arange(10).repeat_interleave(7)


def make(name, **settings):
    return schemes.get(name)(**settings)


def over_rounds(scheme, draw, labels=TEN, rounds=40, **given):
    return [scheme.mix(draw(labels, round=t, **given)) for t in range(1, rounds + 1)]


# --- slow --------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", ["rap", "rar"])
def test_slow_lies_between_fixed_and_fresh(draw, base):
    here, of_base = draw(TEN, round=4), make(base)
    fixed, fresh = of_base.mix(here.of_run()), of_base.mix(here)
    for spread in (0.0, 0.3, 1.0):
        mix = make("slow", spread=spread, base=of_base).mix(here)
        expected = (1 - spread) * fixed.weights + spread * fresh.weights
        assert torch.allclose(mix.weights, expected, atol=1e-15)
        assert torch.allclose(mix.encoding, by_class(mix.weights, here), atol=1e-15)


def test_slow_stands_still_where_weights_are_kept(draw):
    kept = draw(TEN, round=-1)
    assert torch.allclose(
        make("slow", spread=0.4).mix(kept).weights, make("rap").mix(kept).weights, atol=1e-15
    )


# --- m of n ------------------------------------------------------------------------------------


@pytest.mark.parametrize("m", [1, 3, 10, 12])
def test_m_of_n_names_exactly_m_classes(draw, m):
    mixes = over_rounds(make("m-of-n", m=m), draw)
    assert {int((mix.encoding > 0).sum()) for mix in mixes} == {min(m, 10)}
    assert torch.stack([mix.encoding for mix in mixes]).gt(0).any(0).all()  # all, over rounds
    if m == 10:
        assert torch.equal(mixes[0].weights, make("rap").mix(draw(TEN, round=1)).weights)


def test_m_of_n_chooses_every_class_equally_often(draw):
    mixes = over_rounds(make("m-of-n", m=3), draw, rounds=600)
    shares = torch.stack([mix.encoding for mix in mixes]).gt(0).double().mean(0)
    assert (shares - 0.3).abs().max() < 4 * (0.3 * 0.7 / 600) ** 0.5


def test_m_of_n_of_vap_weighs_the_chosen_equally(draw):
    encoding = make("m-of-n", m=4, base=make("vap")).mix(draw(TEN)).encoding
    assert torch.allclose(encoding[encoding > 0], torch.full((4,), 0.25).double(), atol=1e-12)


# --- minimum count and refusal -----------------------------------------------------------------


def test_min_count_leaves_rare_classes_out_and_nothing_else_changes(draw):
    labels = torch.tensor([0] * 5 + [1] * 4 + [2] * 9)
    mix, rap = make("min-count").mix(draw(labels)), make("rap").mix(draw(labels))
    assert mix.encoding.gt(0).tolist() == [True, False, True] + [False] * 7
    assert not mix.weights[labels == 1].any()
    kept = rap.encoding[[0, 2]]
    assert torch.allclose(mix.encoding[[0, 2]], kept / kept.sum(), atol=1e-12)
    everything = make("min-count", min_count=4).mix(draw(labels))
    assert torch.equal(everything.weights, rap.weights)


def test_min_count_refuses_where_nothing_is_left(draw):
    assert make("min-count").mix(draw([1, 1, 2, 3])) is None


@pytest.mark.parametrize("name", ["rap", "rar", "var", "vap"])
def test_refuse_single_uploads_from_two_classes_on(draw, name):
    scheme = make("refuse-single", base=make(name))
    assert scheme.mix(draw([3, 3, 3])) is None
    two = draw([3, 3, 5])
    assert torch.equal(scheme.mix(two).weights, make(name).mix(two).weights)
    assert make("refuse-single", min_classes=3, base=make(name)).mix(two) is None


def test_refusal_counts_what_is_mixed(draw):
    here = draw([3] * 6 + [5])
    assert make("refuse-single").mix(here) is not None
    assert make("refuse-single", base=make("min-count")).mix(here) is None
    assert make("min-count", base=make("refuse-single")).mix(here) is None
    assert make("refuse-single", base=make("decoy")).mix(draw([3, 3])) is None
    assert make("refuse-single", base=make("rsp")).mix(draw(TEN)) is None


# --- quantised ---------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", [1, 3, 16, 1000])
@pytest.mark.parametrize("base", ["rap", "rar", "vap", "decoy"])
def test_quantised_encodings_lie_on_the_grid(draw, levels, base):
    scheme = make("quantised", levels=levels, base=make(base))
    for t in range(1, 30):
        here = draw(TEN[:42], round=t)
        exact, mix = make(base).mix(here), scheme.mix(here)
        steps = mix.encoding * levels
        assert torch.allclose(steps, steps.round(), atol=1e-9)
        assert float(steps.sum()) == pytest.approx(levels, abs=1e-9)
        assert (mix.encoding - exact.encoding).abs().max() < 1 / levels
        assert not mix.encoding[exact.encoding == 0].any()
        assert torch.equal(mix.weights, exact.weights)  # what is mixed is exact


def test_largest_remainder_by_hand():
    shares = torch.tensor([0.45, 0.35, 0.0, 0.2], dtype=torch.float64)
    assert largest_remainder(shares, 4).tolist() == [0.5, 0.25, 0, 0.25]
    assert largest_remainder(shares, 10).tolist() == [0.5, 0.3, 0, 0.2]  # a tie goes to the first
    assert largest_remainder(shares, 1).tolist() == [1, 0, 0, 0]
    tenths = torch.full((10,), 0.1, dtype=torch.float64)  # 0.1 * 30 is not 3 in floating point
    assert torch.allclose(largest_remainder(tenths, 30), tenths, atol=1e-15)


# --- decoys ------------------------------------------------------------------------------------


def test_decoys_keep_their_classes_and_vary_their_weights(draw):
    labels = TEN[:42]  # holds classes 0 to 5
    mixes = over_rounds(make("decoy", count=2), draw, labels)
    encodings = torch.stack([mix.encoding for mix in mixes])
    decoys = encodings[:, 6:].gt(0)
    assert decoys.sum(1).tolist() == [2] * 40 and decoys.any(0).sum() == 2
    of_decoys = encodings[:, 6:].sum(1)
    assert float(of_decoys.std()) > 0.05  # no group of classes has a constant total
    for mix, total in zip(mixes, of_decoys, strict=True):
        assert float(mix.weights.sum()) == pytest.approx(1 - float(total))
    others = over_rounds(make("decoy", count=2), draw, labels, rounds=1, client=1)
    assert not torch.equal(others[0].encoding[6:] > 0, decoys[0])


def test_a_decoy_weighs_on_average_as_much_as_a_true_class(draw):
    mixes = over_rounds(make("decoy", count=3), draw, TEN[:42], rounds=800)
    mean = torch.stack([mix.encoding for mix in mixes]).mean(0)
    assert mean[:6].mean() == pytest.approx(1 / 9, rel=0.05)
    assert mean[6:].sum() / 3 == pytest.approx(1 / 9, rel=0.05)


@pytest.mark.parametrize("vectors", ["public", "private"])
def test_decoy_vectors_stay_and_are_shared_only_if_public(draw, vectors):
    def solved(client):
        """The vectors of the decoy classes, from the encodings of many rounds."""
        mixes = over_rounds(make("decoy", vectors=vectors), draw, TEN[:42], client=client)
        encodings = torch.stack([mix.encoding for mix in mixes])
        named = encodings[:, 6:].gt(0).any(0)
        added = torch.stack([mix.decoy for mix in mixes])
        answer = torch.linalg.lstsq(encodings[:, 6:][:, named], added)
        assert torch.allclose(encodings[:, 6:][:, named] @ answer.solution, added, atol=1e-10)
        return dict(zip((named.nonzero().squeeze(1) + 6).tolist(), answer.solution, strict=True))

    seen = [solved(client) for client in range(6)]
    for vector in (v for one in seen for v in one.values()):
        assert bool((vector >= -1e-12).all()) and float(vector.norm()) == pytest.approx(1)
    pairs = [
        torch.allclose(one[c], other[c], atol=1e-8)
        for i, one in enumerate(seen)
        for other in seen[:i]
        for c in one.keys() & other.keys()
    ]
    assert pairs and set(pairs) == {vectors == "public"}


def test_decoys_are_as_long_as_the_mean_representation(draw):
    here = draw(TEN[:42])
    scheme, reps = make("decoy"), torch.rand(42, 8, generator=here.rng("reps")) * 50
    mix = scheme.mix(here)
    added = scheme(reps, here).artifact.rep - mix.weights.float() @ reps
    expected = mix.decoy * reps.double().mean(0).norm()
    torch.testing.assert_close(added.double(), expected, rtol=1e-5, atol=1e-4)


def test_without_an_absent_class_there_is_no_decoy(draw):
    assert torch.equal(make("decoy").mix(draw(TEN)).weights, make("rap").mix(draw(TEN)).weights)
    nine = make("decoy", count=5).mix(draw(TEN[:63]))
    assert nine.encoding.gt(0).all()  # one class was absent, one decoy is put there


# --- composition -------------------------------------------------------------------------------


def test_on_some_is_the_scheme_on_those_samples(draw):
    keep = TEN % 2 == 0
    mix, alone = on_some(make("rap"), draw(TEN), keep), make("rap").mix(draw(TEN[keep]))
    assert torch.equal(mix.weights[keep], alone.weights) and not mix.weights[~keep].any()
    assert on_some(make("rap"), draw(TEN), torch.zeros(70, dtype=torch.bool)) is None
    assert on_some(make("refuse-single"), draw(TEN), TEN == 2) is None


def test_blend_is_linear_also_in_decoys(draw):
    plain, decoyed = make("rap").mix(draw(TEN[:42])), make("decoy").mix(draw(TEN[:42]))
    assert torch.allclose(blend(plain, decoyed, 0.25).decoy, 0.25 * decoyed.decoy)
    assert torch.allclose(blend(decoyed, plain, 0.25).decoy, 0.75 * decoyed.decoy)
    assert torch.allclose(blend(decoyed, decoyed, 0.25).decoy, decoyed.decoy)
    assert blend(plain, plain, 0.25).decoy is None


def test_decoys_in_decoys_both_count(draw):
    mix = make("decoy", base=make("decoy", count=4)).mix(draw(TEN[:42]))
    assert float(mix.encoding.sum()) == pytest.approx(1)
    assert float(mix.encoding[6:].sum()) == pytest.approx(1 - float(mix.weights.sum()))
