"""How deep in the product an attack computes: a traceback of it should fit a screen."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import fedre_privacy as fp
from fedre_privacy.attacks.inversion.gradient_descent import Search
from fedre_privacy.cli import attack as command

PRODUCT = tuple(
    f"{Path(sys.modules[name].__path__[0])}/"
    for name in ("fedre_privacy", "fedre_privacy.attacks", "fedre_privacy.core")
)


@pytest.fixture
def frames(monkeypatch):
    """Functions of the product above the first optimiser step of `dip`, outermost first."""
    found: list[str] = []
    step = Search.step

    def first(self: Search) -> None:
        frame = sys._getframe(1)
        while not found or frame is not None:
            if frame.f_code.co_filename.startswith(PRODUCT):
                found.insert(0, frame.f_code.co_name)
            frame = frame.f_back
        monkeypatch.setattr(Search, "step", step)
        step(self)

    monkeypatch.setattr(Search, "step", first)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a tile on a thread of its own begins anew
    yield found
    torch.set_num_threads(threads)


def test_a_module_is_attacked_within_twelve_frames(frames):
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 14 * 14, 16)).eval()
    images = torch.rand(3, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    fp.attack_module(
        net,
        representations=net(images).detach(),
        image_shape=(1, 16, 16),
        attack={"name": "dip", "steps": 2},
    )
    assert frames[-1] == "fit_tile" and len(frames) <= 12, frames


def test_the_command_attacks_within_eighteen_frames(frames, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = command.main(
        [
            *("--set", "data.name=digits", "--protocol", "fedproto", "--set", "data.size=16"),
            *("--set", "data.per_class=12", "--set", "model.dim=16", "--rounds", "1"),
            *("--clients", "3", "--attack", "dip", "--set", "attack.steps=2", "--targets", "2"),
            *("--isolation", "same-process"),
        ]
    )
    assert code in (0, None)
    assert frames[-1] == "fit_tile" and len(frames) <= 18, frames
