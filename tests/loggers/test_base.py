"""Loggers hear what happens, change nothing, and end nothing."""

from __future__ import annotations

import math
import random
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import fedre_privacy
from fedre_privacy.cli import attack, benchmark, train
from fedre_privacy.core import engines, registry
from fedre_privacy.core.engines import Package
from fedre_privacy.core.errors import ConfigError, IncompatibleError, MissingExtraError
from fedre_privacy.core.events import Event
from fedre_privacy.core.files import file_sha256
from fedre_privacy.loggers.base import (
    CURVE,
    LoggedWork,
    Logger,
    Point,
    chosen_loggers,
    flat_settings,
    loggers,
    logging_work,
    point_of,
)

SMALL = {"rounds": 2, "clients": 2, "set": {"data.per_class": 12, "train.shared_test": 0}}
WORDS = "--rounds 2 --clients 2 --set data.per_class=12 --set train.shared_test=0".split()


class Heard(Logger):
    """Keeps what it is given."""

    kept: list[Heard] = []

    def begin(self, work: LoggedWork) -> None:
        self.work, self.points, self.final, self.complete = work, [], {}, None
        self.kept.append(self)

    def log(self, point: Point) -> None:
        self.points.append(point)

    def summarise(self, values) -> None:
        self.final = dict(values)

    def end(self, *, complete: bool) -> None:
        self.complete = complete


class Failing(Heard):
    """Fails at its second point, and draws random numbers before."""

    kept: list[Heard] = []

    def log(self, point: Point) -> None:
        random.random(), np.random.rand(), torch.rand(1)
        super().log(point)
        if len(self.points) == 2:
            raise OSError("the server is gone\nand more")


class Closed(Heard):
    """Cannot begin."""

    def begin(self, work: LoggedWork) -> None:
        raise RuntimeError("no key")


class Absent(Heard):
    """Needs what nobody has."""

    needs = (Package("no_such_package"),)


def path(kind: type) -> str:
    return f"{__name__}:{kind.__name__}"


@pytest.fixture(autouse=True)
def _nothing_kept_from_another_test(monkeypatch):
    monkeypatch.setattr(Heard, "kept", [])
    monkeypatch.setattr(Failing, "kept", [])


def contents(folder: Path) -> dict[str, str]:
    """Hashes of what a run computed; times and pictures differ from run to run."""
    names = ("uploads", "models", "private")
    return {
        str(file.relative_to(folder)): file_sha256(file)
        for name in names
        for file in sorted((folder / name).rglob("*"))
        if file.is_file()
    }


def test_events_with_numbers_become_points():
    step = {"step": 3, "of": 50, "first": 8, "rows": 2, "total": 10}
    match = torch.tensor([0.25, math.nan])
    got = point_of(Event("attack.step", {**step, "match": match}))
    assert got == Point("attack", 3, {"match/rows 8 to 9": 0.25})
    got = point_of(Event("train.round", {"round": 2, "of": 5, "loss": 1.5, "accuracy": None}))
    assert got == Point("train", 2, {"loss": 1.5})
    job = {"done": 4, "of": 9, "job": "a", "status": "failed", "failure": "no", "left_s": None}
    assert point_of(Event("sweep.job", {**job, "wall_s": None})) == Point("sweep", 4, {"failed": 1})
    assert point_of(Event("note", {"text": "halved"})) is None


@pytest.mark.parametrize("of", [1, 99, 100, 250, 10_000])
def test_a_long_search_gives_a_short_curve_with_its_end(of):
    step = {"of": of, "first": 0, "rows": 1, "total": 1, "match": torch.zeros(1)}
    points = [point_of(Event("attack.step", {"step": at, **step})) for at in range(of)]
    kept = [point.step for point in points if point is not None]
    assert min(of, CURVE) <= len(kept) < 2 * CURVE + 2
    assert kept[0] == 0 and kept[-1] == of - 1


def test_a_training_is_logged_and_its_numbers_stay(tmp_path):
    plain = fedre_privacy.train("fedre", runs=tmp_path / "plain", **SMALL)
    given = [path(Heard), path(Failing)]
    logged = fedre_privacy.train("fedre", runs=tmp_path / "logged", log=given, **SMALL)
    assert len(contents(plain.folder)) >= 5 and contents(logged.folder) == contents(plain.folder)
    (heard,) = Heard.kept
    assert heard.work.kind == "training" and heard.work.name == logged.name
    assert heard.work.settings["train"]["clients"] == 2
    assert [point.step for point in heard.points] == [1, 2] and heard.complete
    losses = [point.values["loss"] for point in heard.points]
    assert losses == pytest.approx(logged.metrics()["loss"].tolist())
    assert heard.final["acc_post_broadcast"] == logged.record["final"]["acc_post_broadcast"]


def test_an_attack_is_logged_with_its_scores(tmp_path, capsys):
    words = [*WORDS, "--runs-dir", str(tmp_path), "--target", "prototypes", "--targets", "2"]
    words += ["--set", "attack.steps=3", "--log", path(Heard)]
    assert attack.main(words) == 0
    training, heard = Heard.kept
    assert (training.work.kind, heard.work.kind) == ("training", "attack")
    assert heard.work.name.startswith(f"{training.work.name}/dip-prototypes-")
    curves: dict[str, list[int]] = {}
    for point in heard.points:
        (name,) = point.values
        curves.setdefault(name, []).append(point.step)
    assert set(map(tuple, curves.values())) == {(0, 1, 2)} and heard.complete
    assert any(name.endswith(", search 2") for name in curves)  # from a second start
    assert heard.final["leaks"] == 0 and {"psnr", "psnr/floor", "psnr/over"} <= set(heard.final)
    assert attack.main(words) == 0  # what is read back is logged, but the training is not again
    assert [one.work.kind for one in Heard.kept] == ["training", "attack", "attack"]
    assert Heard.kept[2].points == [] and Heard.kept[2].final == heard.final


