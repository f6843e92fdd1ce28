"""``fedre-membership`` from end to end, and what it refuses."""

import json

import pytest

from fedre_privacy.cli import membership

TWO = ["--worlds", "2", "--attack-rounds", "1", "--isolation", "same-process"]


@pytest.mark.slow
def test_two_worlds_of_prototypes_have_a_table_a_record_and_figures(tiny, tmp_path, capsys, opened):
    options = [*tiny, "--protocol", "fedgh", *TWO, "--runs-dir", str(tmp_path)]
    assert membership.main([*options, "--open"]) == 0
    said = capsys.readouterr().out
    assert "world 1 of 2 took" in said and "to go" in said
    assert "Claim      none" in said and "Verdict" in said and "  membership" in said
    (folder,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    record = json.loads((folder / "record.json").read_text())
    assert record["worlds"] == 2 and record["primary"] == "membership"
    assert record["attacks"]["membership"]["rates"][1]["tpr"] is None
    assert (folder / "roc.png").is_file() and (folder / "exposed.png").is_file()
    assert opened == [(folder / "report.html").resolve()]
    page = opened[0].read_text()
    # why none is exposed although the attack may leak
    assert all("With 2 worlds none can be" in text for text in (page, " ".join(said.split())))
    assert page.count("data:image/svg+xml") == 2 and "Records at risk" in page
    assert all(name in page for name in [*record["attacks"], *record["floors"]])
    assert membership.main([*options, "--json"]) == 0  # nothing is trained again
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert not [event for event in events if event["event"] == "train.round"]
    assert events[-1]["attacks"] == record["attacks"]


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (["--worlds", "1"], 2, "at least 2"),
        (["--fpr", "0.001", "--worlds", "5"], 2, "rates down to"),
        (["--fpr", "often"], 2, "numbers between 0 and 1"),
        (["--slots", "1"], 2, "at least 2"),
        (["--attack", "liar"], 2, "lira"),
        (["--no-truth"], 2, "--no-truth"),
        (["--defense", "secagg"], 3, "sum"),
    ],
)
def test_bad_options_are_refused_before_a_world_is_trained(
    tiny, tmp_path, more, code, said, capsys
):
    options = [*tiny, "--protocol", "fedavg", "--runs-dir", str(tmp_path), *more]
    assert membership.main(options) == code
    assert said in capsys.readouterr().err
    assert not list(tmp_path.glob("worlds-*"))


def test_explain_prints_the_settings_and_trains_nothing(capsys, tmp_path):
    options = ["--protocol", "fedavg", "--explain", "--runs-dir", str(tmp_path / "runs")]
    assert membership.main(options) == 0
    assert "train.rounds" in capsys.readouterr().out and not (tmp_path / "runs").exists()


def test_a_dry_run_tells_the_cost_and_writes_nothing(tiny, tmp_path, capsys):
    options = [*tiny, "--protocol", "fedgh", *TWO, "--runs-dir", str(tmp_path), "--dry-run"]
    assert membership.main(options) == 0
    said = capsys.readouterr().out
    assert "2 worlds in" in said and "one training" in said and "2 trainings" in said
    assert not list(tmp_path.iterdir())
