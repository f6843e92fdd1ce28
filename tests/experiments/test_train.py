"""Training into a run folder: what is written, what is used again, what is refused."""

import csv
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml

from fedre_privacy.core.errors import (
    ConfigError,
    DamagedInputError,
    DivergedError,
    FedreError,
    IncompatibleError,
    StorageError,
)
from fedre_privacy.experiments.attack import prepare_attack
from fedre_privacy.experiments.compatibility import check_ahead
from fedre_privacy.experiments.questions.prototype_recovery import instead
from fedre_privacy.federation import loop, steps
from fedre_privacy.federation.recorder import rounds_recorded
from fedre_privacy.protocols.base import Protocol
from fedre_privacy.runs import disk_space as disk
from fedre_privacy.runs import preparation as preparing
from fedre_privacy.runs.initial_state import build_clients
from fedre_privacy.runs.preparation import models_bytes, prepare
from fedre_privacy.runs.resolution import require_resolved, resolve_attack, resolve_training
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.training import train


def _record(run):
    return json.loads((run.folder / "record.json").read_text())


def _files(run):
    return sorted(str(p.relative_to(run.folder)) for p in run.folder.rglob("*") if p.is_file())


def _interrupt(event):
    raise KeyboardInterrupt


def test_a_run_folder_holds_what_is_documented(runs):
    for name, run in runs.items():
        assert _files(run) == [
            "clients.csv",
            "config.yaml",
            "log.txt",
            "manifest.json",
            "metrics.csv",
            *(f"models/r000{r}.safetensors" for r in run.kept_rounds()),
            *(f"private/mixtures-r000{r}.safetensors" for r in run.kept_rounds()),
            "private/split.safetensors",
            "record.json",
            *(
                f"uploads/{file}"
                for file in ("index.json", *(f"r000{r}.safetensors" for r in (1, 2, 3)))
            ),
        ]
        assert run.kept_rounds() == ([1, 2] if name == "fedre" else [2])
        record = _record(run)
        assert record["name"] == run.folder.name and run.name.startswith(f"{name}-digits-")
        assert record["status"] == "complete" and record["wall_s"] > 0
        assert record["image_shape"] == [1, 16, 16] and record["dim"] == 32
        assert record["classes"] == [str(digit) for digit in range(10)]
        assert record["architectures"] == ["cnn4"] * 3
        assert len(record["data_sha256"]) == 64 and len(record["partition_sha256"]) == 2
        assert {"torch", "numpy", "fedre-privacy"} <= set(record["versions"])
        assert "complete" in repr(run) and record["summary"] in repr(run)
        rows = list(csv.DictReader((run.folder / "metrics.csv").open()))
        assert [row["round"] for row in rows] == ["1", "2"]
        final = {key: float(value) for key, value in rows[-1].items() if key != "wall_s"}
        assert record["final"] == pytest.approx(final)
        each = list(csv.DictReader((run.folder / "clients.csv").open()))
        assert [(row["round"], row["client"]) for row in each] == [
            (r, k) for r in "12" for k in "012"
        ]
        for moment in ("acc_post_local", "acc_post_broadcast"):
            last = [float(row[moment]) for row in each[3:]]
            assert sum(last) / 3 == pytest.approx(float(rows[-1][moment]))


def test_step_sizes_decay_by_the_round(tiny, tmp_path, monkeypatch):
    seen = []
    plain = steps.train_locally

    def fit(*given, **how):
        seen.append((how["lr"], how["momentum"], how["weight_decay"]))
        return plain(*given, **how)

    monkeypatch.setattr(steps, "train_locally", fit)
    how = {"rounds": 3, "lr": 0.2, "lr_decay": 0.5, "momentum": 0.9, "weight_decay": 1e-3}
    settings = tiny(protocol="fedre", train=how)
    train(settings, runs=tmp_path)
    assert seen == [([lr], 0.9, 1e-3) for lr in (0.2, 0.1, 0.05) for _ in range(3)]
    # runs of earlier settings keep their names
    plain_settings = tiny(protocol="fedre").plain()["train"]
    assert not {"lr_decay", "momentum", "weight_decay", "augment"} & set(plain_settings)
    assert {"lr_decay", "momentum", "weight_decay"} <= set(settings.plain()["train"])


