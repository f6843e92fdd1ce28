"""Runs and attacks that somebody changed: found by verify, and never a changed result unsaid."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

import fedre_privacy as fp
from fedre_privacy.core.errors import DamagedInputError, MissingInputError
from fedre_privacy.core.files import file_sha256

OTHER = ["--set", "attack.steps=3"]
"""Another attack than the finished one: the run is read, not the finished result."""


@pytest.fixture(scope="module")
def attacked(
    cli: Any, run: Path, fast: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A run with one finished attack, to be copied."""
    target = tmp_path_factory.mktemp("attacked") / run.name
    shutil.copytree(run, target, ignore=shutil.ignore_patterns("attacks"))
    assert cli.attack(target, *fast).code == 0
    return target


@pytest.fixture(scope="module")
def tables(cli: Any, attacked: Path, fast: list[str], tmp_path_factory: Any) -> dict[str, Any]:
    """What the finished attack and another one come to on the untouched run."""
    folder = shutil.copytree(attacked, tmp_path_factory.mktemp("untouched") / attacked.name)
    return {
        "run": cli.attack(folder, *fast, *OTHER).table,
        "attack": cli.attack(folder, *fast).table,
    }


@pytest.fixture
def folder(attacked: Path, tmp_path: Path) -> Path:
    """A copy to be changed."""
    return shutil.copytree(attacked, tmp_path / attacked.name)


