"""What is read of results below a folder, also where a stranger made it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fedre_privacy as fp
from fedre_privacy.core import files
from fedre_privacy.core.errors import MissingInputError
from fedre_privacy.core.types import Mixture, Truth
from fedre_privacy.eval.intervals import cluster_means, ends
from fedre_privacy.eval.matching import support_marks
from fedre_privacy.reports.viewer.attacks import _because
from fedre_privacy.reports.viewer.entries import ResultEntry, Sheets
from fedre_privacy.reports.viewer.pictures import sheets
from fedre_privacy.reports.viewer.reader import collect


def found(entries: list[ResultEntry], path: str) -> ResultEntry:
    return next(entry for entry in entries if entry.path == path)


def opened(of: Sheets, target: int) -> np.ndarray:
    """The picture of a target, cut out as the page does it."""
    import io

    at = target if of.which is None else of.which[target]
    sheet = np.asarray(Image.open(io.BytesIO(of.pngs[at // of.each])))
    y, x = divmod(at % of.each, of.across)
    return sheet[y * of.height : (y + 1) * of.height, x * of.width : (x + 1) * of.width]


@pytest.mark.slow
def test_every_kind_is_found_with_what_it_is_found_by(small):
    entries = collect(small.runs)
    assert [entry.kind for entry in entries].count("attack") == 3
    run = found(entries, small.run.name)
    assert run.status == "complete" and run.facets["protocol"] == "fedallrep"
    assert run.facets["defence"].startswith("gaussian:clip=1.0,noise=0.01")
    moment = small.run.settings.protocol.headline
    assert run.accuracy == small.run.record["final"][f"acc_{moment}"]
    linear = found(entries, small.path(small.linear.folder))
    assert linear.parent == run.path and linear.n == 12
    assert linear.facets["adversary"] == "strong" and linear.facets["attack"] == "linear"
    assert linear.facets["verdict"] == small.linear.card.verdict.word
    bounded = {key: small.linear.card.get(key) for key in ("psnr", "hit1")}
    nearest = max(bounded.values(), key=lambda one: one.over_interval[0] / one.margin)
    assert linear.score.over == nearest.over and linear.score.text == nearest.over_text()
    audit = found(entries, small.path(small.audit.folder))
    assert audit.kind == "audit" and audit.facets["verdict"] == small.audit.found.verdict
    assert audit.facets["protocol"] == "fedallrep" and audit.parent == run.path


@pytest.mark.slow
def test_scores_of_targets_are_those_that_were_made(small):
    targets = found(collect(small.runs), small.path(small.linear.folder)).targets
    rows = small.linear.frame()
    for name in ("psnr", "ssim_floor", "fit", "hit1", "client", "original"):
        assert np.allclose(targets.columns[name], rows[name], rtol=1e-8)
    assert targets.scores["psnr"] == ("PSNR dB", True) and not targets.scores["mse255"][1]
    assert targets.doubts == ("fit",)


@pytest.mark.slow
def test_pictures_are_those_of_the_attack(small):
    entry = found(collect(small.runs), small.path(small.linear.folder))
    card, outcome = small.linear.card, small.linear.outcome
    wanted = {"answer": outcome.images, "truth": card.originals, "floor": card.floor_images}
    assert set(entry.targets.pictures) == set(wanted)
    for name, images in wanted.items():
        for target in range(12):
            image = (images[target, 0].clamp(0, 1) * 255).round().byte().numpy()
            assert np.array_equal(opened(entry.targets.pictures[name], target), image), name


@pytest.mark.parametrize(("count", "size"), [(1, 8), (7, 8), (30, 200), (2, 1030)])
def test_sheets_hold_every_picture_once(count, size):
    images = torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(0))
    laid = sheets(images)
    for target in range(count):
        image = (images[target] * 255).round().byte().permute(1, 2, 0).numpy()
        assert np.array_equal(opened(laid, target), image)


@pytest.mark.slow
def test_without_the_truth_nothing_of_it_is_read(small):
    entries = collect(small.runs, truth=False)
    targets = found(entries, small.path(small.linear.folder)).targets
    assert set(targets.pictures) == {"answer", "floor"}
    assert not {"original", "label", "support_size"} & set(targets.columns)
    assert {"psnr", "psnr_floor", "fit", "behind"} <= set(targets.columns)
    counts = found(entries, small.path(small.labels.folder)).targets
    assert not {"classes", "samples"} & set(counts.columns) and "jaccard" in counts.columns
    assert found(entries, small.run.name).settings["data"] == {"name": "digits"}


@pytest.mark.slow
def test_attacks_on_the_same_truth_are_paired(small):
    entries = collect(small.runs)
    one, other = (
        found(entries, small.path(result.folder)).targets for result in (small.pixel, small.linear)
    )
    assert one.keys == other.keys and len(set(one.keys)) == 12
    assert one.clusters == other.clusters
    labels = found(entries, small.path(small.labels.folder)).targets
    assert not set(labels.keys) & set(one.keys)
    # the same pairs, the interval of the library
    gap = small.linear.frame()["psnr"].to_numpy() - small.pixel.frame()["psnr"].to_numpy()
    kept = np.array(other.columns["psnr"]) - np.array(one.columns["psnr"])
    assert np.allclose(gap, kept, atol=1e-6)
    clients = torch.tensor(small.linear.frame()["client"].to_numpy())
    assert ends(cluster_means(torch.tensor(gap)[:, None], clients)) is not None


def truth_of(images: torch.Tensor, members: list[list[int]]) -> Truth:
    rows = torch.tensor([row for row, own in enumerate(members) for _ in own])
    samples = torch.tensor([sample for own in members for sample in own])
    zeros = torch.zeros(len(images), dtype=torch.int64)
    return Truth(
        images=images, labels=zeros, clients=zeros,
        mixture=Mixture(rows, samples, torch.ones(len(rows)), len(members)),
        target_clients=torch.zeros(len(members), dtype=torch.int64),
        target_labels=torch.zeros(len(members), dtype=torch.int64),
    )  # fmt: skip


def test_marks_are_equal_for_the_same_images_and_for_no_others():
    images = torch.rand(4, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    marks = support_marks(truth_of(images, [[0], [1], [0, 1], [1, 0], [2, 3]])).tolist()
    assert marks[2] == marks[3] and len(set(marks)) == 4
    turned = support_marks(truth_of(images.flip(0), [[3], [2, 3], [0]])).tolist()
    assert turned[:2] == [marks[0], marks[2]] and turned[2] not in marks


@pytest.mark.slow
def test_a_benchmark_under_way_tells_how_far_it_is(small):
    entry = found(collect(small.runs), "benchmarks/two")
    assert entry.status == "partial" and entry.facts["Trainings"] == "4 of 5 finished"
    assert "1 training of 5" in entry.problem
    points = {point.label: point for point in entry.panels[0].points}
    assert points["strong"].over - points["weak <b>"].over == pytest.approx(2.0)
    assert points["strong"].seeds == 2
    assert set(entry.panels[0].best) == {"weak <b>", "strong"}


@pytest.mark.slow
def test_files_of_data_sets_are_named_with_the_truth_alone(small, tmp_path):
    root = damaged(small.runs, tmp_path)
    for path in (root / "benchmarks" / "two" / "jobs").glob("*.json"):
        made = json.loads(path.read_text())
        made["training"]["data"] = {"name": "npz", "path": "/home/me/patients.npz"}
        path.write_text(json.dumps(made))
    told = [found(collect(root, truth=t), "benchmarks/two").facets["data"] for t in (True, False)]
    assert told == ["npz:patients", "npz"]


@pytest.mark.slow
def test_a_game_of_membership_is_read(small, tmp_path):
    folder = tmp_path / "worlds-x"
    folder.mkdir()
    (folder / "guesses.csv").write_text("")
    guess = {"auc": 0.7, "auc_interval": [0.6, 0.8], "auc_within": None, "knows": "uploads"}
    record = {
        "status": "complete", "Worlds": "2 of x", "Game": "slots", "Attacker": "server",
        "training": small.run.plain(), "worlds": 2, "slots": 30, "seconds": 1.5,
        "attacks": {"loss": guess}, "floors": {"chance": {**guess, "auc": 0.5}},
        "primary": "loss", "exposed": [{"record": "3", "client": "0"}], "verdict": "leaks: so",
    }  # fmt: skip
    files.write_json(folder / "record.json", record)
    (entry,) = collect(tmp_path)
    assert entry.kind == "membership" and entry.n == 60 and entry.facets["verdict"] == "leaks"
    assert entry.score.over == pytest.approx(0.2) and entry.facets["protocol"] == "fedallrep"
    assert [table.title for table in entry.tables] == ["Result", "Records at risk (private)"]
    (entry,) = collect(tmp_path, truth=False)
    assert [table.title for table in entry.tables] == ["Result"]
    assert entry.settings["data"] == {"name": "digits"}


def damaged(runs: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(runs, tmp_path / "copy"))


def change(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"0", b"1", 1) + b" ")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["record.json", "config.yaml", "scores.csv", "recovered.safetensors",
             "pictures.safetensors", "manifest.json"],
)  # fmt: skip
def test_a_changed_attack_is_listed_as_damaged(small, tmp_path, name):
    root = damaged(small.runs, tmp_path)
    change(root / small.path(small.linear.folder) / name)
    entries = collect(root)
    bad = found(entries, small.path(small.linear.folder))
    assert bad.status == "damaged" and bad.problem and str(tmp_path) not in bad.problem
    assert bad.score is None and bad.targets is None
    assert found(entries, small.path(small.pixel.folder)).status == "complete"


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", '{"status": "complete"}', '{"status": 3}', "{" * 5000, "\x00\xff",
     '{"status": "partial", "verdict": {"word": 1}}', '{"status": "partial", "trial": [1]}',
     '{"status": "partial", "measures": [{"key": "psnr"}]}', '{"status": "partial", "n": 1e99}'],
)  # fmt: skip
def test_any_record_of_a_stranger_is_an_entry_and_no_crash(tmp_path, text):
    for folder in ("a", "a/attacks/b", "a/audits/c"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "record.json").write_text(text, encoding="latin-1")
        (tmp_path / folder / "config.yaml").write_text("protocol: [1]\n")
    worlds = tmp_path / "worlds"
    worlds.mkdir()
    (worlds / "record.json").write_text(text, encoding="latin-1")
    (worlds / "guesses.csv").write_text("")
    jobs = tmp_path / "bench" / "jobs"
    jobs.mkdir(parents=True)
    (jobs / "x.yaml").write_text("")
    (jobs / "x.json").write_text(text, encoding="latin-1")
    entries = collect(tmp_path)
    assert {entry.kind for entry in entries} == {
        "run",
        "attack",
        "audit",
        "membership",
        "benchmark",
    }
    assert all(entry.status == "damaged" and entry.problem for entry in entries)


@pytest.mark.slow
def test_links_and_private_folders_are_not_followed(small, tmp_path):
    (tmp_path / "runs").mkdir()
    shutil.copytree(small.run.folder, tmp_path / "runs" / "one" / "private" / "hidden")
    (tmp_path / "runs" / "link").symlink_to(small.runs)
    with pytest.raises(MissingInputError, match="holds no run"):
        collect(tmp_path / "runs")
    with pytest.raises(MissingInputError, match="No folder"):
        collect(tmp_path / "nowhere")


@pytest.mark.slow
def test_a_run_may_be_viewed_by_itself(small):
    entries = collect(small.run.folder)
    assert entries[0].kind == "run" and entries[0].path == small.run.name
    assert [entry.parent for entry in entries[1:]] == [small.run.name] * 4


@pytest.mark.slow
def test_results_of_before_are_shown_without_the_truth(small, tmp_path):
    root = damaged(small.runs, tmp_path)
    folder = root / small.path(small.linear.folder)
    (folder / "pictures.safetensors").unlink()
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["files"]["pictures.safetensors"]
    files.write_json(folder / "manifest.json", manifest)
    entry = found(collect(root), small.path(small.linear.folder))
    assert entry.status == "complete" and set(entry.targets.pictures) == {"answer"}
    assert len(set(entry.targets.keys)) == 12  # pairs with attacks that chose alike on this run


@pytest.mark.slow
def test_the_front_door_writes_the_page(small, tmp_path):
    made = fp.view(small.runs, tmp_path / "page.html")
    assert made.path.is_file() and made.counts()["attack"] == 3


def test_several_findings_are_a_line_each():
    findings = [("leaks", "3 of 3 found"), ("inconclusive", "the other 9")]
    verdict = {"word": "leaks", "because": "all in one", "rule": "", "groups": {}}
    assert _because({**verdict, "findings": findings}) == (
        "LEAKS: 3 of 3 found\nINCONCLUSIVE: the other 9"
    )
    assert _because({**verdict, "findings": findings[:1]}) == _because(verdict) == "all in one"
