"""Rates of right and wrong alarms, and their figure."""

import pytest
import torch
from scipy.stats import norm

from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.rng import stream
from fedre_privacy.eval.report.roc import roc_figure
from fedre_privacy.eval.roc import roc, tpr_at


def drawn(shift: float, n: int = 40_000):
    rng = stream(0, "scores")
    return torch.randn(n, generator=rng) + shift, torch.randn(n, generator=rng)


@pytest.mark.parametrize(("shift", "at_1", "at_01"), [(1, 0.092, 0.018), (2, 0.372, 0.138)])
def test_normal_scores_have_their_known_rates(shift, at_1, at_01):
    inside, outside = drawn(shift)
    for rate, known in ((0.01, at_1), (0.001, at_01)):
        found = tpr_at(inside, outside, rate)
        assert found.tpr == pytest.approx(known, abs=0.02)
        assert found.interval[0] <= found.tpr <= found.interval[1]


def test_no_more_others_pass_than_the_rate_allows_and_ties_do_not():
    inside, outside = torch.tensor([3.0, 2, 2, 0]), torch.tensor([2.0, 1, 0, 0])
    assert tpr_at(inside, outside, 0.25).tpr == 0.75  # one other, of score 2, may pass
    flat = torch.ones(1000)
    assert tpr_at(flat, flat, 0.01).tpr == 0


def test_too_few_others_have_no_low_rate():
    assert tpr_at(torch.ones(9), torch.zeros(99), 0.01) is None
    assert tpr_at(torch.ones(9), torch.zeros(100), 0.01).tpr == 1


def test_the_curve_rises_from_nobody_to_everybody_and_has_the_area():
    inside, outside = drawn(1.0, 5000)
    fpr, tpr = roc(inside, outside)
    assert fpr[0] == tpr[0] == 0 and fpr[-1] == tpr[-1] == 1
    assert bool((fpr.diff() >= 0).all() and (tpr.diff() >= 0).all())
    area = float(torch.trapezoid(tpr, fpr))
    assert area == pytest.approx(norm.cdf(1 / 2**0.5), abs=0.01)


def test_the_figure_has_a_line_for_each_attack_and_logarithmic_axes():
    figure = roc_figure({"this attack": drawn(1.0, 300), "loss": drawn(0.2, 300)}, title="t")
    axes = figure.axes[0]
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "chance", "this attack", "loss",
    ]  # fmt: skip
    assert axes.get_xlim()[0] == pytest.approx(1e-3)
    with pytest.raises(ConfigError, match="nothing to draw"):
        roc_figure({"none": (torch.ones(3), torch.ones(0))}, title="t")
