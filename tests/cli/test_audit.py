"""``fedre-audit`` from end to end: a claim kept, a claim broken, and what is refused."""

import json
import shutil

import pytest

from fedre_privacy import api
from fedre_privacy.cli import audit
from fedre_privacy.core.errors import MissingInputError
from fedre_privacy.core.files import read_json, write_json
from fedre_privacy.defenses import gaussian
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.verification import verify

DEFENDED = ["--protocol", "fedgh", "--defense", "gaussian:clip=1,epsilon=8"]


@pytest.fixture(scope="module")
def defended(tmp_path_factory, cli, tiny) -> Run:
    runs = tmp_path_factory.mktemp("audited")
    made = cli.train(*tiny, *DEFENDED, "--runs-dir", runs)
    assert made.code == 0, made.err
    return Run(next(path for path in runs.iterdir() if path.is_dir()))


def test_a_claim_that_holds_has_an_interval_a_record_and_a_figure(defended, capsys, opened):
    assert audit.main([str(defended.folder), "--trials", "100", "--open"]) == 0
    said = capsys.readouterr().out
    assert "Claim      client: epsilon 8.00 at delta 1e-05" in said
    assert "AUDITOR" in said and "Verdict    consistent: between" in said
    (folder,) = (defended.folder / "audits").iterdir()
    record = read_json(folder / "record.json", dict)
    assert record["verdict"] == "consistent" and record["trials"] == 100
    assert 0 < record["shown"] < record["claim"]["epsilon"] + 4 < record["ceiling"]
    assert (folder / "epsilon.png").is_file()
    assert opened == [(folder / "report.html").resolve()]
    page = opened[0].read_text()
    assert "audit of the mechanism, FedGH" in page and "epsilon promised" in page
    assert "data:image/svg+xml" in page


def test_a_record_that_somebody_changed_is_found(defended, tmp_path, capsys):
    untouched = shutil.ignore_patterns("audits")
    folder = shutil.copytree(defended.folder, tmp_path / defended.name, ignore=untouched)
    assert audit.main([str(folder), "--trials", "60"]) == 0
    assert verify(folder).ok
    (record,) = folder.glob("audits/mechanism-*/record.json")
    record.write_text(record.read_text().replace('"consistent"', '"refuted"'))
    (bad,) = verify(folder).bad()
    assert bad.file == record.relative_to(folder).as_posix()
    assert bad.state == "changed"


def test_a_claim_that_does_not_hold_is_an_error_with_its_code(defended, capsys, monkeypatch):
    real = gaussian.noisy
    monkeypatch.setattr(gaussian, "noisy", lambda a, scales, draw: real(a, scales / 4, draw))
    assert audit.main([str(defended.folder), "--trials", "150", "--json"]) == 7
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (error,) = [event for event in events if event["event"] == "error"]
    assert error["type"] == "RefutedError" and "the claim allows" in error["problems"][0]
    assert any(event.get("verdict") == "refuted" for event in events)


@pytest.mark.slow
def test_python_says_the_same(defended, capsys):
    assert audit.main([str(defended.folder), "--trials", "100", "--json"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    done = api.audit(defended, trials=100)
    assert events[-1]["right"] == done.found.right
    assert done.table()[0]["epsilon promised"] == "<= 8.00"


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (["--trials", "5"], 2, "at least 50 trials"),
        (["--alpha", "1.5"], 2, "must lie between 0 and 1"),
        (["--protocol", "fedre"], 2, "would train a new run"),
    ],
)
def test_bad_options_are_refused_before_any_work(defended, more, code, said, capsys):
    assert audit.main([str(defended.folder), *more]) == code
    assert said in capsys.readouterr().err


