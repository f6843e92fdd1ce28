"""The optimisers do what torch's do, without torch's compiler."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedre_privacy.core import optimisers

SLOW = ("torch._dynamo", "torchvision", "sklearn", "sympy")

JOB = """
import sys
import fedre_privacy as fp
run = fp.train("fedgh", rounds=1, clients=2, runs=sys.argv[1])
fp.attack(run, targets=1, set={"attack.steps": 2}, isolation="same-process")
print(*sys.modules)
"""


def descend(kind: type[torch.optim.Optimizer], **settings: float) -> torch.Tensor:
    """Weights after some steps on a quadratic loss."""
    torch.manual_seed(0)
    weights, rows = torch.nn.Parameter(torch.randn(5)), torch.randn(9, 5)
    optimiser = kind([weights], lr=0.1, **settings)

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        value = (rows @ weights - 1).square().mean()
        value.backward()
        return value

    for _ in range(4):
        optimiser.step(loss)
    return weights.detach()


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("SGD", {}),
        ("SGD", {"momentum": 0.9, "weight_decay": 0.1}),
        ("Adam", {}),
        ("AdamW", {"weight_decay": 0.1}),
        ("LBFGS", {}),
    ],
)
def test_steps_are_those_of_torch(name: str, settings: dict[str, float]) -> None:
    ours = descend(getattr(optimisers, name), **settings)
    assert torch.equal(ours, descend(getattr(torch.optim, name), **settings))
    assert torch.is_grad_enabled()


UNTOUCHED = """
import torch
kinds = [torch.optim.Optimizer, torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW]
before = [dict(vars(kind)) for kind in kinds]
inner = [vars(m.__wrapped__).copy() for m in before[0].values() if hasattr(m, "__wrapped__")]
import fedre_privacy.api
from fedre_privacy.core.optimisers import SGD
SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1).zero_grad()
assert [dict(vars(kind)) for kind in kinds] == before
assert [vars(m.__wrapped__) for m in before[0].values() if hasattr(m, "__wrapped__")] == inner
"""


def test_the_classes_of_torch_are_left_alone() -> None:
    subprocess.run([sys.executable, "-c", UNTOUCHED], check=True)


@pytest.mark.slow
def test_training_and_attacking_import_nothing_slow(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", JOB, str(tmp_path)], capture_output=True, text=True, check=True
    )
    loaded = done.stdout.split()
    assert "torch.optim" in loaded
    assert not {name for name in SLOW if name in loaded}