def test_a_logger_that_fails_is_reported_once_and_the_work_goes_on(tmp_path):
    events: list[Event] = []
    work = LoggedWork("training", "a", {}, tmp_path)
    with logging_work([path(Failing), path(Heard)], work, events.append) as report:
        for round in range(1, 6):
            report(Event("train.round", {"round": round, "of": 5, "loss": 1.0, "accuracy": 0.5}))
    failing, heard = Failing.kept[0], Heard.kept[0]
    notes = [event.data["text"] for event in events if event.name == "note"]
    assert len(notes) == 1 and "Failing stopped: OSError: the server is gone. " in notes[0]
    assert len(failing.points) == 2 and failing.complete is None
    assert len(heard.points) == 5 and heard.complete
    assert [event.name for event in events].count("train.round") == 5


def test_work_that_ends_in_an_error_is_closed_as_such(tmp_path):
    work = LoggedWork("training", "a", {}, tmp_path)
    with pytest.raises(KeyboardInterrupt), logging_work(path(Heard), work, lambda event: None):
        raise KeyboardInterrupt
    assert Heard.kept[0].complete is False and Heard.kept[0].final == {}


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        (path(Absent), MissingExtraError, "pip install no_such_package"),
        (path(Closed), IncompatibleError, "cannot begin: RuntimeError: no key"),
        ("tensorbord", ConfigError, "tensorboard"),
        ("weights-and-biases", ConfigError, "wandb"),
        (f"{path(Heard)},{path(Heard)}", ConfigError, "twice"),
        (path(Path), ConfigError, "no logger"),
    ],
)
def test_a_logger_that_cannot_be_used_is_refused_before_anything_is_trained(
    tmp_path, given, error, said
):
    with pytest.raises(error, match=said):
        fedre_privacy.train("fedre", runs=tmp_path, log=given, **SMALL)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
@pytest.mark.parametrize(
    ("command", "words"),
    [(train, WORDS), (attack, WORDS), (benchmark, ["--protocols", "fedre", *WORDS])],
)
def test_each_command_names_the_extra_of_an_absent_package(
    command, words, name, tmp_path, capsys, monkeypatch
):
    real = engines.importlib.util.find_spec
    monkeypatch.setattr(
        engines.importlib.util, "find_spec", lambda one: None if one == name else real(one)
    )
    assert command.main([*words, "--runs-dir", str(tmp_path), "--log", name]) == 6
    said = capsys.readouterr().err
    assert f"--log {name} needs the package {name}, which is not installed." in said
    assert f"pip install 'fedre-privacy[{name}]'" in said
    assert list(tmp_path.iterdir()) == []


def test_extras_install_what_loggers_need(repo):
    import configparser

    parser = configparser.ConfigParser()
    parser.read(repo / "setup.cfg")
    extras = parser["options.extras_require"]
    for name in loggers.names():
        kind = loggers.get(name)
        for package in kind.needs:
            assert extras[kind.extra].strip().startswith(package.name)


def test_another_package_brings_a_logger_by_an_entry_point(monkeypatch):
    class Installed:
        name, value = "heard", path(Heard)

        def load(self):
            return Heard

    monkeypatch.setattr(
        registry, "entry_points", lambda group: [Installed()] * (group == "fedre_privacy.loggers")
    )
    monkeypatch.setattr(Heard, "name", "")
    fresh: registry.Registry[Logger] = registry.Registry("logger", "fedre_privacy.loggers")
    assert fresh.get("heard") is Heard


def test_the_documented_logger_works_as_it_stands(repo, tmp_path, monkeypatch):
    (code,) = re.findall(
        r"```python\n(.*?)```", (repo / "docs" / "logging.md").read_text(encoding="utf-8"), re.S
    )
    (tmp_path / "my_logger.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "my_logger", raising=False)
    work = LoggedWork("training", "a", {}, tmp_path / "runs")
    with logging_work("my_logger:Lines", work, lambda event: None) as report:
        report(Event("train.round", {"round": 1, "of": 1, "loss": 1.0, "accuracy": 0.5}))
        report.summarise({"accuracy": 0.5})
    monkeypatch.delitem(sys.modules, "my_logger")
    assert (tmp_path / "runs" / "lines.txt").read_text().splitlines() == [
        "train 1 {'loss': 1.0, 'accuracy': 0.5}", "final {'accuracy': 0.5}",
    ]  # fmt: skip


def test_settings_are_flattened_to_dotted_names():
    nested = {"train": {"lr": 0.1, "deep": {"a": 1}}, "defense": [{"name": "x"}], "none": {}}
    assert flat_settings(nested) == {
        "train.lr": 0.1, "train.deep.a": 1, "defense": [{"name": "x"}], "none": {},
    }  # fmt: skip


def test_no_name_is_no_logger():
    assert chosen_loggers("") == [] and chosen_loggers(()) == [] and chosen_loggers(" , ") == []
