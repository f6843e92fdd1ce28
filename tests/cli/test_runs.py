"""The commands where all goes well: what they print, what they write, and doing it again."""

import re
import shlex
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file

from fedre_privacy.attacks.base import attacks
from fedre_privacy.cli.attack import _next
from fedre_privacy.eval.measures import BETTER
from fedre_privacy.runs import training as training

TINY = ("--set", "data.size=16", "--set", "data.per_class=12", "--clients", "4", "--rounds", "3")
UPLOADED = {
    "fedre": "entangled",
    "fedgh": "prototypes",
    "fedallrep": "representations",
    "local": None,
}
TARGETS = ("representations", "prototypes", "entangled", "uploaded")
PLAIN = {
    "report.html",
    "config.yaml",
    "record.json",
    "scores.csv",
    "trace.csv",
    "recovered.safetensors",
    "pictures.safetensors",
    "manifest.json",
    "drawn.json",
}
FIGURES = {f"{name}.{end}" for name in ("figure", "trace") for end in ("png", "pdf", "svg")}


def listing(folder: Path) -> dict[str, int]:
    """Every file below a folder with its time of change."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in found}


def test_commands_are_installed() -> None:
    found = {p.name: p.value for p in entry_points(group="console_scripts") if "fedre" in p.name}
    assert found == {
        "fedre-train": "fedre_privacy.cli.train:main",
        "fedre-attack": "fedre_privacy.cli.attack:main",
        "fedre-benchmark": "fedre_privacy.cli.benchmark:main",
        "fedre-audit": "fedre_privacy.cli.audit:main",
        "fedre-membership": "fedre_privacy.cli.membership:main",
        "fedre-view": "fedre_privacy.cli.view:main",
    }


def test_training_writes_what_is_documented(
    cli: Any, tiny: list[str], tmp_path: Path, read_json: Callable[[Path], Any]
) -> None:
    done = cli.train("--protocol", "fedgh", *tiny, "--runs-dir", tmp_path)
    assert done.code == 0 and done.err == ""
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("fedgh-digits-")
    assert set(listing(folder)) == {
        *("config.yaml", "record.json", "metrics.csv", "log.txt", "uploads/index.json"),
        *("manifest.json", "drawn.json"),
        *(f"clients.{end}" for end in ("png", "pdf", "svg", "csv")),
        *(f"uploads/r000{r}.safetensors" for r in (1, 2, 3, 4)),
        *(f"models/r000{r}.safetensors" for r in (2, 3)),
        *(f"private/mixtures-r000{r}.safetensors" for r in (2, 3)),
        "private/split.safetensors",
        *(f"accuracy.{end}" for end in ("png", "pdf", "svg", "csv")),
        *(f"partition.{end}" for end in ("png", "pdf", "svg", "csv")),
        *(f"clients.{end}" for end in ("png", "pdf", "svg", "csv")),
        *(f"prototypes.{end}" for end in ("png", "pdf", "svg", "csv")),
    }
    assert not (folder / "checkpoints").exists()
    for path in folder.rglob("*.safetensors"):
        assert load_file(path)
    record = read_json(folder / "record.json")
    assert record["status"] == "complete" and record["wall_s"] > 0
    assert {"python", "torch", "numpy", "fedre-privacy"} <= set(record["versions"])
    assert record["device"] and len(record["data_sha256"]) == 64
    assert [len(part) for part in record["partition_sha256"]] == [16, 16]
    assert yaml.safe_load((folder / "config.yaml").read_text())["train"]["seed"] == 0
    assert f"accuracy {record['final']['acc_post_broadcast']:.3f}" in done.line("Run")
    assert "trained now" in done.line("Run")
    assert done.line("Next") == f"fedre-attack {folder}"


def test_identical_training_is_not_repeated(
    cli: Any, run: Path, runs: Path, tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "_train", None)  # calling it would be an error
    before = listing(run)
    again = cli.train(*tiny, "--runs-dir", runs)
    assert again.code == 0 and "trained before" in again.line("Run")
    assert listing(run) == before


@pytest.mark.parametrize("protocol", UPLOADED)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.slow
def test_every_target_of_every_protocol(
    cli: Any,
    runs: Path,
    tiny: list[str],
    read_json: Callable[[Path], Any],
    drawn: list[str],
    protocol: str,
    target: str,
) -> None:
    attack = "dip" if target == "entangled" else "pixel"
    options = ["--attack", attack, "--targets", "6", "--set", "attack.steps=2"]
    options += ["--set", "eval.seed=77"]  # no other test asks for this attack
    options += ["--protocol", protocol, "--target", target, *tiny, "--runs-dir", runs]
    done = cli.attack(*options)
    if protocol == "local" and target == "uploaded":
        assert done.code == 3 and "uploads nothing" in done.err
        return
    assert done.code == 0, done.err
    headings = [text.split(" ")[0] for text in done.out.splitlines() if text[:1].isupper()]
    found = headings[headings.index("Unknown") + 1 : headings.index("RESULT")]
    assert found and set(found) <= {"LEAKS", "NO", "INCONCLUSIVE"}
    assert headings == [
        *("Run", "Uploaded", "Attacker", "Target", "Unknown", *found, "RESULT"),
        *("Files", "Again", "Next"),
    ]
    kind = UPLOADED[protocol] if target == "uploaded" else target
    counterfactual = kind != UPLOADED[protocol]
    folder = Path(done.line("Files").split("/{")[0])
    record = read_json(folder / "record.json")
    flag = f"COUNTERFACTUAL: not uploaded by {protocol}"
    assert (flag in done.line("Target")) == counterfactual
    assert record["counterfactual"] is counterfactual
    assert (flag in record["trial"]["Target"]) == counterfactual
    assert any(flag in words for words in drawn) == counterfactual
    assert record["kind"] == kind and folder.name.startswith(f"{attack}-{target}-")
    assert any(done.line("Uploaded").split(":")[0] in words for words in drawn)


def test_attack_writes_what_is_documented(
    cli: Any, run: Path, fast: list[str], read_json: Callable[[Path], Any], real_figures: None
) -> None:
    done = cli.attack(run, *fast, "--target", "prototypes", "--set", "eval.seed=5")
    assert done.code == 0, done.err
    folder = Path(done.line("Files").split("/{")[0])
    assert folder.parent == run / "attacks"
    assert set(listing(folder)) == PLAIN | FIGURES
    assert (folder / "figure.pdf").stat().st_size > 500
    for name in ("report.html", "figure.png", "scores.csv", "record.json"):
        assert name in done.line("Files") and (folder / name).stat().st_size > 500
    record = read_json(folder / "record.json")
    assert record["status"] == "complete" and record["run"] == run.name
    assert record["attack_s"] > 0 and record["wall_s"] >= record["attack_s"]
    assert {"torch", "fedre-privacy"} <= set(record["versions"])
    assert record["device"] and record["eval"]["seed"] == 5
    measures = {(m["key"], m["group"]): m for m in record["measures"]}
    psnr = measures["psnr", ""]
    assert psnr["floor_name"] in record["floors"]
    assert psnr["over"] == pytest.approx(psnr["value"] - psnr["floor"])
    assert {("psnr", "actual"), ("psnr", "ceiling")} <= set(measures)
    assert psnr["n"] == record["n"] == 6
    assert "6 of 6 targets" in done.line("RESULT")
    heading, first = done.table[0], done.table[1]
    for name in (
        "this attack",
        "floor",
        "entangled upload (actual)",
        "(ceiling)",
        "better than a guess?",
    ):
        assert name in heading
    assert f"{psnr['value']:.2f} +- {psnr['sd']:.2f}" in first
    assert f"{psnr['floor']:.2f} ({psnr['floor_name']})" in first
    where = heading.index(BETTER)
    assert all(text[where - 3 : where] == "   " for text in done.table)


@pytest.mark.slow
def test_identical_attack_is_read_back(
    cli: Any,
    runs: Path,
    run: Path,
    fast: list[str],
    tiny: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = [*fast, *tiny, "--runs-dir", runs, "--target", "representations"]
    first = cli.attack(*options)
    assert first.code == 0 and "trained before" in first.line("Run")
    before = listing(run)
    monkeypatch.setattr("fedre_privacy.attacks.inversion.reconstruction.fit_tile", None)
    monkeypatch.setattr(training, "_train", None)
    again = cli.attack(*options)
    assert again.code == 0 and "read back" in again.line("Note")
    assert again.table == first.table and listing(run) == before
    by_folder = cli.attack(run, *fast, "--target", "representations")
    by_name = cli.attack(run.name, *fast, "--target", "representations", "--runs-dir", runs)
    assert by_folder.table == by_name.table == first.table


@pytest.mark.slow
@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_command_printed_as_again_repeats_the_attack(
    cli: Any, run: Path, runs: Path, copy: Path, fast: list[str], elsewhere: bool
) -> None:
    """Also where the run lies in a folder whose name has a space and is not --runs-dir."""
    folder = run
    if elsewhere:
        folder = copy.rename(copy.with_name("my run"))
    first = cli.attack(folder, *fast, "--threat", "strong", "--runs-dir", runs)
    assert first.code == 0, first.err
    before = listing(folder)
    command = shlex.split(first.line("Again"))
    assert command[0] == "fedre-attack"
    again = cli.attack(*command[1:])
    assert again.code == 0 and "read back" in again.line("Note")
    assert again.table == first.table and listing(folder) == before


@pytest.mark.slow
def test_restart_repeats_the_attack_and_keeps_the_training(
    cli: Any, run: Path, runs: Path, tiny: list[str], fast: list[str]
) -> None:
    options = [*fast, *tiny, "--runs-dir", runs, "--set", "eval.seed=9"]
    first = cli.attack(*options)
    before = listing(run)
    again = cli.attack(*options, "--restart")
    assert again.code == 0 and again.table == first.table and "Note" not in again.out
    changed = {name for name, when in listing(run).items() if before[name] != when}
    assert set(listing(run)) == set(before)
    assert len({Path(name).parent for name in changed}) == 1
    assert {Path(name).name for name in changed} == PLAIN | FIGURES


def test_another_attack_does_not_inherit_settings(cli: Any, run: Path, tmp_path: Path) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text("attack: {name: dip, channels: [8], steps: 2}\neval: {targets: 4}\n")
    options = ["--attack", "pixel", "--set", "attack.steps=3"]
    done = cli.attack(run, "--config", config, *options, "--runs-dir", tmp_path)
    assert done.code == 0, done.err
    saved = yaml.safe_load(Path(shlex.split(done.line("Again"))[-1]).read_text())
    assert saved["attack"]["name"] == "pixel" and saved["attack"]["steps"] == 3
    assert saved["eval"]["targets"] == 4


def test_weak_attack_is_a_notice_not_an_error(cli: Any, run: Path) -> None:
    options = ["--targets", "12", "--target", "representations", "--set", "attack.steps=1"]
    done = cli.attack(run, *options)
    assert done.code == 0
    said = "12 representations of 4 clients are too few for a verdict"
    assert done.line("INCONCLUSIVE").startswith(said)
    assert "SSIM" not in done.out and "Manifest" not in done.out
    assert done.line("Next").endswith("--target uploaded")  # what was really sent
    told = cli.attack(run, *options, "-v")
    assert "SSIM" in told.out and len(told.line("Manifest")) == 64


@pytest.mark.slow
def test_attacked_round_is_the_one_asked_for(
    cli: Any, run: Path, fast: list[str], read_json: Callable[[Path], Any]
) -> None:
    done = cli.attack(run, *fast, "--round", "2")
    assert done.code == 0 and "of round 2" in done.line("Target")
    last = cli.attack(run, *fast)
    assert "of round 3" in last.line("Target") and last.table != done.table


def estimates(said: str) -> dict[str, str]:
    """The table of a dry run: what each step takes."""
    lines = [line for line in said.splitlines() if line.startswith("  ")]
    cells = [re.split(r"\s{3,}", line.strip()) for line in lines]
    assert cells[0] == ["step", "takes about"]
    return {step: takes for step, takes in cells[1:]}


@pytest.mark.slow
def test_dry_run_writes_nothing(cli: Any, run: Path, fast: list[str], nowhere: Path) -> None:
    assert cli.attack(run, *fast).code == 0
    before = listing(run)
    done = cli.attack(run, *fast, "--dry-run")
    assert done.code == 0, done.err
    fresh = cli.attack(run, *fast, "--dry-run", "--set", "eval.seed=3", "--restart")
    assert fresh.code == 0, fresh.err
    assert listing(run) == before and list(nowhere.iterdir()) == []
    costs = estimates(done.out)
    assert "attack: pixel on 12 rows" in costs and "iB" in costs["memory, of this dry run"]
    assert "COUNTERFACTUAL" not in done.line("Target")


@pytest.mark.slow
def test_dry_run_of_everything_writes_nothing(cli: Any, tiny: list[str], nowhere: Path) -> None:
    options = [*tiny, "--target", "prototypes", "--attack", "dip", "--round", "2"]
    done = cli.attack(*options, "--dry-run")
    assert done.code == 0, done.err
    assert list(nowhere.iterdir()) == []
    assert "4 clients" in done.line("Train")
    assert done.line("Data").startswith("digits: 120 images 1x16x16")
    costs = estimates(done.out)
    assert list(costs)[0] == "training" and list(costs)[1].startswith("attack: dip on ")
    assert list(costs)[2:] == [
        "in all", "on disk, the record of the training", "memory, of this dry run",
    ]  # fmt: skip
    assert "COUNTERFACTUAL" in done.line("Target")
    trained = cli.train(*tiny, "--dry-run")
    assert trained.code == 0 and "training" in estimates(trained.out)
    assert "attack" not in trained.out.lower() and list(nowhere.iterdir()) == []


def test_dry_run_estimates_what_is_asked_for(cli: Any, tiny: list[str], nowhere: Path) -> None:
    """A hundred times the rounds: about as many times the time, though one is tried."""
    cli.train(*tiny, "--dry-run")  # the first one warms up
    (one,) = cli.train(*tiny, "--dry-run", "--json").events
    (many,) = cli.train(*tiny, "--rounds", "300", "--dry-run", "--json").events
    assert 20 < many["plan"]["train_s"] / one["plan"]["train_s"] < 500
    assert one["plan"]["memory_bytes"] > 1e8


@pytest.mark.slow
def test_a_rehearsal_says_what_stands_in_for_recovered_prototypes(cli: Any, run: Path) -> None:
    asked = ("--target", "recovered-prototypes", "--threat", "strong", "--attack", "linear")
    done = cli.attack(*TINY, "--protocol", "fedre", *asked, "--dry-run")
    assert done.code == 0, done.err
    assert "recovered from the uploads; the true ones stand in" in done.line("Target")
    done = cli.attack(str(run), *asked, "--dry-run")
    assert done.line("Target").endswith("by disentangle"), done.err


@pytest.mark.parametrize(
    ("name", "leaks", "options"),
    [
        ("disentangle", True, "--target recovered-prototypes --threat strong"),
        ("head", True, "--target recovered-prototypes --threat strong --set via.name=head"),
        ("disentangle", False, "--target representations"),
    ],
)
def test_recovered_prototypes_lead_to_their_images(name: str, leaks: bool, options: str) -> None:
    observation = SimpleNamespace(uploads=(), threat=SimpleNamespace(name="strong"))
    settings = SimpleNamespace(attack=attacks.get(name)())
    trial = SimpleNamespace(
        settings=settings, observation=observation, counterfactual=False, kind="uploaded"
    )
    result: Any = SimpleNamespace(leaks=leaks, trial=trial)
    assert _next(result) == options


@pytest.mark.parametrize(
    ("threat", "asked", "options"),
    [
        ("realistic", "prototypes", "--target prototypes --threat strong"),
        ("strong", "prototypes", "--target retrieval --threat strong"),
        ("public-backbone", "uploaded", "--target retrieval --threat public-backbone"),
        ("strong", "retrieval", "--target representations"),
    ],
)
def test_pictures_that_do_not_come_lead_to_the_strongest_and_then_to_candidates(
    threat: str, asked: str, options: str
) -> None:
    observation = SimpleNamespace(uploads=(), threat=SimpleNamespace(name=threat))
    trial = SimpleNamespace(
        settings=SimpleNamespace(attack=attacks.get("linear")(), target=asked),
        observation=observation,
        counterfactual=False,
        kind="prototypes",
    )
    result: Any = SimpleNamespace(leaks=False, trial=trial)
    assert _next(result) == options