def tensors(name: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Change the tensors of a file in place."""

    def apply(folder: Path) -> None:
        held = load_file(folder / name)
        change(held)
        save_file({key: tensor.contiguous() for key, tensor in held.items()}, folder / name)

    return apply


def jsons(name: str, change: Callable[[Any], object]) -> Callable[[Path], None]:
    """Change what a JSON file holds in place."""

    def apply(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        change(content)
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")

    return apply


def text(name: str, old: str, new: str) -> Callable[[Path], None]:
    """Replace words of a text file."""

    def apply(folder: Path) -> None:
        content = (folder / name).read_text()
        assert old in content
        (folder / name).write_text(content.replace(old, new))

    return apply


def flip(name: str) -> Callable[[Path], None]:
    """Change the last bit of a file and keep its size and times."""

    def apply(folder: Path) -> None:
        path = folder / name
        times = path.stat()
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    return apply


def gone(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def added(name: str, like: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        shutil.copyfile(folder / like, folder / name)

    return apply


def swapped(one: str, other: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        a, b = (folder / one).read_bytes(), (folder / other).read_bytes()
        (folder / one).write_bytes(b)
        (folder / other).write_bytes(a)

    return apply


def two_clients(index: Any) -> None:
    sent = [m for m in index["messages"] if m["direction"] == "upload" and m["round"] == 3]
    sent[0]["artifacts"], sent[1]["artifacts"] = sent[1]["artifacts"], sent[0]["artifacts"]


def reverse(held: dict[str, Any]) -> None:
    for key in held:
        if key.endswith("/sample"):
            held[key] = held[key].flip(0)


def exchange(held: dict[str, Any]) -> None:
    held["train0"], held["train1"] = held["train1"], held["train0"]


def scaled(held: dict[str, Any]) -> None:
    for key, tensor in held.items():
        if tensor.is_floating_point():
            held[key] = tensor * 0.5


INDEX, LAST = "uploads/index.json", "uploads/r0003.safetensors"
MODELS, SPLIT = "models/r0003.safetensors", "private/split.safetensors"
MIXTURES = "private/mixtures-r0003.safetensors"
Change = Callable[[Path], None]
RUN: dict[str, tuple[str, Change]] = {
    "a bit of an upload": (LAST, flip(LAST)),
    "the values of an upload": (LAST, tensors(LAST, scaled)),
    "uploads of another round": (LAST, swapped("uploads/r0002.safetensors", LAST)),
    "an upload file that the index does not list": (
        INDEX, jsons(INDEX, lambda index: index["files"].pop("r0003.safetensors"))),
    "a hash of null": (
        INDEX, jsons(INDEX, lambda index: index["files"].update({"r0003.safetensors": None}))),
    "two clients' messages": (INDEX, jsons(INDEX, two_clients)),
    "a message less": (INDEX, jsons(INDEX, lambda index: index["messages"].pop(1))),
    "an index less": (INDEX, gone(INDEX)),
    "an upload less": (LAST, gone(LAST)),
    "an upload more": ("uploads/r0099.safetensors", added("uploads/r0099.safetensors", LAST)),
    "models of a round": (MODELS, tensors(MODELS, scaled)),
    "models of two rounds": (MODELS, swapped("models/r0002.safetensors", MODELS)),
    "a round's models less": ("models/r0002.safetensors", gone("models/r0002.safetensors")),
    "a round's models more": (
        "models/r0001.safetensors", added("models/r0001.safetensors", MODELS)),
    "reversed provenance": (MIXTURES, tensors(MIXTURES, reverse)),
    "the split of two clients": (SPLIT, tensors(SPLIT, exchange)),
    "a split less": (SPLIT, gone(SPLIT)),
    "provenance more": (
        "private/mixtures-r0001.safetensors",
        added("private/mixtures-r0001.safetensors", MIXTURES)),
    "class counts": ("record.json", jsons("record.json", lambda r: r["class_counts"].reverse())),
    "class names": ("record.json", jsons("record.json", lambda r: r["classes"].reverse())),
    "the hash of the data": ("record.json", jsons("record.json", lambda r: r.pop("data_sha256"))),
    "a status": ("record.json", jsons("record.json", lambda r: r.update(status="partial"))),
    "an accuracy": (
        "record.json", jsons("record.json", lambda r: r["final"].update(acc_post_local=1.0))),
    "a learning rate": ("config.yaml", text("config.yaml", "lr: ", "lr: 1")),
    "a seed": ("config.yaml", text("config.yaml", "seed: 0", "seed: 1")),
    "a row of metrics": ("metrics.csv", flip("metrics.csv")),
    "a figure": ("accuracy.png", flip("accuracy.png")),
    "a list of figures": ("drawn.json", flip("drawn.json")),
    "a manifest less": ("manifest.json", gone("manifest.json")),
    "a manifest cut short": (
        "manifest.json", lambda f: os.truncate(f / "manifest.json", 100)),
    "a hash in the manifest": (
        LAST, jsons("manifest.json", lambda m: m["files"][LAST].update(sha256="0" * 64))),
    "an entry less in the manifest": (
        LAST, jsons("manifest.json", lambda m: m["files"].pop(LAST))),
    "another name of models in the manifest": (
        MODELS.replace("r0003", "r0002"),
        jsons("manifest.json", lambda m: m["files"].update(
            {"models/r0]02.safetensors": m["files"].pop("models/r0002.safetensors")}))),
    "no record in the manifest": (
        "record.json", jsons("manifest.json", lambda m: m["files"].pop("record.json"))),
    "a path out of the folder in the manifest": (
        "manifest.json",
        jsons("manifest.json", lambda m: m["files"].update({"../x": m["files"][LAST]}))),
    "a newer manifest": ("manifest.json", jsons("manifest.json", lambda m: m.update(schema=2))),
}  # fmt: skip
"""Changes of a run: the file that verify names, and the change."""

ATTACK: dict[str, tuple[str, Change]] = {
    "recovered values": ("recovered.safetensors", tensors("recovered.safetensors", scaled)),
    "a recovered bit": ("recovered.safetensors", flip("recovered.safetensors")),
    "nothing recovered": ("recovered.safetensors", gone("recovered.safetensors")),
    "a measure": ("record.json", jsons("record.json", lambda r: r["measures"].reverse())),
    "the attacked run": (
        "record.json", jsons("record.json", lambda r: r.update(run_manifest="0" * 64))),
    "scores": ("scores.csv", flip("scores.csv")),
    "settings": ("config.yaml", text("config.yaml", "steps: 2", "steps: 200")),
    "a picture": ("figure.png", lambda folder: (folder / "figure.png").write_bytes(b"x")),
    "a page": ("report.html", text("report.html", "</html>", "<p>proven</p></html>")),
    "a file more": ("more.png", added("more.png", "figure.png")),
    "no manifest": ("manifest.json", gone("manifest.json")),
    "no answers in the manifest": (
        "recovered.safetensors",
        jsons("manifest.json", lambda m: m["files"].pop("recovered.safetensors"))),
}  # fmt: skip
"""Changes of a finished attack."""

WITHOUT_EFFECT = {
    "a round's models less",
    "a row of metrics", "a figure", "a list of figures", "a picture", "a page", "a file more",
}  # fmt: skip
"""What the attack does not read, or makes anew."""


def test_an_untouched_run_is_whole(cli: Any, folder: Path) -> None:
    done = cli.attack("verify", folder)
    assert done.code == 0, done.err
    assert done.line("Manifest") == file_sha256(folder / "manifest.json")
    assert "all" in done.line("Files") and not done.err
    found = fp.verify(folder)
    assert found.ok and found.table() == []
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    apart = {name for name in files if name.endswith(("manifest.json", "drawn.json", "log.txt"))}
    assert {finding.file for finding in found.findings} == files - apart


CHANGES = [*RUN, *(f"attack: {name}" for name in ATTACK)]


@pytest.mark.parametrize(
    "what",
    # every third in the quick suite
    [c if n % 5 == 0 else pytest.param(c, marks=pytest.mark.slow) for n, c in enumerate(CHANGES)],
)
def test_what_was_changed_is_found_and_changes_no_result_unsaid(
    cli: Any, folder: Path, fast: list[str], tables: dict[str, Any], what: str
) -> None:
    kind = "attack" if what.startswith("attack: ") else "run"
    name = what.removeprefix("attack: ")
    file, change = (RUN if kind == "run" else ATTACK)[name]
    (attack,) = (folder / "attacks").iterdir()
    change(folder if kind == "run" else attack)
    shown = file if kind == "run" else f"attacks/{attack.name}/{file}"

    found = cli.attack("verify", folder)
    assert found.code == 4 and "--accept" in found.err
    assert any(line.split()[0] == shown for line in found.out.splitlines() if line[:2] == "  ")
    bad = {finding.file for finding in fp.verify(folder).bad()}
    assert shown in bad

    done = cli.attack(folder, *fast, *(OTHER if kind == "run" else ()))
    if name in WITHOUT_EFFECT:
        assert done.code == 0 and done.table == tables[kind]
    else:
        assert done.code == 4, done.out
        assert file.rsplit("/", 1)[-1] in done.err or "is partial" in done.err
        assert len(done.err.splitlines()) == 2


def test_a_published_hash_names_the_whole_run(cli: Any, folder: Path) -> None:
    published = file_sha256(folder / "manifest.json")
    for hash in (published, published[:8].upper()):
        assert cli.attack("verify", folder, "--expect", hash).code == 0
    # whoever changes a run can cover it again: the hash that was published tells
    tensors(LAST, scaled)(folder)
    assert cli.attack("verify", folder, "--accept").code == 4  # the attack is of what was there
    shutil.rmtree(folder / "attacks")
    assert cli.attack("verify", folder).code == 0
    done = cli.attack("verify", folder, "--expect", published)
    assert done.code == 4 and published in done.err
    assert cli.attack("verify", folder, "--expect", "nothing").code == 2


@pytest.mark.slow
def test_an_attack_on_what_the_run_held_before_is_not_read_back(
    cli: Any, folder: Path, fast: list[str]
) -> None:
    tensors(MODELS, scaled)(folder)
    found = fp.verify(folder, accept=True)
    assert {finding.state for finding in found.bad()} == {"of another run"}
    done = cli.attack(folder, *fast)
    assert done.code == 4 and "made from another recording" in done.err
    assert cli.attack(folder, *fast, "--restart").code == 0
    assert fp.verify(folder).ok


@pytest.mark.parametrize(
    ("place", "text"),
    [("accuracy.pdf", "accuracy.pdf is no file"),
     pytest.param("/proc/self/mem", "Input/output error", marks=pytest.mark.skipif(
         not sys.platform.startswith("linux"), reason="Linux has such a file"))],
)  # fmt: skip
def test_what_cannot_be_covered_whole_is_not_covered_in_part(
    cli: Any, folder: Path, place: str, text: str
) -> None:
    tensors(MODELS, scaled)(folder)
    before = (folder / "manifest.json").read_bytes()
    (folder / "accuracy.pdf").unlink()
    (folder / "accuracy.pdf").symlink_to(place)
    done = cli.attack("verify", folder, "--accept")
    assert done.code == 4 and text in done.err
    (folder / "accuracy.pdf").unlink()
    (folder / "drawn.json").unlink()
    (folder / "drawn.json").mkdir()
    done = cli.attack("verify", folder, "--accept")
    assert done.code == 4 and "drawn.json is a folder" in done.err
    assert (folder / "manifest.json").read_bytes() == before


@pytest.mark.slow
def test_a_run_of_an_earlier_version_is_refused_until_it_is_accepted(
    cli: Any, folder: Path, fast: list[str]
) -> None:
    for path in [*folder.rglob("manifest.json"), *folder.rglob("drawn.json")]:
        path.unlink()
    for asked in (["list", "--for", folder], [folder, *fast]):
        done = cli.attack(*asked)
        assert done.code == 4 and "is not covered by a manifest" in done.err
        assert f"fedre-attack verify {folder} --accept" in done.err
    shutil.rmtree(folder / "attacks")
    assert cli.attack("verify", folder, "--accept").code == 0
    assert cli.attack(folder, *fast).code == 0


def test_what_is_unfinished_or_no_run(cli: Any, folder: Path, tmp_path: Path) -> None:
    (folder / "manifest.json").unlink()
    jsons("record.json", lambda record: record.update(status="partial"))(folder)
    done = cli.attack("verify", folder)
    assert done.code == 4 and "unfinished" in done.out and "--resume" in done.err
    with pytest.raises(MissingInputError, match="No run at"):
        fp.verify(tmp_path)
    assert cli.attack("verify", tmp_path / "nothing").code == 4


def test_a_note_of_ones_own_harms_nothing(cli: Any, folder: Path) -> None:
    (folder / "notes.txt").write_text("mine")
    done = cli.attack("verify", folder)
    assert done.code == 0 and "nothing reads it" in done.out


def test_verify_prints_json(cli: Any, folder: Path) -> None:
    flip(LAST)(folder)
    done = cli.attack("verify", folder, "--json")
    told = done.events[0]
    assert told["manifest"] == file_sha256(folder / "manifest.json")
    assert [file["file"] for file in told["files"] if file["state"] == "changed"] == [LAST]
    assert done.events[-1]["type"] == "DamagedInputError" and done.code == 4


def test_the_hashes_are_printed_and_on_the_page(
    cli: Any, folder: Path, fast: list[str], read_json: Callable[[Path], Any]
) -> None:
    done = cli.attack(folder, *fast, "-v")
    (attack,) = (folder / "attacks").iterdir()
    own, of = (file_sha256(place / "manifest.json") for place in (attack, folder))
    assert done.line("Manifest") == own
    page = (attack / "report.html").read_text()
    assert own in page and of in page
    assert read_json(attack / "record.json")["run_manifest"] == of


def test_a_file_is_hashed_once_and_again_when_it_changed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    os.utime(path, ns=(0, 0))
    first = file_sha256(path)
    path.write_bytes(b"two")
    os.utime(path, ns=(0, 0))
    assert file_sha256(path) != first


def test_python_refuses_as_the_command_does(folder: Path) -> None:
    tensors(MODELS, scaled)(folder)
    with pytest.raises(DamagedInputError, match="not the file that was recorded"):
        fp.attack(folder, attack="pixel", targets=2, device="cpu", set={"attack.steps": 1})