def test_augmented_training_changes_what_is_learnt_and_nothing_else(tiny, tmp_path):
    runs = {
        name: train(tiny(protocol="fedavg", train={"rounds": 1, "augment": name}), runs=tmp_path)
        for name in ("none", "crop-flip-erase")
    }
    one, other = runs.values()
    assert one.record["partition_sha256"] == other.record["partition_sha256"]
    states = [run.state(0, 1) for run in (one, other)]
    assert any(not torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert other.settings.train.augment == "crop-flip-erase"


def test_attacks_that_simulate_local_training_need_plain_sgd(tiny):
    problems = []
    asked = resolve_attack(
        {"attack": "update-inversion", "target": "update", "threat": "strong"}, {}, problems
    )
    check_ahead(tiny(protocol="fedavg", train={"lr_decay": 0.9}), asked)
    for odd in ({"momentum": 0.9}, {"weight_decay": 0.1}, {"augment": "flip"}):
        with pytest.raises(IncompatibleError, match="momentum, weight decay or augmentation"):
            check_ahead(tiny(protocol="fedavg", train=odd), asked)
    assert not problems


def test_several_training_seeds_on_one_partition(tiny):
    def shared_out(run_seed, **partition):
        values = {"name": "pra", "alpha": 0.5, **partition}
        problems = []
        settings = resolve_training(
            {"data": {"name": "digits", "size": 16, "per_class": 12}, "partition": values,
             "train": {"clients": 3, "seed": run_seed}}, {}, problems,
        )  # fmt: skip
        assert not problems
        return settings, prepare(settings, torch.device("cpu")).split.sha256_train

    (first, own), (_, fixed), (other, same) = (
        shared_out(0), shared_out(1, seed=0), shared_out(2, seed=0)
    )  # fmt: skip
    assert own == fixed == same and other.train.seed == 2
    assert shared_out(1)[1] != own and shared_out(0, seed=1)[1] == shared_out(1)[1]
    assert "seed" not in first.plain()["partition"]
    assert shared_out(0, seed=0)[0].run_name != first.run_name == shared_out(0)[0].run_name


def test_the_split_on_disk_is_the_split_in_the_record(runs, tiny):
    run = runs["fedre"]
    train_parts, test_parts = run.split_indices()
    labels = tiny().data.load().labels
    counts = [labels[own].bincount(minlength=10).tolist() for own in train_parts]
    assert counts == run.record["class_counts"]
    every = np.concatenate([*train_parts, *test_parts])
    assert sorted(every.tolist()) == list(range(120))


def test_the_written_settings_repeat_the_run(runs):
    for run in runs.values():
        problems = []
        values = yaml.safe_load((run.folder / "config.yaml").read_text())
        settings = resolve_training(values, {}, problems)
        assert not problems and settings.run_name == run.name
        assert run.settings == settings


def test_an_identical_run_is_used_again(runs, tiny):
    run = runs["fedre"]
    before = {file: (run.folder / file).stat().st_mtime_ns for file in _files(run)}
    events = []
    again = train(tiny(protocol="fedre"), runs=run.folder.parent, report=events.append)
    assert again.folder == run.folder
    assert [event.name for event in events] == ["train.reused"]
    assert {file: (run.folder / file).stat().st_mtime_ns for file in _files(run)} == before


@pytest.mark.parametrize(
    "sections",
    [
        {"train": {"seed": 1}},
        {"train": {"lr": 0.05}},
        {"data": {"per_class": 11}},
        {"record": {"keep_every": 1}},
        {"protocol": {"name": "fedre", "resample": False}},
        {"protocol": {"name": "fedre", "entanglement": {"name": "rap", "weights": "laplace"}}},
    ],
)
def test_other_settings_are_another_folder(tiny, sections):
    assert tiny(**sections).run_name != tiny().run_name
    assert tiny(**sections).run_name == tiny(**sections).run_name


def test_defaults_that_are_spelled_out_name_the_same_run(tiny):
    spelled = {"name": "fedre", "entanglement": {"name": "rap", "weights": "uniform"}}
    assert tiny(protocol=spelled, train={"lr": "0.06", "seed": 0}).run_name == tiny().run_name


def test_an_unfinished_run_needs_a_decision(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0)
    settings = tiny()
    with pytest.raises(KeyboardInterrupt):
        train(settings, runs=tmp_path, report=_interrupt)
    folder = tmp_path / settings.run_name
    assert _record(Run(folder))["status"] == "partial"
    assert Run(folder).record["failure"] == "KeyboardInterrupt()"
    with pytest.raises(ConfigError, match="started before and is partial") as refused:
        train(settings, runs=tmp_path)
    assert "--resume" in str(refused.value) and "--restart" in str(refused.value)

    with pytest.raises(ConfigError) as refused:
        train(tiny(train={"lr": 0.05}), runs=tmp_path, resume=True)
    assert settings.run_name in str(refused.value) and "config.yaml" in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == [settings.run_name]

    rounds = []
    run = train(
        settings, runs=tmp_path, resume=True, report=lambda e: rounds.append(e.data.get("round"))
    )
    assert rounds == [2, None]  # round 1 was not trained again
    assert run.record["status"] == "complete" and "failure" not in run.record
    assert not (run.folder / "checkpoints").exists()


def test_a_resumed_run_equals_the_undisturbed_one(tiny, tmp_path, monkeypatch, runs):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0)
    with pytest.raises(KeyboardInterrupt):
        train(tiny(), runs=tmp_path, report=_interrupt)
    resumed, whole = train(tiny(), runs=tmp_path, resume=True), runs["fedre"]
    assert _files(resumed) == _files(whole)
    for file in _files(whole):
        if file not in ("record.json", "metrics.csv", "log.txt", "manifest.json"):
            assert (resumed.folder / file).read_bytes() == (whole.folder / file).read_bytes(), file
    assert resumed.record["final"] == whole.record["final"]


