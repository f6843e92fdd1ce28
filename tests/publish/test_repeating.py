"""Claims repeated: all of it, the attack, the scores; what is due, and what may differ."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

import fedre_privacy as fp
from fedre_privacy.cli import benchmark
from fedre_privacy.core.errors import (
    ConfigError,
    DamagedInputError,
    IncompatibleError,
    MissingInputError,
)
from fedre_privacy.publish.claims import read_claim
from fedre_privacy.publish.comparison import (
    ABSENT,
    ELSEWHERE,
    LEFT_OUT,
    NEAR,
    OTHER,
    OVERLAPS,
    SAME,
    contradiction,
    is_due,
    outcome,
    state,
)
from fedre_privacy.publish.format import Compared, Made, Numbers, read_published
from fedre_privacy.publish.names import (
    ATTACK,
    OTHERWISE,
    REPEATS,
    SCORES,
    SPLIT,
    TRAINING,
    WITHIN,
)
from fedre_privacy.publish.repetition import plan, repeat
from fedre_privacy.runs.run import Run

SMALL = {"data.size": 16, "data.per_class": 12}


def numbers(**other) -> Numbers:
    usual = {
        "value": 20.0, "interval": (19.0, 21.0), "sd": 1.0, "floor": 18.0, "over": 2.0,
        "over_interval": (0.0, 4.0), "n": 8, "higher_is_more_leakage": True,
    }  # fmt: skip
    return Numbers(**{**usual, **other})


def row(claimed: Numbers | None, repeated: Numbers | None) -> Compared:
    return Compared(key="psnr", group="", claimed=claimed, repeated=repeated)


@pytest.mark.parametrize(
    ("claimed", "near", "exact"),
    [
        ({}, SAME, SAME),
        ({"value": 20.000001}, SAME, SAME),
        ({"value": 20.5}, NEAR, OTHER),  # the half-width is 2, a quarter of it is 0.5
        ({"value": 20.6}, OTHER, OTHER),
        ({"floor": 18.4}, NEAR, OTHER),
        ({"over": 3.0}, OTHER, OTHER),
        ({"sd": 2.4}, NEAR, OTHER),
        ({"over_interval": (-1.4, 5.4)}, NEAR, OTHER),
        ({"over_interval": (-2.0, 6.0)}, OTHER, OTHER),
        ({"over_interval": None}, OTHER, OTHER),
        ({"floor": None}, OTHER, OTHER),
        ({"n": 9}, OTHER, OTHER),
        ({"higher_is_more_leakage": False}, OTHER, OTHER),
    ],
)
def test_how_far_numbers_may_differ(claimed, near, exact):
    one = row(numbers(**claimed), numbers())
    assert state(one, part=ATTACK, due=False, tolerance=0.25) == near
    assert state(one, part=ATTACK, due=True, tolerance=0.25) == exact


def test_what_has_no_interval_may_differ_by_its_spread():
    bare = {"interval": None, "over_interval": None}
    one = row(numbers(value=20.2, **bare), numbers(sd=1.0, **bare))
    assert state(one, part=ATTACK, due=False, tolerance=0.25) == NEAR
    assert state(one, part=ATTACK, due=False, tolerance=0.1) == OTHER
    none = {**bare, "sd": None, "floor": None, "over": None}
    assert state(
        row(numbers(value=20.2, **none), numbers(**none)), part=ATTACK, due=False, tolerance=0.25
    ) == (NEAR)


def test_what_is_on_one_side_alone():
    assert state(row(numbers(), None), part=ATTACK, due=False, tolerance=1) == ABSENT
    assert state(row(None, numbers()), part=ATTACK, due=False, tolerance=1) == LEFT_OUT


def test_the_outcome_is_that_of_the_worst_measure():
    usual = {"part": ATTACK, "due": False, "same_verdict": True}
    assert outcome([SAME, SAME], **usual) == REPEATS
    assert outcome([SAME, NEAR], **usual) == WITHIN
    for worst in (OTHER, ABSENT, LEFT_OUT):
        assert outcome([SAME, NEAR, worst], **usual) == OTHERWISE
    assert outcome([SAME], part=ATTACK, due=False, same_verdict=False) == WITHIN
    assert outcome([SAME], part=ATTACK, due=True, same_verdict=False) == OTHERWISE


def test_the_same_numbers_are_due_where_the_same_bytes_were_uploaded(published):
    claim = read_claim(published.path)
    here = claim.attack
    elsewhere = Made(device=here.device, versions={**here.versions, "torch": "2.4.0"}, seconds=1.0)
    assert is_due(claim, TRAINING, here, uploads_same=True)
    assert not is_due(claim, TRAINING, here, uploads_same=False)
    assert not is_due(claim, TRAINING, elsewhere, uploads_same=True)
    assert not is_due(claim, ATTACK, here, uploads_same=None)
    assert is_due(claim, SCORES, here, uploads_same=None)
    assert not is_due(claim, SCORES, elsewhere, uploads_same=None)


def test_trained_and_attacked_again_gives_the_same_numbers(published, tmp_path):
    """Trained again in another folder: the same bytes, so the same scores."""
    wanted = plan(read_claim(published.path), part=TRAINING, runs=tmp_path / "again")
    done, path = repeat(wanted, tmp_path / "v.json", isolation="same-process")
    assert done.outcome == REPEATS and done.uploads_same and done.due
    assert ("accuracy", "training") in {(one.key, one.group) for one in done.measures}
    assert contradiction(done, wanted.claim) == "" and read_published(path) == done


@pytest.mark.slow
def test_the_command_repeats_and_reads_back(published, tmp_path, capsys):
    out = tmp_path / "v.json"
    words = [
        "verify",
        str(published.path),
        "--runs-dir",
        str(tmp_path / "again"),
        "--by",
        "Bob",
        "--repeat",
        "training",
    ]
    assert benchmark.main([*words, "--out", str(out), "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert "train and attack again" in said and "the same bytes as claimed" in said
    assert "Outcome    repeats\n" in said and "+- " in said
    found = read_published(out)
    assert found.outcome == REPEATS and found.by == "Bob" and found.uploads_same and found.due
    (run,) = (tmp_path / "again").glob("fedgh-*")
    assert run != published.run.folder
    before = (run / "record.json").read_bytes()
    assert benchmark.main([*words, "--out", str(out), "--quiet"]) == 0  # read back
    assert capsys.readouterr().out == f"{out}\n"
    assert (run / "record.json").read_bytes() == before


def test_without_a_run_the_images_are_shared_out_anew(published, tmp_path):
    """Nobody who claims something knows who has which image when it is repeated."""
    claim = read_claim(published.path)
    wanted = plan(claim, runs=tmp_path / "again")
    done, path = repeat(wanted, tmp_path / "v.json", isolation="same-process")
    assert done.part == SPLIT and done.uploads_same is None and not done.due
    assert contradiction(done, claim) == "" and read_published(path) == done
    (run,) = map(Run, (tmp_path / "again").glob("fedgh-*"))
    assert run.split_indices()[0][0].tolist() != published.run.split_indices()[0][0].tolist()
    assert run.settings.train.secret and not published.run.settings.train.secret
    again, _ = repeat(wanted, tmp_path / "v.json", isolation="same-process")
    assert again.measures == done.measures  # taken up: the secret is kept beside the runs


def test_with_another_split_intervals_overlap_and_the_verdict_is_the_same():
    far = row(numbers(over_interval=(1.0, 3.0)), numbers(over_interval=(3.5, 4.0)))
    near = row(numbers(over_interval=(1.0, 3.0)), numbers(over_interval=(2.5, 4.0), n=5))
    other = {"part": SPLIT, "due": False}
    assert state(far, **other, tolerance=0.5) == OTHER
    assert state(near, **other, tolerance=0.5) == OVERLAPS
    assert state(row(None, numbers()), **other, tolerance=0.5) == ELSEWHERE
    assert outcome([OVERLAPS, ELSEWHERE], **other, same_verdict=True) == WITHIN
    assert outcome([OVERLAPS, ELSEWHERE], **other, same_verdict=False) == OTHERWISE
    assert outcome([OVERLAPS, OTHER], **other, same_verdict=True) == OTHERWISE


def test_a_training_with_a_secret_is_not_repeated_with_its_split(tmp_path):
    run = fp.train("fedgh", clients=4, rounds=2, set=SMALL, runs=tmp_path / "runs", secret="new")
    result = fp.attack(run, "pixel", targets=6, set={"attack.steps": 2, "eval.ceiling": 0})
    (file,) = fp.claim(result.folder, tmp_path / "claims")
    with pytest.raises(IncompatibleError, match="follows from a secret"):
        plan(read_claim(file), part=TRAINING)
    assert plan(read_claim(file)).part == SPLIT


def test_the_attack_alone_is_repeated_beside_the_run(published, tmp_path):
    before = sorted(published.run.folder.rglob("*"))
    wanted = plan(read_claim(published.path), run=published.run.folder, runs=tmp_path / "again")
    done, _ = repeat(wanted, tmp_path / "v.json", isolation="same-process")
    assert done.part == ATTACK and done.outcome == REPEATS and not done.due
    assert sorted(published.run.folder.rglob("*")) == before
    assert len(list((tmp_path / "again" / "attacks").iterdir())) == 1


def test_the_claimed_run_itself_repeats_nothing(published, tmp_path):
    with pytest.raises(DamagedInputError, match="is the claimed run itself"):
        fp.repeat(
            published.path,
            runs=published.run.folder.parent,
            out=tmp_path / "v.json",
            device="cpu",
            part=TRAINING,
        )
    assert not (tmp_path / "v.json").exists()


def test_what_is_asked_for_must_be_possible(published, tmp_path):
    claim = read_claim(published.path)
    for part in (ATTACK, SCORES):
        with pytest.raises(ConfigError, match=f"--repeat {part} needs --run RUN"):
            plan(claim, part=part)
    with pytest.raises(ConfigError, match="leave --run out"):
        plan(claim, run=published.run.folder, part=TRAINING)
    with pytest.raises(ConfigError, match="--repeat takes split, training, attack, scores"):
        plan(claim, part="everything")
    with pytest.raises(MissingInputError, match="No run at"):
        plan(claim, run=tmp_path)
    words = ["verify", str(published.path), "--tolerance", "-1"]
    assert benchmark.main(words) == 2


def test_data_in_files_are_asked_for_and_never_opened_unasked(published, forge, tmp_path):
    def edit(content):
        old = content["settings"]["data"]
        new = {"name": "npz", "path": "faces.npz"}
        content["settings"]["data"] = new
        content["what"]["dataset"] = "npz"
        content["command"] = content["command"].replace(json.dumps(old), json.dumps(new))

    claim = read_claim(forge(edit))
    with pytest.raises(MissingInputError, match="named 'faces.npz'") as refused:
        plan(claim)
    assert "--data-dir PATH" in str(refused.value)
    mine = tmp_path / "mine.npz"
    wanted = plan(claim, data=mine)
    assert msgspec.to_builtins(claim)["settings"]["data"]["path"] == "faces.npz"
    assert wanted.training.data.sources() == (mine,)


@pytest.mark.slow
def test_a_dry_run_says_what_it_would_take(published, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert benchmark.main(["verify", str(published.path), "--dry-run", "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert "it took" in said and "about" in said and list(Path(tmp_path).iterdir()) == []
