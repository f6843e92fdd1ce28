"""Lower bounds on epsilon: printed values of the methods, their level, and what they refuse."""

import numpy as np
import pytest
from scipy.stats import norm

from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.gdp import gdp_epsilon
from fedre_privacy.core.tradeoff import GaussianCurve, PairsCurve
from fedre_privacy.eval.lower_bounds import (
    FLAG,
    Errors,
    accuracy_p,
    epsilon_box,
    epsilon_one_run,
    mu_of_accuracy,
    mu_of_scores,
    one_run_p,
    refutes_curve,
    share_interval,
    upper_share,
)

BOXES = [
    ((3, 1000, 400, 1000), 4.1755, 4.1738),
    ((159, 1000, 159, 1000), 1.4951, 1.4938),
    ((0, 500, 250, 500), 4.1261, 4.1239),
    ((50, 200, 60, 200), 0.6922, 0.6907),
    ((5, 2000, 1800, 2000), 2.7060, 2.6946),
]


@pytest.mark.parametrize(("counts", "tight", "loose"), BOXES)
def test_the_box_gives_its_known_values(counts, tight, loose):
    errors = Errors(*counts)
    assert epsilon_box(errors, 1e-5) == pytest.approx(tight, abs=1e-4)
    assert epsilon_box(errors, 1e-3) == pytest.approx(loose, abs=1e-4)
    swapped = Errors(counts[2], counts[3], counts[0], counts[1])
    assert epsilon_box(swapped, 1e-5) == epsilon_box(errors, 1e-5)


@pytest.mark.parametrize(
    ("arm", "epsilon"), [(50, 2.57), (100, 3.28), (1000, 5.60), (10_000, 7.91)]
)
def test_a_perfect_attack_shows_what_its_trials_allow(arm, epsilon):
    perfect = Errors(0, arm, 0, arm)
    assert epsilon_box(perfect, 1e-5) == pytest.approx(epsilon, abs=0.01)


@pytest.mark.parametrize("threshold", ["fixed", "from the other half"])
def test_the_box_is_seldom_above_the_truth(threshold):
    """Gaussian pair, mu 1, 1,000 trials an arm: at most 2 % of 500 audits, at a nominal 5 %."""
    rng, true, above = np.random.default_rng(2), gdp_epsilon(1.0, 1e-5), 0
    for _ in range(500):
        without, within = rng.normal(0, 1, (2, 1000)) + np.array([[0.0], [1.0]])
        cut = 1.5
        if threshold != "fixed":  # the best of one half, judged on the other
            cuts = np.linspace(-1, 3, 41)
            shown = [
                epsilon_box(
                    Errors(
                        int((without[:500] > c).sum()), 500, int((within[:500] <= c).sum()), 500
                    ),
                    1e-5,
                )
                for c in cuts
            ]
            cut, without, within = cuts[int(np.argmax(shown))], without[500:], within[500:]
        count = len(without)
        errors = Errors(int((without > cut).sum()), count, int((within <= cut).sum()), count)
        above += epsilon_box(errors, 1e-5) > true
    assert above <= 10


def test_right_guesses_of_a_balanced_audit_show_more_than_its_box():
    errors = Errors(159, 1000, 159, 1000)
    fpr, fnr = errors.rates(0.05)
    box = norm.isf(fpr) - norm.ppf(fnr)
    assert box == pytest.approx(1.8068, abs=1e-4)
    assert mu_of_accuracy(2000 - 318, 2000) > box


