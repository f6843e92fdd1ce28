"""Reading a run back, and deciding what happens to a folder that exists."""

import json
import os
import shutil

import pytest
import torch

from fedre_privacy.core.errors import ConfigError, DamagedInputError, MissingInputError
from fedre_privacy.federation.recorder import read_messages
from fedre_privacy.reports.run_figures import clients
from fedre_privacy.runs.folder import begin, claim_folder, log, logging_to, status_of
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.verification import verify


def _folder(parent, name, status):
    folder = parent / name
    folder.mkdir()
    (folder / "record.json").write_text(json.dumps({"status": status}))
    return folder


@pytest.mark.parametrize("status", ["partial", "failed"])
def test_unfinished_work_is_resumed_or_restarted_never_overwritten(tmp_path, status):
    folder = _folder(tmp_path, "fedre-digits-1", status)
    with pytest.raises(ConfigError, match=f"is {status}"):
        begin(folder, resume=False, restart=False, what="Run")
    assert begin(folder, resume=True, restart=False, what="Run") is False
    assert status_of(folder) == status
    with claim_folder(folder, resume=False, restart=True, what="Run") as finished:
        assert not finished and status_of(folder) is None
    assert not folder.exists()


def test_finished_work_is_used_unless_restarted(tmp_path):
    folder = _folder(tmp_path, "fedre-digits-1", "complete")
    assert begin(folder, resume=False, restart=False, what="Run") is True
    assert begin(folder, resume=True, restart=False, what="Run") is True
    assert begin(folder, resume=False, restart=True, what="Run") is False
    assert status_of(folder) == "complete"  # nothing goes before the work can begin
    with claim_folder(folder, resume=False, restart=True, what="Run") as finished:
        assert not finished and status_of(folder) is None


def test_resuming_nothing_names_what_is_unfinished(tmp_path):
    wanted = tmp_path / "fedre-digits-9"
    assert begin(wanted, resume=True, restart=False, what="Run") is False  # nothing begun at all
    _folder(tmp_path, "fedre-digits-1", "complete")
    _folder(tmp_path, "fedgh-digits-2", "partial")
    assert begin(wanted, resume=True, restart=False, what="Run") is False  # none of its kind
    _folder(tmp_path, "fedre-digits-3", "partial")
    _folder(tmp_path, "fedre-digits-4", "failed")
    with pytest.raises(ConfigError) as refused:
        begin(wanted, resume=True, restart=False, what="Run")
    assert "fedre-digits-3, fedre-digits-4" in str(refused.value)
    assert "fedre-digits-1" not in str(refused.value)
    assert begin(wanted, resume=False, restart=False, what="Run") is False


def test_a_folder_without_a_record_is_unfinished(tmp_path):
    folder = tmp_path / "fedre-digits-1"
    folder.mkdir()
    assert status_of(folder) is None
    (folder / "config.yaml").write_text("{}")
    assert status_of(folder) == "partial"


def test_a_missing_run_names_its_neighbours(runs, tmp_path):
    run = runs["fedre"]
    with pytest.raises(MissingInputError) as refused:
        Run(run.folder.parent / "fedre-digits-00000000")
    assert all(other.name in str(refused.value) for other in runs.values())
    with pytest.raises(MissingInputError, match="fedre-train"):
        Run(tmp_path / "nothing")


def test_the_kept_model_is_the_one_that_made_the_upload(runs, digits):
    run = runs["fedallrep"]
    train, _ = run.split_indices()
    uploads, _ = read_messages(run.folder / "uploads", [2])
    for upload in uploads:
        model = run.model(upload.client, 2)
        assert not model.training and not any(p.requires_grad for p in model.parameters())
        own = train[upload.client]
        reps = model.extractor(digits.images[own].float() / 255)
        torch.testing.assert_close(upload.artifacts[0].reps, reps, rtol=1e-4, atol=1e-5)
        assert upload.artifacts[0].labels.equal(digits.labels[own])


