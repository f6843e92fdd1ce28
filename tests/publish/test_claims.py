"""Claims made from folders, the published schema, and the command of a claim."""

from __future__ import annotations

import inspect
import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fedre_privacy.cli import attack, benchmark
from fedre_privacy.cli.shared.settings import gather
from fedre_privacy.core.errors import ConfigError, DamagedInputError, MissingInputError
from fedre_privacy.eval.measures import TABLE
from fedre_privacy.publish import format as published_format
from fedre_privacy.publish.claims import (
    command_of,
    finished_attacks,
    make,
    portable,
    read_claim,
    write_claims,
)
from fedre_privacy.publish.format import ResultClaim, Verification, content_hash
from fedre_privacy.runs.resolution import resolve_attack, resolve_training


@pytest.mark.parametrize(
    ("kind", "name"),
    [(ResultClaim, "claim.schema.json"), (Verification, "verification.schema.json")],
)
def test_the_published_schema_is_that_of_the_reader(kind, name, repo):
    packaged = Path(published_format.__file__).with_name(name)
    made = msgspec.json.schema(kind)
    for one in made["$defs"].values():
        one["description"] = inspect.cleandoc(one["description"])
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    assert json.loads(packaged.read_text()) == {**dialect, **made}
    assert (repo / "docs" / "data" / name).read_bytes() == packaged.read_bytes()


def test_a_claim_says_what_was_found(published):
    claim, card = read_claim(published.path), published.result.card
    shown = [one for one in card.measures if one.is_in(TABLE) and one.value is not None]
    assert [(m.key, m.group) for m in claim.measures] == [(m.key, m.group) for m in shown]
    for told, found in zip(claim.measures, shown, strict=True):
        numbers = told.numbers
        assert (numbers.value, numbers.floor, numbers.n) == (found.value, found.floor, found.n)
        assert numbers.over_interval == found.over_interval
        assert numbers.higher_is_more_leakage == found.higher_is_more_leakage
    assert claim.verdict == card.verdict.word
    assert claim.data.sha256 == published.run.record["data_sha256"]
    assert claim.hashes.run_manifest == published.run.manifest.sha256
    assert claim.sha256 == content_hash(msgspec.to_builtins(claim))


def test_a_claim_holds_no_image_and_no_folder(published):
    text = published.path.read_text()
    assert len(text) < 20_000 and str(published.run.folder.parent) not in text


def test_the_command_of_a_claim_gives_its_settings(published):
    claim = read_claim(published.path)
    program, *words = shlex.split(claim.command)
    assert program == "fedre-attack"
    values, where = gather(attack.parser().parse_args(words))
    problems: list[str] = []
    training = resolve_training(values, where, problems)
    attacked = resolve_attack(values, where, problems)
    assert problems == [] and training is not None and attacked is not None
    assert {**training.plain(), **attacked.plain()} == claim.settings
    assert training.run_name == published.run.name


def test_settings_of_every_kind_come_through_a_command():
    settings = {"defense": [{"name": "gaussian", "clip": 1e-05, "noise": 0.01}], "threat": "it's"}
    words = shlex.split(command_of(settings, ["mine", "mine.too"]))
    assert words[-4:] == ["--plugin", "mine", "--plugin", "mine.too"]
    found, _ = gather(attack.parser().parse_args(words[1:]))
    (defense,) = found["defense"]
    assert found["threat"] == "it's" and float(defense["clip"]) == 1e-05


def test_the_folder_of_the_data_stays_at_home():
    settings = {"data": {"name": "npz", "path": "/home/ada/secret/faces.npz"}}
    assert portable(settings)["data"] == {"name": "npz", "path": "faces.npz"}
    assert settings["data"]["path"].startswith("/home")
    assert portable({"data": {"name": "digits"}}) == {"data": {"name": "digits"}}


def test_an_attack_that_was_changed_makes_no_claim(published, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(published.run.folder, copy)
    folder = copy / "attacks" / published.result.folder.name
    record = folder / "record.json"
    record.write_text(record.read_text().replace('"n": 6', '"n": 7', 1))
    with pytest.raises(DamagedInputError, match="is not the file that was recorded"):
        make(folder)


def test_what_holds_no_finished_attack_makes_no_claim(published, tmp_path):
    with pytest.raises(MissingInputError, match="holds no finished attack"):
        finished_attacks(tmp_path, tmp_path)
    (tmp_path / "attacks" / "x").mkdir(parents=True)
    with pytest.raises(MissingInputError, match="holds no finished attack"):
        make(tmp_path / "attacks" / "x")


def test_all_attacks_of_a_run_and_of_a_benchmark(published, tmp_path):
    (one,) = write_claims(published.run.folder, tmp_path / "a")
    jobs = tmp_path / "bench" / "jobs"
    jobs.mkdir(parents=True)
    entry = {
        "attack": "pixel", "answers": "images", "target": "uploaded", "threat": "fedre-paper",
        "rounds_limit": None, "verdict": "leaks", "because": "",
        "folder": published.result.folder.name,
    }  # fmt: skip
    job = {
        "label": "fedgh", "seed": 0, "training": published.run.plain(), "status": "complete",
        "attacks": [entry, {**entry, "folder": entry["folder"]}], "wall_s": 1.0,
        "run": published.run.name,
    }  # fmt: skip
    (jobs / "x.json").write_text(json.dumps(job))
    found = finished_attacks(tmp_path / "bench", published.run.folder.parent)
    assert found == [published.result.folder] * 2
    with pytest.raises(ConfigError, match="2 finished attacks"):
        write_claims(tmp_path / "bench", tmp_path / "x.json", runs=published.run.folder.parent)
    assert read_claim(one).hashes == read_claim(published.path).hashes


def test_the_command_line_writes_a_claim(published, tmp_path, capsys):
    words = ["claim", str(published.result.folder), "--out", str(tmp_path / "x.json"), "--json"]
    assert benchmark.main(words) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert told["claims"] == [str(tmp_path / "x.json")]
    assert read_claim(tmp_path / "x.json").by == ""
    for name in ("A\u202eda", "A\nda", "A" * 101):
        assert benchmark.main([*words[:-1], "--by", name]) == 2
        assert "--by takes a name of at most 100 characters" in capsys.readouterr().err


def test_a_claim_that_is_not_there_says_how_one_is_made(tmp_path):
    with pytest.raises(MissingInputError, match="No claim at") as refused:
        read_claim(tmp_path / "none.json")
    assert refused.value.next_step and "fedre-benchmark claim" in refused.value.next_step
