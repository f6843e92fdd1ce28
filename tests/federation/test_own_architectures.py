"""Architectures that rely on their layout or write in place are trained and attacked as others."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import fedre_privacy as fp
from fedre_privacy.models import build_model
from fedre_privacy.models.families import ModelSettings
from fedre_privacy.models.probe import in_own_layout
from fedre_privacy.models.zoo.base import Architecture, architectures


class Backbone(nn.Module):
    def __init__(self, channels: int, width: int, how: str) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 4, 3, stride=2, padding=1)
        self.width, self.how = width, how

    def forward(self, x: Tensor) -> Tensor:
        x = x.mul_(0.5).mul_(2.0) if self.how == "in place" else x
        maps = torch.tanh(self.conv(x))
        return maps.flatten(1) if self.how == "plain" else maps.view(-1, self.width)


@dataclass(frozen=True)
class Viewing(Architecture):
    how: str = "view"

    def backbone(self, image_shape: tuple[int, int, int]) -> tuple[nn.Module, int]:
        channels, height, width = image_shape
        length = 4 * (height // 2) * (width // 2)
        return Backbone(channels, length, self.how), length


@pytest.fixture
def named(monkeypatch):
    """Register an architecture for one test; of one name, since names seed the first weights."""

    def register(how: str) -> str:
        name = "own-net"
        monkeypatch.setitem(architectures._things, name, type("Own", (Viewing,), {
            "name": name, "__init__": lambda self: Viewing.__init__(self, how),
        }))  # fmt: skip
        monkeypatch.setitem(architectures._origins, name, __name__)
        return name

    architectures.names()  # built-in ones are found first
    return register


@pytest.mark.parametrize("how", ["view", "in place"])
def test_a_federation_of_them_ends_at_the_models_of_their_plain_twin(how, named, tmp_path):
    ends = {}
    for one in (how, "plain"):
        run = fp.train(
            "fedproto", clients=2, rounds=1, models=named(one), runs=tmp_path / one, device="cpu",
            set={
                "data.size": 12, "data.per_class": 8, "model.dim": 16, "train.batch_size": 8,
                "record.keep_every": 1,
            },
        )  # fmt: skip
        ends[one] = run.state(0, 1)
        if one == how:
            found = fp.attack(
                run, attack={"name": "dip", "steps": 2}, isolation="same-process", device="cpu",
                set={"eval.targets": 2},
            )  # fmt: skip
            assert found.outcome.images.isfinite().all()
    for name, value in ends["plain"].items():
        assert torch.allclose(value, ends[how][name], atol=1e-4), name


@pytest.mark.slow
def test_built_in_ones_stay_in_the_faster_layout():
    for name in ("cnn4", "resnet8", "mobilenet-v2"):
        model = build_model(ModelSettings(name=name, dim=16), 0, (3, 32, 32), 10)
        assert not in_own_layout(model)