def test_restart_trains_anew(tiny, tmp_path):
    settings = tiny(train={"rounds": 1})
    run = train(settings, runs=tmp_path)
    (run.folder / "stray.txt").write_text("from before")
    rounds = []
    train(
        settings, runs=tmp_path, restart=True, report=lambda e: rounds.append(e.data.get("round"))
    )
    assert rounds == [1, None]
    assert not (run.folder / "stray.txt").exists()


class Picky(Protocol):
    """Runs with ten clients only."""

    name = "picky"

    def check(self, setting):
        return [] if setting.training.clients == 10 else ["needs 10 clients", "and patience"]


def test_a_protocol_that_refuses_leaves_no_folder(tiny, tmp_path):
    settings = tiny()
    object.__setattr__(settings, "protocol", Picky())
    with pytest.raises(IncompatibleError) as refused:
        train(settings, runs=tmp_path)
    assert refused.value.problems == ("needs 10 clients", "and patience")
    assert list(tmp_path.iterdir()) == []


def _npz(path, shade):
    labels = np.arange(40) % 2
    images = np.random.default_rng(0).integers(0, 200, (40, 16, 16, 1)).astype(np.uint8)
    np.savez(path, images=images + np.uint8(shade), labels=labels)
    return {"name": "npz", "path": str(path)}


def _from_npz(data):
    values = {"data": data, "partition": "iid", "train": {"clients": 2, "rounds": 2}}
    return resolve_training({**values, "model": {"dim": 8}}, {}, [])


def test_a_restart_that_cannot_train_keeps_the_earlier_run(tmp_path):
    data = _npz(tmp_path / "own.npz", 0)
    run = train(_from_npz(data), runs=tmp_path / "runs")
    before = _files(run)
    (tmp_path / "own.npz").unlink()
    with pytest.raises(FedreError, match="own.npz"):
        train(_from_npz(data), runs=tmp_path / "runs", restart=True)
    assert _files(run) == before and Run(run.folder).record["status"] == "complete"


def test_resuming_on_changed_data_is_refused(tmp_path):
    data = _npz(tmp_path / "own.npz", 0)
    with pytest.raises(KeyboardInterrupt):
        train(_from_npz(data), runs=tmp_path / "runs", report=_interrupt)
    (run,) = (tmp_path / "runs").iterdir()
    record = (run / "record.json").read_bytes()
    _npz(tmp_path / "own.npz", 3)
    with pytest.raises(DamagedInputError, match="has changed since") as refused:
        train(_from_npz(data), runs=tmp_path / "runs", resume=True)
    assert "--restart" in str(refused.value)
    assert (run / "record.json").read_bytes() == record
    _npz(tmp_path / "own.npz", 0)
    assert (
        train(_from_npz(data), runs=tmp_path / "runs", resume=True).record["status"] == "complete"
    )


