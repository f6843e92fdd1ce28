"""Presets: every one is valid and says what it changes; a few are run on tiny data."""

import csv
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import fedre_privacy as fp
from fedre_privacy import presets as package
from fedre_privacy.core.config import load_yaml
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.federation.loop import select
from fedre_privacy.models.families import FAMILIES
from fedre_privacy.presets import preset, presets
from fedre_privacy.runs.resolution import check_sections, resolve_attack, resolve_training
from fedre_privacy.runs.run import Run

ALL = presets()
PAPERS = [name for name in ALL if name.startswith("paper:")]
FILES = sorted(Path(package.__file__).parent.glob("*.yaml"))


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as dotted keys."""
    out: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            out |= flat(value, f"{prefix}{key}.")
        else:
            out[prefix + key] = value
    return out


def resolved(values: Mapping[str, Any]) -> dict[str, Any]:
    """All settings, of training and attack, as dotted keys."""
    problems: list[str] = []
    check_sections(values, {}, problems)
    training = resolve_training(values, {}, problems)
    attack = resolve_attack(values, {}, problems)
    assert problems == [] and training is not None and attack is not None
    return flat({**training.plain(), **attack.plain()})


@pytest.mark.parametrize("name", ALL)
def test_a_preset_sets_what_it_says_and_nothing_else(name: str) -> None:
    values = ALL[name].values
    found = resolved(values)
    # a part's defaults belong to the choice of that part
    named = {
        section: {"name": own["name"]}
        for section, own in values.items()
        if section in ("data", "partition", "protocol", "attack")
    }
    plain = resolved(named)
    said = flat(values)
    assert {key for key in found if found[key] != plain.get(key)} <= set(said)
    assert {key: found[key] for key in said} == said


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_files_name_their_source_and_what_is_unknown(path: Path) -> None:
    content, text = load_yaml(path).values, path.read_text(encoding="utf-8")
    assert set(content) <= {"source", "common", "presets"} and content["source"]
    assert text.startswith("# ") and max(map(len, text.splitlines())) <= 100
    for name in content["presets"]:
        assert (name in ALL) and ALL[name].file == path.name
        assert name.startswith("paper:") == (path.stem != "friendly")
        if name in PAPERS:
            assert re.fullmatch(rf"paper:{path.stem.split('-')[0]}-[\w.-]+", name)
    # no name twice, which YAML would swallow
    written = re.findall(r"^  [\w.:-]+: *(?:#.*)?$", text.split("presets:\n")[1], re.MULTILINE)
    assert len(written) == len(content["presets"])


def test_names_are_unique_over_files() -> None:
    assert sum(len(load_yaml(path).values["presets"]) for path in FILES) == len(ALL) > 45
    assert set(FAMILIES) <= set(ALL)


def test_published_numbers() -> None:
    def of(name: str) -> dict[str, Any]:
        return flat(preset(f"paper:{name}").values)

    for data, size, classes in (("cifar10", 32, 2), ("cifar100", 32, 10), ("tinyimagenet", 64, 20)):
        for table, rate in (("1", 0.06), ("12", 0.01)):
            for kind in ("pra", "pat"):
                one = of(f"fedre-table{table}-{data}-{kind}")
                if (table, data) == ("12", "cifar10"):
                    rate = {"pra": 0.007, "pat": 0.008}[kind]
                assert (one["train.lr"], one["train.batch_size"]) == (rate, size)
                assert one["train.rounds"] == 100 and one["partition.name"] == kind
                assert one.get("partition.classes") == (classes if kind == "pat" else None)
    assert of("fedre-table11-tinyimagenet-2048")["model.dim"] == 2048
    for joining, ratio in (("10", 0.1), ("20", 0.2)):
        for rest, alpha in (("alpha0.07", 0.07), ("alpha0.1", 0.1), ("longtail50", 0.07)):
            one = of(f"fedre-table3-{joining}of100-{rest}")
            assert (one["train.clients"], one["train.join_ratio"]) == (100, ratio)
            assert one["partition.alpha"] == alpha
    for clients, ratio in ((10, 1), (50, 0.2), (100, 0.1)):
        one = of(f"fedmrl-table1-cifar100-n{clients}")
        assert (one["train.clients"], one["train.join_ratio"]) == (clients, ratio)
    # the published KB of a client's upload: d^2 / m values of 4 bytes
    for name, kilobytes in (
        ("cifar10-practical", 7.81), ("cifar100-pathological", 9.77), ("cifar100-practical", 39.06)
    ):  # fmt: skip
        (blocks,) = of(f"fedral-table4-{name}")["protocol.blocks"]
        assert round(500**2 / blocks * 4 / 1024, 2) == kilobytes


def test_a_preset_chooses_no_protocol_unless_its_table_is_about_one() -> None:
    about = {name for name, one in ALL.items() if "protocol" in one.values}
    tables = ("fedre-q2", "fedre-release", "fedre-table4", "fedmrl-small", "fedral-table4")
    assert about == {n for n in PAPERS if n.startswith(tuple(f"paper:{t}" for t in tables))}


def test_presets_of_published_partitions_keep_them_with_every_training_seed() -> None:
    shared_out = {name for name in PAPERS if "partition" in ALL[name].values}
    fedre = {name for name in shared_out if name.startswith("paper:fedre-")}
    assert {ALL[name].values["partition"].get("seed") for name in fedre} == {0} and len(fedre) > 20
    assert not any("seed" in ALL[name].values["partition"] for name in shared_out - fedre)


@pytest.mark.slow
def test_every_published_partition_of_many_clients_can_be_made() -> None:
    from fedre_privacy.partition import split_clients

    sizes = {"cifar10": (10, 6000), "cifar100": (100, 600), "tinyimagenet": (200, 550),
             "fashion-mnist": (10, 7000)}  # fmt: skip
    seen = set()
    for name in PAPERS:
        problems: list[str] = []
        settings = resolve_training(ALL[name].values, {}, problems)
        assert settings is not None
        classes, count = sizes.get(settings.data.name, (10, 180))
        key = (settings.partition, settings.train.clients, classes)
        if key in seen or name.endswith("alpha0.07"):  # 22,916 draws: a minute
            continue
        seen.add(key)
        labels = np.repeat(np.arange(classes), count)
        found = split_clients(settings.partition, labels, settings.train.clients, 0)
        assert min(map(len, found.train)) >= 2  # BatchNorm needs two
    assert len(seen) > 10


# --- on the command line -------------------------------------------------------------------------


def chosen(cli: Any, folder: Path, *options: object) -> dict[str, Any]:
    """The settings that a command line comes to, as dotted keys."""
    done = cli.train(*options, "--runs-dir", folder, "--dataset", "digits", "--clients", 2,
                     "--rounds", 1, "--set", "data.size=16", "--set", "data.per_class=12",
                     "--quiet")  # fmt: skip
    assert done.code == 0, done.err
    return flat(yaml.safe_load((Path(done.out.strip()) / "config.yaml").read_text()))


@pytest.mark.slow
def test_later_presets_win_then_the_file_then_options(cli: Any, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("train: {lr: 0.5, seed: 4}\npartition: {name: pra, min_samples: 3}\n")
    found = chosen(
        cli, tmp_path, "--preset", "paper:fedre-table12-cifar10-pra", "--preset", "cnn5",
        "--config", file, "--seed", 7, "--set", "train.batch_size=16",
    )  # fmt: skip
    assert found["model.name"] == "cnn5"
    assert found["train.lr"] == 0.5 and found["train.seed"] == 7 and found["train.batch_size"] == 16
    assert found["partition.alpha"] == 0.1 and found["partition.min_samples"] == 3
    other = chosen(cli, tmp_path, "--preset", "cnn5", "--preset", "paper:fedre-table12-cifar10-pra")
    assert other["model.name"] == "cnn4" and other["train.lr"] == 0.007


@pytest.mark.slow
def test_another_partition_does_not_inherit(cli: Any, tmp_path: Path) -> None:
    found = chosen(
        cli, tmp_path, "--preset", "paper:fedre-table3-10of100-longtail50", "--models", "cnn4",
        "--set", "train.join_ratio=1", "--partition", "classes:5",
    )  # fmt: skip
    own = {key: value for key, value in found.items() if key.startswith("partition.")}
    assert own == {"partition.name": "classes", "partition.classes": 5}
    tail = chosen(
        cli, tmp_path, "--preset", "paper:fedre-table3-10of100-longtail50", "--models", "cnn4",
        "--partition", "longtail:4",
    )  # fmt: skip
    assert tail["partition.imbalance"] == 4 and tail["partition.alpha"] == 0.07


def test_list(cli: Any) -> None:
    for command in (cli.train, cli.attack):
        done = command("--preset", "list")
        assert done.code == 0 and done.err == ""
        for name, one in ALL.items():
            assert f"  {name} " in done.out and f"{one.source}\n" in done.out
    said = next(line for line in done.out.splitlines() if "fedre-table3-20of100-longtail50" in line)
    assert (
        "data cifar10; partition longtail (imbalance 50, alpha 0.07, min_samples 3, seed 0);"
        in said
    )
    (event,) = cli.train("--preset", "list", "--json").events
    assert event["presets"].keys() == ALL.keys()
    assert event["presets"]["het10"]["values"] == {
        "model": {"name": "het10", "dim": 512},
        "train": {"statistics": "recomputed"},
    }
    assert "paper:fedral-table6" in cli.attack("list").out
    assert "--preset list" in cli.train("--explain").out


def test_an_unknown_name_gets_the_nearest(cli: Any, nowhere: Path) -> None:
    done = cli.train("--preset", "paper:fedre-table1-cifar10")
    assert done.code == 2 and "Unknown preset 'paper:fedre-table1-cifar10'. Nearest: " in done.err
    assert "paper:fedre-table1-cifar10-pra" in done.err and "--preset list" in done.err
    with pytest.raises(ConfigError) as caught:
        preset("42")
    assert "Nearest" not in str(caught.value)
    with pytest.raises(ConfigError, match="Unknown preset 'list'. Presets: ") as caught:
        fp.train(preset="list")
    assert all(name in str(caught.value) for name in ALL)
    with pytest.raises(ConfigError, match="Nearest: .*cnn5"):
        fp.train(preset=["quick", "cnn55"])
    assert list(nowhere.iterdir()) == []


@pytest.mark.slow
def test_a_recorded_run_takes_a_presets_attack_only(cli: Any, run: Path, runs: Path) -> None:
    done = cli.attack(run, "--preset", "het10", "--runs-dir", runs)
    assert done.code == 2 and "--preset het10 would train a new run, but the recorded" in done.err
    done = cli.attack(
        run, "--preset", "quick", "--attack", "pixel", "--set", "attack.steps=2", "--runs-dir",
        runs, "--quiet",
    )  # fmt: skip
    assert done.code == 0, done.err
    config = yaml.safe_load((Path(done.out.strip()) / "config.yaml").read_text())
    assert config["eval"]["targets"] == 8 and config["train"]["clients"] == 4
    assert config["data"]["per_class"] == 12  # the run's, not the preset's


# --- whole runs ----------------------------------------------------------------------------------

DIGITS = ("--dataset", "digits", "--set", "data.size=16")


@pytest.mark.slow
def test_quick_attacks(cli: Any, tmp_path: Path) -> None:
    done = cli.attack(
        "--preset", "quick", "--set", "attack.steps=2", "--rounds", 1, "--runs-dir", tmp_path,
        "--quiet",
    )  # fmt: skip
    assert done.code == 0, done.err
    (folder,) = tmp_path.glob("fedre-digits-*")
    assert Path(done.out.strip()).parent.parent == folder


@pytest.mark.slow
def test_fedmrl_as_published_but_tiny(cli: Any, tmp_path: Path) -> None:
    done = cli.train(
        "--preset", "paper:fedmrl-table1-cifar10-n50", "--preset", "paper:fedmrl-small-cnn5",
        *DIGITS, "--rounds", 1, "--set", "train.epochs=1", "--clients", 10, "--runs-dir", tmp_path,
        "--quiet",
    )  # fmt: skip
    assert done.code == 0, done.err
    run = Run(Path(done.out.strip()))
    assert run.record["architectures"] == [f"cnn-{k % 5 + 1}" for k in range(10)]
    present = [sum(count > 0 for count in row) for row in run.record["class_counts"]]
    assert max(present) <= 2 and sum(present) >= 18
    train, test = run.split_indices()
    for own, held in zip(train, test, strict=True):
        assert len(own) == (len(own) + len(held)) * 4 // 5
    assert run.settings.protocol.name == "fedmrl"


@pytest.mark.slow
def test_fedral_as_published_but_tiny(cli: Any, tmp_path: Path) -> None:
    done = cli.train(
        "--preset", "paper:fedral-table4-cifar100-practical", *DIGITS, "--rounds", 1,
        "--set", "train.epochs=1", "--clients", 10, "--runs-dir", tmp_path, "--quiet",
    )  # fmt: skip
    assert done.code == 0, done.err
    (row,) = rows(Path(done.out.strip()))
    # one client of ten takes part and uploads d^2 / m values, as in the paper's Table 4
    assert row["clients"] == 1 and row["up_scalars_paper"] == 10_000


def rows(folder: Path) -> list[dict[str, float]]:
    """The metrics of a run, round by round."""
    with (folder / "metrics.csv").open() as file:
        return [{key: float(v or "nan") for key, v in row.items()} for row in csv.DictReader(file)]


@pytest.mark.slow
@pytest.mark.parametrize(("joining", "rounds"), [(10, 1), (20, 2)])
def test_partial_participation_of_100_clients(
    cli: Any, tmp_path: Path, joining: int, rounds: int
) -> None:
    done = cli.train(
        "--preset", f"paper:fedre-table3-{joining}of100-alpha0.1", *DIGITS, "--models", "cnn4",
        "--set", "partition.alpha=1", "--set", "model.dim=null", "--rounds", rounds,
        "--runs-dir", tmp_path, "--quiet",
    )  # fmt: skip
    assert done.code == 0, done.err
    run = Run(Path(done.out.strip()))
    messages = json.loads((run.folder / "uploads" / "index.json").read_text())["messages"]
    every = list(range(100))
    for round in range(1, rounds + 2):
        picked = list(select(run.settings.train, round))
        assert len(set(picked)) == joining
        sent = [m for m in messages if m["round"] == round]
        uploaders = [m["client"] for m in sent if m["direction"] == "upload"]
        receivers = [k for m in sent if m["direction"] == "broadcast" for k in m["recipients"]]
        # after the last round everyone gets the final broadcast, and nobody uploads
        assert uploaders == (picked if round <= rounds else [])
        assert sorted(receivers) == (picked if round <= rounds else every)
    d, classes = run.record["dim"], 10
    found = rows(run.folder)
    assert [row["round"] for row in found] == list(range(1, rounds + 1))
    for row in found:
        assert row["clients"] == joining
        assert row["up_scalars_paper"] == joining * d
        assert row["up_scalars"] == joining * (d + classes)
        assert row["down_scalars"] == joining * classes * (d + 1)
    # the mean over all clients, of whom most never trained
    images = run.settings.data.load()
    hits = [
        (run.model(k, rounds)(images.images[own].float() / 255).argmax(1) == images.labels[own])
        for k, own in enumerate(run.split_indices()[1])
    ]
    means = [float(hit.float().mean()) for hit in hits]
    assert found[-1]["acc_post_local"] == pytest.approx(sum(means) / 100)
    assert found[-1]["acc_post_local_sd"] == pytest.approx(np.std(means, ddof=1))
    assert found[-1]["acc_post_local_pooled"] == pytest.approx(
        float(torch.cat(hits).float().mean())
    )
