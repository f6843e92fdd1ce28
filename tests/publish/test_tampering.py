"""Files that were tampered with, in more than twenty ways, each refused or found by repeating."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from fedre_privacy.cli import benchmark
from fedre_privacy.core.errors import ConfigError, DamagedInputError, FedreError
from fedre_privacy.publish.claims import agree, command_of, read_claim
from fedre_privacy.publish.comparison import OTHER, state
from fedre_privacy.publish.format import MOST_BYTES, content_hash, read_published
from fedre_privacy.publish.leaderboard import write_leaderboard
from fedre_privacy.publish.names import OTHERWISE, REPEATS, SCORES
from fedre_privacy.publish.repetition import plan, repeat


def first(content: dict[str, Any]) -> dict[str, Any]:
    """The numbers of the first measure."""
    numbers: dict[str, Any] = content["measures"][0]["numbers"]
    return numbers


def test_the_claim_itself_is_read(published):
    claim = read_claim(published.path)
    assert claim.by == "Ada" and claim.sha256 == published.content()["sha256"]
    agree(claim, published.path)


# --- careless edits: the hash of the content does not fit ----------------------------------------

CARELESS = {
    "a value": lambda c: first(c).update(value=first(c)["value"] + 1),
    "a floor": lambda c: first(c).update(floor=first(c)["floor"] - 1),
    "n": lambda c: first(c).update(n=first(c)["n"] + 1),
    "the verdict": lambda c: c.update(verdict="leaks"),
    "a seed": lambda c: c["seeds"].update(training=7),
    "a setting": lambda c: c["settings"]["train"].update(lr=0.5),
    "a manifest": lambda c: c["hashes"].update(run_manifest="0" * 64),
    "who claims it": lambda c: c.update(by="Eve"),
    "the hash": lambda c: c.update(sha256="0" * 64),
    "the hash of another": lambda c: c.update(sha256=content_hash({"schema": "x"})),
}


@pytest.mark.parametrize("edit", CARELESS.values(), ids=CARELESS)
def test_a_careless_edit_is_refused(edit, forge):
    with pytest.raises(DamagedInputError, match="changed after it was written"):
        read_claim(forge(edit, hashed=False))


# --- edits with a hash that fits: what cannot be is refused ---------------------------------------

REFUSED = {
    "an interval that runs down": (
        lambda c: first(c).update(interval=[2.0, 1.0]), "numbers that cannot be"),
    "an interval of one end": (lambda c: first(c).update(interval=[1.0]), "interval"),
    "a number as text": (lambda c: first(c).update(value="99"), "expected float"),
    "a truth value as number": (lambda c: first(c).update(value=True), "expected float"),
    "a count below zero": (lambda c: first(c).update(n=-1), ">= 0"),
    "a count that is none": (lambda c: first(c).update(n=1.5), "expected int"),
    "no value": (lambda c: first(c).pop("value"), "missing required field value"),
    "no floor's key": (lambda c: first(c).pop("floor"), "missing required field floor"),
    "a key more": (lambda c: c.update(approved=True), "unknown field approved"),
    "a key more in a measure": (lambda c: first(c).update(rank=1), "unknown field rank"),
    "no measure": (lambda c: c.update(measures=[]), "length >= 1"),
    "a measure twice": (
        lambda c: c["measures"].append(c["measures"][0]), "claims a measure twice"),
    "too many measures": (
        lambda c: c.update(measures=c["measures"][:1] * 201), "length <= 200"),
    "a later version": (lambda c: c.update(version=2), "schema version 2; this version reads 1"),
    "no version": (lambda c: c.pop("version"), "schema version None"),
    "another schema": (lambda c: c.update(schema="leaks/1"), "calls its schema 'leaks/1'"),
    "a hash of null": (lambda c: c["hashes"].update(uploads=None), "expected str, got null"),
    "half a hash": (lambda c: c["hashes"].update(uploads="ab12"), "matching regex"),
    "a seed that the settings lack": (
        lambda c: c["seeds"].update(training=1), "other seeds than its settings"),
    "a protocol that the settings lack": (
        lambda c: c["what"].update(protocol="fedre"), "other what than its settings"),
    "an attack that the settings lack": (
        lambda c: c["what"].update(attack="dip"), "other what than its settings"),
    "an adversary that the settings lack": (
        lambda c: c["what"].update(threat="no-extractor"), "other what than its settings"),
    "a defence that is hidden": (
        lambda c: c["settings"].update(defense=[{"name": "gaussian"}]), "other what than its"),
    "another command": (
        lambda c: c.update(command=f"{c['command']} --seed 3"), "other command than its settings"),
    "a command of a shell": (
        lambda c: c.update(command="fedre-attack list; rm -rf ."), "other command than"),
    "a section of nothing": (
        lambda c: c["settings"].update(extra={}), "unknown sections"),
    "no section of the attack": (
        lambda c: c["settings"].pop("attack"), "no section 'attack'"),
    "a part without a name": (
        lambda c: c["settings"]["protocol"].pop("name"), "name no parts"),
    "a part that is a number": (
        lambda c: c["settings"].update(attack=3), "name no parts"),
    "HTML for a name": (
        lambda c: c["what"].update(attack="<script>alert(1)</script>"), "matching regex"),
    "HTML for a measure": (
        lambda c: c["measures"][0].update(key="<b>psnr</b>"), "matching regex"),
    "a control character": (
        lambda c: c.update(by="A\x1b[31mda"), "control character or mark of direction"),
    "a mark of direction": (
        lambda c: c.update(by="\u202eadA"), "control character or mark of direction"),
    "a hidden character in a key": (
        lambda c: c["settings"].update({"a\u200fb": 1}), "control character or mark"),
    "two lines in a name": (lambda c: c.update(by="A\nda"), "control character or mark"),
    "a file of another folder": (
        lambda c: c["settings"]["data"].update(path="../../etc/passwd"), "names no folders"),
    "a file of another disk": (
        lambda c: c["settings"]["data"].update(path="C:\\x.npz"), "names no folders"),
    "a folder above": (lambda c: c["settings"]["data"].update(path=".."), "names no folders"),
    "a home": (lambda c: c["settings"]["data"].update(path="~root"), "names no folders"),
    "a module that is a path": (lambda c: c.update(plugins=["../evil"]), "matching regex"),
    "a long name": (lambda c: c.update(by="A" * 101), "length <= 100"),
    "a long text": (lambda c: c["settings"]["data"].update(path="x" * 9_000), "9,000 characters"),
    "a number beyond all": (lambda c: first(c).update(sd=2e300), "<= 1e\\+?300"),
    "an accuracy above one": (lambda c: c["accuracy"].update(mean=1.5), "<= 1"),
}  # fmt: skip


@pytest.mark.parametrize(("edit", "words"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused_whatever_its_hash(edit, words, forge):
    with pytest.raises(DamagedInputError, match=words) as refused:
        read_claim(forge(edit))
    assert "fedre-benchmark claim" in str(refused.value)


def changed(old: str, new: str) -> Any:
    """An edit of the text of a file: the first place where something stands."""

    def edit(text: str) -> str:
        found, count = re.subn(old, lambda _: new, text, count=1)
        assert count == 1
        return found

    return edit


TEXTS = {
    "a key twice": (changed(r'"by": "Ada"', '"by": "Ada", "by": "Eve"'), "'by' is given twice"),
    "NaN": (changed(r'"value": [-\d.e]+', '"value": NaN'), "NaN is no number of JSON"),
    "infinity": (changed(r'"value": [-\d.e]+', '"value": Infinity'), "Infinity is no number"),
    "an infinity in disguise": (changed(r'"value": [-\d.e]+', '"value": 1e999'), "<= 1e\\+?300"),
    "a huge whole number": (changed(r'"n": \d+', f'"n": {"9" * 5_000}'), "5000 digits"),
    "a large whole number": (changed(r'"n": \d+', f'"n": {2**53 + 1}'), "<= 9007199254740992"),
    "deep nesting": (lambda text: "[" * 100_000, "nested too deeply"),
    "nesting": (
        changed(r'"by": "Ada"', f'"by": {"[" * 30}{"]" * 30}'), "nested too deeply"),
    "many values": (
        changed(r'"by": "Ada"', f'"by": [{"0," * 25_000}0]'), "too many values"),
    "a huge file": (lambda text: text + " " * MOST_BYTES, "more than 262,144 bytes"),
    "half a file": (lambda text: text[: len(text) // 2], "not valid JSON"),
    "no JSON": (lambda text: "schema: fedre-privacy/claim", "not valid JSON"),
    "a list": (lambda text: f"[{text}]", "holds no keys"),
    "nothing": (lambda text: "", "not valid JSON"),
}  # fmt: skip


@pytest.mark.parametrize(("edit", "words"), TEXTS.values(), ids=TEXTS)
def test_a_text_that_is_no_claim_is_refused(edit, words, published, tmp_path):
    path = tmp_path / "x.json"
    path.write_text(edit(published.path.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(DamagedInputError, match=words):
        read_claim(path)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "x.json").write_bytes(b"\x80\x04]\x94.")
    with pytest.raises(DamagedInputError, match="no UTF-8 text"):
        read_published(tmp_path / "x.json")


# --- names that lead somewhere --------------------------------------------------------------------


def test_a_module_that_only_the_file_names_is_not_imported(forge, tmp_path, monkeypatch):
    (tmp_path / "stranger.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def edit(content: dict[str, Any]) -> None:
        name = "stranger:Attack"
        content["settings"]["attack"]["name"] = content["what"]["attack"] = name
        content["plugins"] = ["stranger"]
        content["command"] = content["command"].replace('"pixel"', f'"{name}"')
        content["command"] += " --plugin stranger"

    claim = read_claim(forge(edit))
    with pytest.raises(ConfigError, match="nothing is imported because a file says so"):
        plan(claim)
    assert "stranger" not in sys.modules


def renamed(section: str, name: str) -> Any:
    """Another name of a part, in the settings and wherever it follows from them."""

    def edit(content: dict[str, Any]) -> None:
        old = content["settings"][section]["name"]
        content["settings"][section]["name"] = content["what"][section] = name
        content["command"] = content["command"].replace(
            f"{section}={{\"name\": \"{old}\"", f"{section}={{\"name\": \"{name}\""
        )  # fmt: skip

    return edit


@pytest.mark.parametrize(
    ("edit", "words"),
    [(renamed("attack", "perfect"), "Unknown attack 'perfect'"),
     (renamed("protocol", "safe"), "Unknown protocol 'safe'"),
     (renamed("attack", "labels"), "Unknown setting 'attack")],
)  # fmt: skip
def test_a_part_that_is_not_registered_is_refused_before_anything_is_trained(edit, words, forge):
    with pytest.raises(FedreError, match=words):
        plan(read_claim(forge(edit)))


# --- lies that are possible: found by repeating ---------------------------------------------------


def numbers(at: int = 0, **change: Any) -> Any:
    """Other numbers of one measure."""
    return lambda content: content["measures"][at]["numbers"].update(change)


LIES = {
    "a value": numbers(value=31.0),
    "a value by little": lambda c: first(c).update(value=first(c)["value"] * 1.0001),
    "a floor": numbers(floor=3.0),
    "no floor": numbers(floor=None),
    "a difference": numbers(over=9.0),
    "an interval": numbers(over_interval=[8.0, 9.0]),
    "no interval": numbers(interval=None),
    "n": numbers(n=600),
    "a direction": lambda c: first(c).update(
        higher_is_more_leakage=not first(c)["higher_is_more_leakage"]),
    "a measure that nobody knows": lambda c: c["measures"][0].update(key="safety"),
    "a measure left out": lambda c: c["measures"].pop(1),
    "a group of nothing": lambda c: c["measures"][0].update(group="7"),
    "the verdict": lambda c: c.update(verdict="leaks everything"),
}  # fmt: skip


@pytest.mark.parametrize("edit", LIES.values(), ids=LIES)
def test_a_lie_does_not_repeat(edit, forge, scored):
    assert scored(read_claim(forge(edit))).outcome == OTHERWISE


def test_without_a_lie_it_repeats(forge, published, tmp_path):
    wanted = plan(read_claim(forge()), run=published.run.folder, part=SCORES)
    done, path = repeat(wanted, tmp_path / "v.json")
    assert done.outcome == REPEATS and done.due and read_published(path) == done


def test_another_manifest_is_another_run(forge, published):
    path = forge(lambda c: c["hashes"].update(run_manifest="0" * 64))
    with pytest.raises(DamagedInputError, match="is not the run that was attacked"):
        plan(read_claim(path), run=published.run.folder)
    path = forge(lambda c: c["hashes"].update(attack_manifest="0" * 64))
    wanted = plan(read_claim(path), run=published.run.folder, part=SCORES)
    with pytest.raises(DamagedInputError, match="is not the attack that was claimed"):
        repeat(wanted, path.with_name("v.json"))


def reseeded(content: dict[str, Any]) -> None:
    """Another seed of the training, wherever it stands."""
    content["settings"]["train"]["seed"] = content["seeds"]["training"] = 5
    train = json.dumps({**content["settings"]["train"], "seed": 0})
    assert train in content["command"]
    content["command"] = content["command"].replace(train, json.dumps(content["settings"]["train"]))


def test_other_settings_than_the_runs_are_no_claim_about_it(forge, published):
    claim = read_claim(forge(reseeded))
    with pytest.raises(DamagedInputError, match="trained with other settings than the claim"):
        plan(claim, run=published.run.folder)


def test_a_seed_changed_everywhere_is_another_partition(forge, tmp_path, capsys):
    path = forge(reseeded)
    words = ["verify", str(path), "--runs-dir", str(tmp_path / "again"), "--device", "cpu"]
    words += ["--repeat", "training"]
    assert benchmark.main(words) == 4  # before anything is trained
    assert "The partition is not the one that was claimed" in capsys.readouterr().err
    assert not (tmp_path / "again").exists()


@pytest.mark.slow
def test_a_setting_changed_everywhere_does_not_repeat(forge, tmp_path, capsys):
    def edit(content: dict[str, Any]) -> None:
        before = json.dumps(content["settings"]["train"])
        content["settings"]["train"]["lr"] = 0.5
        after = json.dumps(content["settings"]["train"])
        content["command"] = content["command"].replace(before, after)

    path = forge(edit)
    words = ["verify", str(path), "--runs-dir", str(tmp_path / "again"), "--device", "cpu"]
    words += ["--repeat", "training"]
    assert benchmark.main(words) == 8
    said = capsys.readouterr()
    assert "DOES NOT REPEAT" in said.err and "other bytes than claimed" in said.out
    found = read_published(path.with_suffix(".verification.json"))
    assert found.outcome == OTHERWISE and found.uploads_same is False


def test_other_data_are_refused_before_training(forge, tmp_path):
    claim = read_claim(forge(lambda c: c["data"].update(sha256="0" * 64)))
    with pytest.raises(DamagedInputError, match="data set is not the one that was claimed"):
        repeat(plan(claim, runs=tmp_path / "again"), tmp_path / "v.json")
    assert not (tmp_path / "again").exists()


def test_a_wider_interval_claims_no_more_room(scored, forge):
    """The room comes from the interval that was repeated, not from the one that is claimed."""

    def edit(content: dict[str, Any]) -> None:
        numbers = first(content)
        numbers.update(over=numbers["over"] + 100, over_interval=[-1e4, 1e4])

    done = scored(read_claim(forge(edit)))
    assert state(done.measures[0], part=SCORES, due=False, tolerance=0.5) == OTHER


# --- any single value may be anything -------------------------------------------------------------

JUNK = (None, True, -1, 2**53, 1e300, "", "<b>", "nan", "a:b", [], [None], {}, {"name": "x"})


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the values of a file stand; of a list its first one."""
    if path:
        yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value[:1]) if (
        isinstance(value, list)) else ()  # fmt: skip
    for key, one in inside:
        yield from places(one, (*path, key))


@pytest.mark.slow
def test_no_single_value_makes_more_than_a_refusal(published, tmp_path):
    """Read, planned and shown: whatever comes through the reader comes through the rest."""
    claim, seen = published.content(), 0
    folder = tmp_path / "claims"
    folder.mkdir()
    for place in places(claim):
        for junk in JUNK:
            content = published.content()
            inner = content
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = junk
            settings = content.get("settings")
            if place[0] == "settings" and isinstance(settings, dict):
                content["command"] = command_of(settings, content["plugins"])
            content["sha256"] = content_hash(content)
            path = folder / "x.json"
            path.write_text(json.dumps(content))
            try:
                found = read_claim(path)
            except DamagedInputError:
                continue
            seen += 1
            write_leaderboard(folder)
            with suppress(FedreError):
                plan(found)
    assert seen > 100
