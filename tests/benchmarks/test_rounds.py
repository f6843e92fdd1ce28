"""The benchmark of rounds runs and compares like with like."""

from __future__ import annotations

import json

import pandas as pd
import pytest
import torch

from fedre_privacy.models.families import ModelSettings, build_model
from fedre_privacy.models.split import num_parameters

SIZE = {"clients": 2, "samples": 12, "batch": 4, "architecture": "cnn-5"}


@pytest.fixture(scope="module")
def rounds(load):
    return load("rounds")


@pytest.mark.slow
def test_it_prints_and_writes(rounds, tmp_path, capsys):
    rounds.main(
        ["--clients=2", "--samples=12", "--batch=4", "--repeats=1", "--architecture=cnn-5",
         f"--out={tmp_path}"]
    )  # fmt: skip
    text = capsys.readouterr().out
    found = json.loads((tmp_path / "rounds.json").read_text())
    assert [entry["protocol"] for entry in found["rounds"]] == list(rounds.PROTOCOLS)
    assert all(entry["bare_wall_s"] > 0 for entry in found["rounds"])
    assert all(name in text for name in rounds.PROTOCOLS)
    assert len(pd.read_csv(tmp_path / "rounds.csv")) == 4


@pytest.mark.slow
def test_bare_and_ours_train_the_same_models(rounds, tmp_path):
    """Same batches, same arithmetic: one round of local training ends in the same weights."""
    federation = rounds.build("fedre", rounds=1, device=torch.device("cpu"), **SIZE)
    bare = rounds.Bare("fedre", federation)
    for model in bare.models:
        model.head.load_state_dict(federation.server.modules["head"].state_dict())
    bare.prepare(1)
    bare.run()
    rounds._run(federation, tmp_path)
    for model, client in zip(bare.models, federation.clients, strict=True):
        ours = client.model.extractor.state_dict()
        for name, value in model.extractor.state_dict().items():
            assert torch.allclose(value, ours[name], atol=1e-6), name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedre", "fedgh", "fedproto", "fedavg"])
def test_plain_takes_as_many_steps(rounds, tmp_path, monkeypatch, name):
    federation = rounds.build(name, rounds=1, device=torch.device("cpu"), **SIZE)
    steps = []
    original = torch.optim.SGD.step
    monkeypatch.setattr(
        torch.optim.SGD, "step", lambda self, *a: (steps.append(1), original(self, *a))[1]
    )
    for version in (
        rounds.Plain(name, federation, tmp_path),
        rounds.Bare(name, federation),
    ):
        version.prepare(1)
        version.run()
    pairs = sum(len(client.train.labels.unique()) for client in federation.clients)
    server = {"fedre": 1, "fedgh": -(-pairs // rounds.SERVER_BATCH)}.get(name, 0)
    assert len(steps) == 2 * 2 * 3 + server


@pytest.mark.slow
def test_memory_is_about_the_parameters(rounds):
    found = rounds.memory("fedre", 20, "cnn-1")
    model = build_model(ModelSettings(name="cnn-1"), 0, rounds.SHAPE, rounds.CLASSES)
    assert found["parameter_bytes"] == 20 * 4 * num_parameters(model)
    assert 0.7 < found["built_bytes"] / found["parameter_bytes"] < 1.3
    assert found["peak_bytes"] < 2.6 * found["parameter_bytes"]
