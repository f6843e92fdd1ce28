"""Class statistics that another system recorded: taken apart without truth, or refused."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fedre_privacy.core.artifacts import ClassStatistics
from fedre_privacy.core.types import Upload
from fedre_privacy.federation.recorder import Recorder

MODULE = """
from torch import nn

def extractor():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 90), nn.ReLU())
"""
GIVEN = (
    "--uploads", "up", "--extractor", "net_statistics:extractor", "--weights", "w.safetensors",
    "--image-shape", "1x8x8",
)  # fmt: skip


def statistics(counts, form="full", seed=0):
    """Of ReLU features (n, 90), as NumPy would divide them: by n - 1."""
    rng = torch.Generator().manual_seed(seed)
    classes = [torch.randn(n, 90, generator=rng).clamp(min=0).double() for n in counts]
    means = torch.stack([own.mean(0) for own in classes])
    spread = [torch.cov(own.T, correction=int(len(own) > 1)) for own in classes]
    return ClassStatistics(
        means.float(), torch.tensor(counts), torch.arange(len(counts)),
        {form: torch.stack(spread).float()},
    )  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("net_statistics.py").write_text(MODULE)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 90), nn.ReLU())
    save_file(net.state_dict(), "w.safetensors")


def record(*sent):
    recorder = Recorder(Path("up"))
    recorder.write(1, [Upload(client, 1, (one,)) for client, one in enumerate(sent)], [])
    recorder.save()


def test_strangers_statistics_are_taken_apart(cli):
    record(statistics([2, 4, 1]), statistics([3], seed=1))
    done = cli.attack(*GIVEN, "--attack", "unpool")
    assert done.code == 0, done.err
    assert "10 representations found, 10 of them certified" in done.out
    assert "nothing is scored" in done.out


def test_statistics_of_other_shapes_are_left_out_or_refused(cli):
    good = statistics([3, 2])
    bad = replace(good, spread={"full": good.spread["full"][:, :5]})
    record(good, bad)
    done = cli.attack(*GIVEN, "--attack", "unpool")
    assert done.code == 0 and "5 representations found" in done.out, done.err
    assert "has shape" in done.out
    record(bad)
    done = cli.attack(*GIVEN, "--attack", "unpool")
    assert done.code != 0 and "has shape" in done.err


def test_a_covariance_of_one_image_by_numpy_is_refused_by_name(cli):
    good = statistics([2])
    record(replace(good, counts=torch.tensor([1]), spread={"full": good.spread["full"] / 0}))
    done = cli.attack(*GIVEN, "--attack", "unpool")
    assert done.code != 0 and "not finite" in done.err