@pytest.mark.parametrize(
    ("right", "trials", "mu"),
    [(691, 1000, 0.8582), (1383, 2000, 0.9023), (841, 1000, 1.8364), (330, 400, 1.6179),
     (100, 100, 3.776)],
)  # fmt: skip
def test_right_guesses_bound_mu(right, trials, mu):
    assert mu_of_accuracy(right, trials) == pytest.approx(mu, abs=1e-3 if trials == 100 else 1e-4)
    assert mu_of_accuracy(trials // 2, trials) == 0


def test_the_accuracy_test_keeps_its_level():
    cap = GaussianCurve(0.5).cap
    right = np.random.default_rng(0).binomial(1000, cap, 2000)
    p = np.array([accuracy_p(int(k), 1000, cap) for k in right])
    assert 0.03 < (p < 0.05).mean() < 0.06
    assert (p < FLAG).mean() <= 0.004


def test_halved_noise_is_found_with_the_stated_number_of_trials():
    claimed, true = 1.666, 2 * 1.666  # epsilon 8; power .99 at 127 trials
    right = np.random.default_rng(1).binomial(127, GaussianCurve(true).cap, 2000)
    found = np.mean([accuracy_p(int(k), 127, GaussianCurve(claimed).cap) < FLAG for k in right])
    assert found > 0.98


def test_caps_agree_where_claims_do():
    assert GaussianCurve(0.0).cap == PairsCurve(((0.0, 0.0),)).cap == 0.5
    tv = 2 * norm.cdf(0.5) - 1
    assert GaussianCurve(1.0).cap == pytest.approx(PairsCurve(((0.0, tv),)).cap, abs=1e-12)
    assert PairsCurve(((1.0, 0.0),)).cap == pytest.approx(0.7310586, abs=1e-6)


ALL_RIGHT = {10: 1.0519, 20: 1.8227, 50: 2.7847, 100: 3.4930, 200: 4.1936, 1000: 5.8091,
             10_000: 8.1130}  # fmt: skip


@pytest.mark.parametrize("slots", ALL_RIGHT)
def test_one_run_with_all_right_has_a_closed_form(slots):
    found = epsilon_one_run(slots, slots, slots, 0.0)
    assert found == pytest.approx(ALL_RIGHT[slots], abs=1e-4)
    assert found == pytest.approx(-np.log(0.05 ** (-1 / slots) - 1), abs=1e-6)


@pytest.mark.parametrize(
    ("slots", "guessed", "right", "delta", "epsilon"),
    [
        (100, 100, 100, 1e-5, 3.4902), (1000, 1000, 1000, 1e-5, 5.7823),
        (1000, 1000, 1000, 1e-4, 5.5293), (10_000, 10_000, 10_000, 1e-3, 3.3048),
        (100, 100, 90, 1e-3, 1.5806), (100, 50, 50, 1e-5, 2.7819), (100, 50, 48, 0.0, 1.9866),
        (1000, 1000, 600, 1e-5, 0.2972), (1000, 200, 190, 1e-3, 1.4080),
        (1000, 100, 95, 1e-3, 0.5943), (1000, 1000, 900, 0.0, 2.0212), (200, 200, 150, 0.0, 0.8214),
    ],
)  # fmt: skip
def test_one_run_gives_its_known_values(slots, guessed, right, delta, epsilon):
    assert epsilon_one_run(slots, guessed, right, delta) == pytest.approx(epsilon, abs=1e-4)


def test_one_run_p_values():
    assert one_run_p(10, 5, 5, 0.0, 0.01) == pytest.approx(1 / 32 + 0.2 * 25 / 96, abs=1e-12)
    assert one_run_p(100, 80, 70, 1.0, 1e-5) == pytest.approx(0.001640, abs=1e-6)
    assert one_run_p(1000, 500, 450, 2.0, 1e-5) == pytest.approx(0.103399, abs=1e-6)
    falling = [one_run_p(100, 80, 70, e, 1e-5) for e in (0.0, 0.5, 1.0, 2.0, 4.0)]
    assert falling == sorted(falling) and 0 <= falling[0] and falling[-1] <= 1


def test_one_run_moves_the_right_way():
    by_right = [epsilon_one_run(200, 100, v, 1e-5) for v in (40, 50, 70, 90, 100)]
    assert by_right == sorted(by_right) and by_right[0] == by_right[1] == 0
    assert epsilon_one_run(5000, 100, 90, 1e-3) < epsilon_one_run(200, 100, 90, 1e-3)


def test_one_run_covers_under_randomised_response():
    """Each coin told right with chance expit(1): epsilon is 1, and guesses are independent."""
    rng = np.random.default_rng(2)
    right = rng.binomial(500, 1 / (1 + np.exp(-1)), 400)
    bound = {v: epsilon_one_run(500, 500, v, 0.0) for v in set(right.tolist())}
    assert np.mean([bound[int(v)] > 1 for v in right]) <= 0.08
    # the number of guesses chosen in hindsight breaks the level: why it is fixed beforehand
    scores = rng.random((150, 500))
    told = rng.random((150, 500)) < 1 / (1 + np.exp(-1))
    order = np.argsort(-scores, axis=1)
    best = []
    cache: dict[tuple[int, int], float] = {}
    for row, ranks in zip(told, order, strict=True):
        hits = np.cumsum(row[ranks])
        bounds = []
        for r in range(10, 501, 10):
            key = (r, int(hits[r - 1]))
            cache.setdefault(key, one_run_p(500, *key, 1.0, 0.0))
            bounds.append(cache[key])
        best.append(min(bounds) <= 0.05)
    assert np.mean(best) > 0.12


@pytest.mark.parametrize(
    ("counts", "mu"),
    [((1000, 1000, 1000), 2.3681), ((100, 100, 100), 1.7032),
     ((1000, 1000, 841), 0.6838), ((1000, 1000, 691), 0.3394)],
)  # fmt: skip
def test_one_run_refutes_gaussian_curves_up_to_its_known_mu(counts, mu):
    assert refutes_curve(*counts, GaussianCurve(mu - 1e-3))
    assert not refutes_curve(*counts, GaussianCurve(mu + 1e-3))


def test_dependence_costs_what_is_proved():
    mu = mu_of_accuracy(691, 1000)
    assert mu < 1 and not refutes_curve(1000, 1000, 691, GaussianCurve(mu))


def test_clopper_pearson():
    assert upper_share(0, 1000, 0.025) == pytest.approx(0.00368, abs=1e-5)
    assert share_interval(37, 1000) == pytest.approx((0.0262, 0.0506), abs=1e-4)
    assert share_interval(0, 10)[0] == 0 and share_interval(10, 10)[1] == 1
    for others, rate in ((29, 0.1), (299, 0.01), (2995, 0.001)):
        assert upper_share(0, others, 0.05) <= rate < upper_share(0, others - 1, 0.05)


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: epsilon_box(Errors(1, 10, 1, 10), 1.5), "delta is 1.5"),
        (lambda: epsilon_box(Errors(1, 10, 1, 10), 1e-5, 0.0), "alpha is 0"),
        (lambda: Errors(11, 10, 1, 10), "more errors than trials"),
        (lambda: Errors(0, 0, 1, 10), "no trials"),
        (lambda: epsilon_one_run(10, 20, 5, 0.0), "5 right of 20 guesses of 10 slots"),
        (lambda: epsilon_one_run(10, 5, 6, 0.0), "6 right of 5 guesses"),
    ],
)
def test_bad_counts_are_refused(ask, said):
    with pytest.raises(ConfigError, match=said):
        ask()


def test_errors_of_blind_guesses_show_nothing():
    assert epsilon_box(Errors(5, 5, 5, 5), 1e-5) == 0.0


def test_normal_scores_bound_mu_as_rarely_from_above_as_stated():
    rng = np.random.default_rng(5)
    for trials, effect in ((10, 0.8), (100, 0.3)):
        drawn = rng.normal(effect, 1.0, (2000, trials))
        found = np.array([mu_of_scores(one) for one in drawn])
        assert 0.035 < (found > 2 * effect).mean() < 0.065
        assert np.median(found) > 0.5 * effect
    assert mu_of_scores([-1.0, -1.1, -0.9]) == 0.0
    assert mu_of_scores([1.0, 1.0, 1.0]) == mu_of_accuracy(3, 3)
