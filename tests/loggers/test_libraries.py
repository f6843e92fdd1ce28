"""Loggers write what their libraries read: TensorBoard, MLflow and Weights & Biases themselves."""

from __future__ import annotations

import importlib.util
import math
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fedre_privacy.cli import attack, benchmark, train
from fedre_privacy.core.events import Event
from fedre_privacy.loggers.base import LoggedWork, logging_work

WORDS = "--rounds 2 --clients 2 --set data.per_class=12 --set train.shared_test=0".split()
SETTINGS = {"train": {"lr": 0.06, "clients": 2}, "defense": [{"name": "gaussian"}]}


def needs(package: str) -> pytest.MarkDecorator:
    """The library is there: `make test-extras` installs it."""
    absent = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(absent, reason=f"{package} is not installed: extra '{package}'")


def events() -> Iterator[Event]:
    for round in (1, 2):
        loss = math.nan if round == 2 else 0.75
        yield Event("train.round", {"round": round, "of": 2, "loss": loss, "accuracy": 0.5})
    for first in (0, 2):  # two tiles, each from its first step
        for step in range(3):
            match = torch.full((2,), step + first / 8)
            data = {"step": step, "of": 3, "first": first, "rows": 2, "total": 4}
            yield Event("attack.step", {**data, "match": match})


def log_all(name: str, runs: Path, *, fail: bool = False) -> list[Event]:
    """Log a piece of work, and return what was reported."""
    heard: list[Event] = []
    work = LoggedWork("training", "my-run", SETTINGS, runs)
    try:
        with logging_work(name, work, heard.append) as report:
            for event in events():
                report(event)
            if fail:
                raise LookupError
            report.summarise({"accuracy": 0.5, "psnr/floor": 12.0})
    except LookupError:
        assert fail
    assert [event.data for event in heard if event.name == "note"] == []
    return heard


@needs("tensorboard")
def test_tensorboard_reads_what_was_logged(tmp_path, capsys):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log_all("tensorboard", tmp_path)
    (file,) = (tmp_path / "tensorboard" / "my-run").rglob("events.out.*")
    read = EventAccumulator(str(file.parent)).Reload()
    got = {tag: [(e.step, e.value) for e in read.Scalars(tag)] for tag in read.Tags()["scalars"]}
    assert got["train/accuracy"] == [(1, 0.5), (2, 0.5)]
    assert got["train/loss"][0] == (1, 0.75) and math.isnan(got["train/loss"][1][1])
    assert got["attack/match/rows 2 to 3"] == [(0, 0.25), (1, 1.25), (2, 2.25)]
    assert got["final/accuracy"] == [(0, 0.5)] and got["final/psnr/floor"] == [(0, 12.0)]
    (text,) = read.Tensors("settings/text_summary")
    assert b"| train.lr | 0.06 |" in text.tensor_proto.string_val[0]


@needs("tensorboard")
def test_a_command_writes_event_files_beside_runs(tmp_path, capsys):
    words = [*WORDS, "--runs-dir", str(tmp_path), "--log", "tensorboard", "--quiet"]
    assert train.main(words) == 0
    run = Path(capsys.readouterr().out.strip())
    (file,) = (tmp_path / "tensorboard").rglob("events.out.*")
    assert file.parent.parent.name == run.name
    assert not any("events.out" in path.name for path in run.rglob("*"))


@pytest.mark.slow
@needs("mlflow")
def test_mlflow_reads_what_was_logged(tmp_path, capsys, monkeypatch):
    from mlflow.tracking import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    log_all("mlflow", tmp_path)
    log_all("mlflow", tmp_path, fail=True)
    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("fedre-privacy")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time"])
    assert [run.info.status for run in runs] == ["FINISHED", "FAILED"]
    done = runs[0]
    assert done.info.run_name == "my-run" and done.data.tags["kind"] == "training"
    assert done.data.params["train.lr"] == "0.06"
    assert (
        done.data.metrics["final/accuracy"] == 0.5 and done.data.metrics["final/psnr/floor"] == 12
    )
    curve = client.get_metric_history(done.info.run_id, "attack/match/rows 2 to 3")
    assert [(one.step, one.value) for one in curve] == [(0, 0.25), (1, 1.25), (2, 2.25)]
    losses = client.get_metric_history(done.info.run_id, "train/loss")
    assert losses[0].value == 0.75 and math.isnan(losses[1].value)
    assert runs[1].data.metrics.keys() >= {"train/accuracy"} and not any(
        key.startswith("final/") for key in runs[1].data.metrics
    )


def leveldb_records(data: bytes, offset: int) -> Iterator[bytes]:
    """Records of a LevelDB log, which a W&B file is after its own first bytes."""
    at, whole = 0, b""
    while at + 7 <= len(data):
        left = 32768 - (at + offset) % 32768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a record that is whole, or the end of one
            yield whole
            whole = b""


@pytest.mark.slow
@needs("wandb")
def test_wandb_reads_what_was_logged_offline(tmp_path, capsys, monkeypatch):
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("WANDB_DIR", raising=False)
    log_all("wandb", tmp_path)
    assert capsys.readouterr().out == ""
    (file,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    rows, summary, config, name = [], {}, {}, ""
    records: list[Any] = []
    for _ in range(300):  # the library's own process writes the file, and may be behind
        records = [Record.FromString(data) for data in leveldb_records(file.read_bytes()[7:], 7)]
        if records and records[-1].HasField("exit"):
            break
        time.sleep(0.1)
    for record in records:
        if record.HasField("run"):
            name = name or record.run.display_name
            config |= {item.key: item.value_json for item in record.run.config.update}
        if record.HasField("history"):
            items = record.history.item
            rows.append({i.key or "/".join(i.nested_key): i.value_json for i in items})
        for item in record.summary.update:
            summary[item.key or "/".join(item.nested_key)] = item.value_json
    assert name == "my-run" and config["train"] == '{"lr":0.06,"clients":2}'.replace(" ", "")
    losses = [row["train/loss"] for row in rows if "train/loss" in row]
    assert losses == ["0.75", "NaN"]
    curve = [
        (row["attack/step"], row["attack/match/rows 2 to 3"])
        for row in rows
        if "attack/match/rows 2 to 3" in row
    ]
    assert [(int(step), float(value)) for step, value in curve] == [(0, 0.25), (1, 1.25), (2, 2.25)]
    assert summary["final/accuracy"] == "0.5"


@pytest.mark.slow
@needs("mlflow")
@needs("tensorboard")
def test_a_benchmark_is_logged_with_its_means(tmp_path, capsys, monkeypatch):
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'own.db'}")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    words = ["--protocols", "fedgh", "--seeds", "0", "--attacks", "labels", *WORDS]
    words += ["--log", "mlflow,tensorboard"]
    assert benchmark.main([*words, "--runs-dir", str(tmp_path / "runs")]) == 0
    client = MlflowClient()
    experiment = client.get_experiment_by_name("mine")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.tags["kind"] == "benchmark" and run.data.metrics["sweep/failed"] == 0
    assert 0 <= run.data.metrics["final/fedgh/accuracy"] <= 1
    assert any(key.startswith("final/fedgh/labels on ") for key in run.data.metrics)
    assert len(list((tmp_path / "runs" / "tensorboard").rglob("events.out.*"))) == 1


@pytest.mark.slow
@needs("mlflow")
def test_mlflow_that_cannot_be_reached_is_refused_before_training(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert attack.main([*WORDS, "--runs-dir", str(tmp_path), "--log", "mlflow"]) == 3
    assert "--log mlflow cannot begin: " in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