def test_a_finished_run_of_other_data_is_not_taken_for_one_of_these(tmp_path):
    data = _npz(tmp_path / "own.npz", 0)
    run = train(_from_npz(data), runs=tmp_path / "runs")
    _npz(tmp_path / "own.npz", 3)
    with pytest.raises(DamagedInputError, match="has changed since .* was trained"):
        train(_from_npz(data), runs=tmp_path / "runs")
    (tmp_path / "own.npz").unlink()  # a run outlives its data
    assert train(_from_npz(data), runs=tmp_path / "runs").name == run.name


def test_divergence_is_recorded(tiny, tmp_path):
    settings = tiny(train={"lr": 1e20, "rounds": 2})
    with pytest.raises(DivergedError, match=r"client 0 in round 1"):
        train(settings, runs=tmp_path)
    run = Run(tmp_path / settings.run_name)
    assert run.record["status"] == "failed"
    assert "client 0 in round 1" in run.record["failure"] and "train.lr" in run.record["failure"]
    assert "DivergedError" in (run.folder / "log.txt").read_text()
    with pytest.raises(ConfigError, match="is failed"):
        train(settings, runs=tmp_path)


def test_metrics_have_empty_cells_between_evaluations(tiny, tmp_path):
    settings = tiny(protocol="local", train={"rounds": 3, "eval_every": 2, "batch_size": 64})
    run = train(settings, runs=tmp_path)
    rows = list(csv.DictReader((run.folder / "metrics.csv").open()))
    measured = [[row[key] != "" for key in row if key.startswith("acc_post")] for row in rows]
    assert measured == [[False] * 6, [True] * 6, [True] * 6]
    shared = [[row[key] != "" for key in row if key.startswith("acc_shared")] for row in rows]
    assert shared == [[False] * 4, [False] * 4, [True] * 4]
    assert all(row["loss"] and row["up_scalars"] == "0" for row in rows)


@pytest.mark.slow
def test_models_are_kept_as_asked(tiny, tmp_path):
    settings = tiny(train={"rounds": 5, "batch_size": 64}, record={"keep_every": 2})
    run = train(settings, runs=tmp_path)
    assert run.kept_rounds() == [2, 4, 5]
    mixtures = sorted(path.name for path in (run.folder / "private").glob("mixtures*"))
    assert mixtures == [f"mixtures-r000{r}.safetensors" for r in (2, 4, 5)]


def test_the_shared_test_set_is_of_all_classes_and_trained_on_by_nobody(tiny):
    settings = tiny(train={"shared_test": 25}, data={"per_class": 40})
    prepared = prepare(settings, torch.device("cpu"))
    numbers = prepared.shared_test
    tested = np.concatenate(prepared.split.test)
    assert set(numbers.tolist()) <= set(tested.tolist())
    counts = np.bincount(prepared.data.labels.numpy()[numbers], minlength=10)
    there = np.bincount(prepared.data.labels.numpy()[tested], minlength=10)
    assert counts.sum() == 25 and set(counts[there > 2].tolist()) <= {2, 3}
    clients = build_clients(settings, prepared)
    assert all(client.shared is clients[0].shared for client in clients)
    assert len(clients[0].shared) == 25
    none = prepare(tiny(train={"shared_test": 0}), torch.device("cpu"))
    assert build_clients(tiny(), none)[0].shared is None


