"""Writing one's own: three lines are enough, and a mistake is told by name."""

import re
import statistics
import sys
import types

import numpy as np
import pytest
import torch

from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.entanglement.base import Entanglement, Mix, schemes
from fedre_privacy.entanglement.diagnostics import weight_matrix_diagnostics

LABELS = [0, 0, 1, 1, 1, 4]


def scheme(answer):
    class Mine(Entanglement):
        def sample_weights(self, labels, num_classes, rng):
            return answer(len(labels), rng)

    return Mine()


def test_three_lines_are_a_scheme(draw):
    mine = scheme(lambda n, rng: (w := torch.rand(n, generator=rng)) / w.sum())
    emission = mine(torch.eye(6, 8), draw(LABELS))
    drawn = torch.rand(6, generator=draw(LABELS).rng())
    torch.testing.assert_close(emission.artifact.rep[:6], drawn / drawn.sum())
    assert emission.mixture.weight.sum() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("kind", ["float32", "float64", "list", "numpy"])
def test_any_array_of_numbers_will_do(draw, kind):
    made = {
        "float32": lambda n, rng: torch.full((n,), 1 / n),
        "float64": lambda n, rng: torch.full((n,), 1 / n, dtype=torch.float64),
        "list": lambda n, rng: [1 / n] * n,
        "numpy": lambda n, rng: np.full(n, 1 / n),
    }
    mix = scheme(made[kind]).mix(draw(LABELS))
    assert mix.weights.dtype == torch.float64 and abs(float(mix.weights.sum()) - 1) < 1e-12


def test_none_is_a_refusal(draw):
    mine = scheme(lambda n, rng: None)
    assert mine.mix(draw(LABELS)) is None and mine(torch.ones(6, 8), draw(LABELS)) is None


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda n, rng: torch.ones(n), r"weights with the sum 6; needed: 1; divide"),
        (lambda n, rng: torch.full((n,), 0.1), r"with the sum 0\.6; needed: 1"),
        (lambda n, rng: torch.tensor([2.0, -1.0] + [0.0] * (n - 2)), "negative or non-finite"),
        (lambda n, rng: torch.full((n,), float("nan")), "negative or non-finite"),
        (lambda n, rng: torch.ones(10) / 10, r"shape \(10,\); needed: \(6,\)"),
    ],
)
def test_what_is_no_distribution_is_refused(draw, answer, says):
    with pytest.raises(IncompatibleError, match=f"Entanglement scheme 'Mine' gave .*{says}"):
        scheme(answer)(torch.ones(6, 8), draw(LABELS))


@pytest.mark.parametrize(
    ("weights", "encoding", "decoy", "says"),
    [
        (1 / 6, [0.5, 0.4], None, r"a label encoding with the sum 0\.9"),
        (1 / 6, [1.0], None, r"a label encoding with shape \(1,\); needed: \(2,\)"),
        (0.1, [0.5, 0.5], None, r"weights with the sum 0\.6"),
        (0.2, [0.5, 0.5], torch.ones(8), r"the sum 1\.2; needed: at most 1"),
        (0.1, [0.5, 0.5], torch.ones(3), r"a decoy with shape \(3,\); needed: \(8,\)"),
    ],
)
def test_what_is_no_mix_is_refused(draw, weights, encoding, decoy, says):
    class Mine(Entanglement):
        def mix(self, draw):
            every = torch.full((6,), weights, dtype=torch.float64)
            return Mix(every, torch.tensor(encoding), decoy)

    with pytest.raises(IncompatibleError, match=says):
        Mine()(torch.ones(6, 8), draw([0, 0, 1, 1, 1, 1], num_classes=2))


def test_a_scheme_without_weights_says_so(draw):
    with pytest.raises(TypeError, match="Entanglement does not define sample_weights"):
        Entanglement()(torch.ones(6, 8), draw(LABELS))


@pytest.mark.parametrize(("page", "name"), [("schemes", "Skewed"), ("add_your_own", "Smoothed")])
def test_examples_of_the_documentation_run(repo, draw, page, name):
    blocks = re.findall(r"```python\n(.*?)```", (repo / "docs" / f"{page}.md").read_text(), re.S)
    (example,) = [block for block in blocks if f"class {name}(" in block]
    found = {"__name__": "example"}
    sys.modules["example"] = types.ModuleType("example")  # dataclass looks its module up
    try:
        exec(example, found)
    finally:
        del sys.modules["example"]
    emission = found[name]()(torch.rand(6, 8), draw(LABELS))
    assert float(emission.artifact.encoding.sum()) == pytest.approx(1, abs=1e-6)
    if name == "Smoothed":
        assert float(emission.artifact.encoding.min()) >= 0.01 - 1e-8


def test_the_documented_prediction_prints(repo, capsys):
    blocks = re.findall(r"```python\n(.*?)```", (repo / "docs" / "schemes.md").read_text(), re.S)
    (example,) = [block for block in blocks if "weight_matrix_diagnostics" in block]
    exec(example, {})
    assert capsys.readouterr().out.startswith("WeightMatrix(uploads=40, classes=10, s_min=0.01")


@pytest.mark.slow
def test_the_documented_table_is_what_is_computed(repo):
    """The three columns of numbers, for every scheme by its own name."""
    from_table = {}
    for line in (repo / "docs" / "schemes.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        name = re.fullmatch(r"`([\w-]+)`(?: \(FedRE's\))?", cells[0])
        if name and len(cells) == 6:
            from_table[name[1]] = [float(cell) for cell in cells[3:]]
    assert set(from_table) == set(schemes.names())
    labels = torch.arange(10).repeat_interleave(30)
    for name, shown in from_table.items():
        scheme = schemes.get(name)()
        found = [weight_matrix_diagnostics(scheme, labels, 20, 40, seed) for seed in range(20)]
        computed = [
            statistics.median(getattr(one, field) for one in found)
            for field in ("s_min", "recovery_error", "samples_mixed")
        ]
        assert computed == pytest.approx(shown, rel=0.005, abs=0.005), name