def test_a_round_that_was_not_kept_names_the_nearest(runs):
    run = runs["fedgh"]
    with pytest.raises(MissingInputError) as refused:
        run.model(0, 1)
    for part in ("round 1", "kept: 2", "--set eval.round=2", "record.keep_every=1"):
        assert part in str(refused.value)
    with pytest.raises(MissingInputError) as refused:
        run.mixtures(1)
    for part in ("truth of round 1", "kept: 2", "--set eval.round=2"):
        assert part in str(refused.value)


def _copied(run, tmp_path):
    return Run(shutil.copytree(run.folder, tmp_path / run.name))


def test_a_run_without_truth_says_how_to_get_it(runs, tmp_path):
    run = _copied(runs["fedre"], tmp_path)
    shutil.rmtree(run.folder / "private")
    verify(run.folder, accept=True)
    for read in (run.split_indices, lambda: run.mixtures(2)):
        with pytest.raises(MissingInputError) as refused:
            read()
        assert "no truth" in str(refused.value) and "without --no-truth" in str(refused.value)


def test_a_run_without_models_says_so(runs, tmp_path):
    run = _copied(runs["fedre"], tmp_path)
    shutil.rmtree(run.folder / "models")
    verify(run.folder, accept=True)
    with pytest.raises(MissingInputError, match="kept no extractors"):
        run.model(0, 2)


def test_models_that_do_not_fit_the_settings_are_refused(runs, tmp_path):
    run = _copied(runs["fedre"], tmp_path)
    path = run.folder / "config.yaml"
    path.write_text(path.read_text().replace("dim: 32", "dim: 16"))
    verify(run.folder, accept=True)
    with pytest.raises(DamagedInputError, match="one run: dim is 32, not 16"):
        run.model(0, 2)


@pytest.mark.parametrize("value", [None, "absent"])
def test_an_accuracy_without_its_spread_is_refused(runs, tmp_path, value):
    run = _copied(runs["fedre"], tmp_path)
    path = run.folder / "record.json"
    record = json.loads(path.read_text())
    record["final"]["acc_post_local_sd"] = value
    if value:
        del record["final"]["acc_post_local_sd"]
    path.write_text(json.dumps(record))
    verify(run.folder, accept=True)
    with pytest.raises(DamagedInputError, match="final has no .*acc_post_local_sd"):
        run.provenance()


def test_accuracies_of_clients_without_a_moment_are_refused(runs, tmp_path):
    run = _copied(runs["fedre"], tmp_path)
    path = run.folder / "clients.csv"
    path.write_text(path.read_text().replace("acc_post_broadcast", "acc_post_other"))
    verify(run.folder, accept=True)
    with pytest.raises(DamagedInputError, match="acc_post_broadcast"):
        clients(run)


def test_a_run_of_settings_that_no_longer_exist_is_refused(runs, tmp_path):
    run = _copied(runs["fedre"], tmp_path)
    path = run.folder / "config.yaml"
    path.write_text(path.read_text().replace("resample:", "resampel:"))
    verify(run.folder, accept=True)
    with pytest.raises(ConfigError, match="resampel"):
        _ = run.settings


def test_mixtures_say_which_samples_made_an_upload(runs, digits):
    train, _ = runs["fedgh"].split_indices()
    mixtures = runs["fedgh"].mixtures(2)
    uploads, _ = read_messages(runs["fedgh"].folder / "uploads", [2])
    assert set(mixtures) == {(upload.client, 0) for upload in uploads}
    for upload in uploads:
        labels = digits.labels[train[upload.client]]
        for row, label in enumerate(upload.artifacts[0].labels.tolist()):
            support = mixtures[upload.client, 0].support(row)
            assert support.equal((labels == label).nonzero().squeeze(1))


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_a_log_that_is_no_plain_file_is_refused_and_nothing_is_written_to_it(kind, tmp_path):
    path, elsewhere = tmp_path / "log.txt", tmp_path / "elsewhere"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(elsewhere)
    else:
        path.mkdir()
    with pytest.raises(DamagedInputError, match="no plain file"), logging_to(tmp_path):
        log.info("written")
    assert not elsewhere.exists()