def test_rounds_asked_for_are_all_that_is_recorded_and_the_training_is_the_same(tiny, tmp_path):
    how = {"rounds": 4, "batch_size": 64, "shared_every": 2}
    whole = train(tiny(train=how), runs=tmp_path)
    part = train(tiny(train=how, record={"rounds": [2]}), runs=tmp_path)
    assert part.kept_rounds() == [2, 4]
    recorded = [rounds_recorded(run.folder / "uploads") for run in (whole, part)]
    assert recorded == [[1, 2, 3, 4], [2, 4]]
    for round in (2, 4):
        name = f"uploads/r{round:04d}.safetensors"
        assert (whole.folder / name).read_bytes() == (part.folder / name).read_bytes()
    same = [run.metrics().drop(columns="wall_s") for run in (whole, part)]
    assert same[0].equals(same[1])


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"record": {"rounds": [3]}}, "record.rounds asks for round 3; the training has 2 rounds"),
        ({"record": {"rounds": [1]}, "steering": "replace"}, "reads all earlier rounds"),
    ],
)
def test_rounds_that_cannot_be_kept_are_refused_before_training(tiny, tmp_path, values, said):
    if "steering" in values:
        values = {**values, "steering": [{"name": "null-head"}]}
    with pytest.raises(IncompatibleError, match=said):
        train(tiny(**values), runs=tmp_path)
    assert not any(tmp_path.iterdir())


def test_a_record_that_will_not_fit_is_refused_in_the_first_round(tiny, tmp_path, monkeypatch):
    free = SimpleNamespace(free=60_000)
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda place: free)
    settings = tiny(protocol="fedavg", train={"rounds": 50, "batch_size": 64})
    with pytest.raises(StorageError, match="The record of 50 rounds will take about"):
        train(settings, runs=tmp_path)
    free.free = 1 << 40
    done = train(tiny(protocol="fedavg"), runs=tmp_path)
    models = models_bytes(done.settings, prepare(done.settings, torch.device("cpu")).setting)
    told = disk.record_bytes(done.settings.record, 2, disk.message_bytes(done.folder), models)
    assert told == pytest.approx(disk.written_bytes(done.folder), rel=0.5)


def test_models_of_all_rounds_are_kept_where_attacks_combine_them_and_they_are_small(
    tiny, runs, monkeypatch
):
    settings = runs["fedre"].settings
    assert runs["fedre"].kept_rounds() == [1, 2] and runs["fedgh"].kept_rounds() == [2]
    assert settings.record.keep_every == 0 and "keep_first" not in settings.plain()["record"]
    cpu = torch.device("cpu")
    assert prepare(settings, cpu).record.keep_every == 1
    for other in (
        {"record": {"keep_every": 2}},
        {"record": {"rounds": [1]}},
        {"protocol": "fedgh"},
    ):
        asked = tiny(**other)
        assert prepare(asked, cpu).record == asked.record
    monkeypatch.setattr(preparing, "SMALL", 1000)
    assert prepare(settings, cpu).record == settings.record


def test_what_was_not_kept_of_earlier_rounds_is_said(tiny, runs, tmp_path):
    def asked(threat):
        values = {"attack": {"name": "disentangle"}, "threat": threat}
        return require_resolved(resolve_attack(values, {}, problems := []), problems)

    last = train(tiny(record={"keep_every": 2}), runs=tmp_path)
    assert last.kept_rounds() == [2]
    for run, threat, said in (
        (last, "strong", True), (last, "fedre-paper", False), (runs["fedre"], "strong", False),
    ):  # fmt: skip
        attacker = prepare_attack(run, asked(threat)).lines()["Attacker"]
        assert ("held: extractors of 1 of 2 rounds" in attacker) == said
    assert "--threat strong" in instead(last, asked("fedre-paper"), 2)
    assert "record.keep_every=1" in instead(last, asked("strong"), 2)
    assert "--target uploaded" in instead(runs["fedre"], asked("strong"), 2)


def test_clients_of_one_architecture_start_equal_and_own_their_models(tiny):
    settings = tiny()
    clients = build_clients(settings, prepare(settings, torch.device("cpu")))
    one, other = (dict(client.model.named_parameters()) for client in clients[:2])
    for name, value in one.items():
        assert value.equal(other[name]) and value.data_ptr() != other[name].data_ptr()
    assert clients[0].train.images.dtype == clients[0].test.images.dtype == torch.uint8


def test_one_sample_and_batch_norm_are_refused_before_training(tiny, tmp_path):
    settings = tiny(model={"name": "resnet4"}, train={"batch_size": 1})
    with pytest.raises(
        IncompatibleError, match=r"3 clients \(0, 1, 2\) would train on batches of one sample"
    ):
        train(settings, runs=tmp_path)
    assert list(tmp_path.iterdir()) == []
    train(tiny(train={"batch_size": 1, "rounds": 1}, data={"per_class": 4}), runs=tmp_path)