def test_a_dry_run_says_the_claim_and_leaves_nothing(nowhere, tiny, capsys):
    assert audit.main([*tiny, *DEFENDED, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "Claim      client: epsilon 8.00 at delta 1e-05" in said and "Train" in said
    assert list(nowhere.iterdir()) == []


def test_a_dry_run_on_a_recorded_run_audits_nothing(defended, capsys):
    before = sorted(defended.folder.rglob("*"))
    assert audit.main([str(defended.folder), "--dry-run"]) == 0
    assert "epsilon 8.00" in capsys.readouterr().out
    assert sorted(defended.folder.rglob("*")) == before


def test_explain_describes_the_parts_and_stops(nowhere, tiny, capsys):
    assert audit.main([*tiny, *DEFENDED, "--explain"]) == 0
    said = capsys.readouterr().out
    assert "defence gaussian" in said and "protocol fedgh" in said
    assert list(nowhere.iterdir()) == []


def test_a_federation_without_a_claim_is_refused_before_it_is_trained(nowhere, tiny, capsys):
    assert audit.main([*tiny, "--protocol", "fedgh", "--defense", "clip:norm=1"]) == 3
    assert "no claim to audit" in capsys.readouterr().err
    assert list(nowhere.iterdir()) == []


def test_an_unfinished_run_is_refused(copy, capsys):
    record = read_json(copy / "record.json", dict)
    write_json(copy / "record.json", {**record, "status": "partial"})
    assert audit.main([str(copy)]) == 4
    assert "training did not finish" in capsys.readouterr().err
    with pytest.raises(MissingInputError, match="training did not finish"):
        api.audit(Run(copy))


def test_a_run_without_a_claim_is_refused(run, capsys):
    assert audit.main([str(run)]) == 3
    assert "no claim to audit" in capsys.readouterr().err


@pytest.mark.slow
def test_a_claim_for_one_record_is_audited_by_steps(tmp_path, tiny, capsys):
    private = ["--protocol", "fedavg", "--defense", "dp-sgd:clip=1,epsilon=8", "--trials", "60"]
    assert audit.main([*tiny, *private, "--runs-dir", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "Claim      record: epsilon " in said and "canary records in place of" in said
    (record,) = tmp_path.glob("*/audits/steps-*/record.json")
    assert read_json(record, dict)["level"] == "steps"


def test_the_other_unit_is_refused(defended, capsys):
    assert audit.main([str(defended.folder), "--unit", "record"]) == 3
    assert "no claim for one record to audit" in capsys.readouterr().err


@pytest.mark.slow
def test_canaries_inside_a_federation_are_one_command(tmp_path, tiny, capsys):
    inside = ["--level", "run", "--canaries", "60", "--canary", "mislabelled", "--partition", "iid"]
    more = ["--protocol", "fedavg", "--set", "data.per_class=30", "--runs-dir", str(tmp_path)]
    assert audit.main([*tiny, *more, *inside]) == 0
    said = capsys.readouterr().out
    assert "60 mislabelled canaries in one federation" in said and "Verdict    no claim" in said
    (record,) = tmp_path.glob("*/audits/run-*/record.json")
    kept = read_json(record, dict)
    assert kept["promised"] is None and kept["shown"] <= kept["ceiling"]
    assert audit.main([str(record.parents[2]), "--level", "run"]) == 0  # the recorded run, again


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (["--level", "run", "--canaries", "10"], 2, "10 trials are too few"),
        (["--level", "run", "--unit", "client"], 3, "cannot test a claim for a client"),
        (["--level", "run", "--unit", "record"], 3, "no claim for one record to audit"),
        (["--defense", "gaussian:clip=1,epsilon=8,delta=2"], 2, "delta"),
        (["--defense", "gaussian:clip=1,epsilon=8,delta=0.3"], 3, "it must be below 1/4"),
    ],
)
def test_what_no_audit_can_be_made_with_is_refused_before_training(
    more, code, said, nowhere, tiny, capsys
):
    assert audit.main([*tiny, "--protocol", "fedgh", *more]) == code
    assert said in capsys.readouterr().err
    assert list(nowhere.iterdir()) == []


def test_a_recorded_run_without_coins_is_refused_inside(defended, capsys):
    assert audit.main([str(defended.folder), "--level", "run"]) == 3
    assert "trained without coins" in capsys.readouterr().err


@pytest.mark.slow
def test_a_record_in_a_crowd_is_one_command(tmp_path, tiny, capsys):
    private = ["--protocol", "fedavg", "--defense", "dp-sgd:clip=1,noise=2,delta=1e-3"]
    told = ["--level", "crowd", "--trials", "60", "--runs-dir", str(tmp_path), "--json"]
    assert audit.main([*tiny, *private, *told]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["level"] == "crowd" and said["trials"] == 45 and said["shown"] <= said["promised"]


def test_a_crowd_tests_no_claim_for_a_client(nowhere, tiny, capsys):
    given = [*tiny, "--protocol", "fedgh", "--defense", "gaussian:clip=1,epsilon=8"]
    assert audit.main([*given, "--level", "crowd"]) == 3
    assert "no claim for one record to audit" in capsys.readouterr().err
    assert audit.main([*given, "--level", "crowd", "--unit", "client"]) == 3
    assert "cannot test a claim for a client" in capsys.readouterr().err
    assert list(nowhere.iterdir()) == []
