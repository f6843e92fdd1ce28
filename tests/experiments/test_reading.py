"""An attack reads each file of a run's messages once, and the next attack reads it anew."""

import time
from collections import Counter

import pytest

from fedre_privacy.core import files
from fedre_privacy.core.errors import DamagedInputError
from fedre_privacy.experiments.attack import attack, prepare_attack
from fedre_privacy.runs.resolution import require_resolved, resolve_attack
from fedre_privacy.runs.training import train

PIXEL = {"name": "pixel", "steps": 1}
FIRST, LAST = "r0001.safetensors", "r0002.safetensors"


@pytest.fixture
def hashed(monkeypatch):
    """How often each file of messages is hashed, by its name."""
    counts: Counter[str] = Counter()
    real = files._hash

    def counting(path):
        counts.update([path.name] if path.parent.name == "uploads" else [])
        return real(path)

    time.sleep(2 * files.CLOCK_NS / 1e9)  # what was written just now is hashed at every look
    files._hash_file.cache_clear()
    monkeypatch.setattr(files, "_hash", counting)
    return counts


def ask(target, name, threat):
    problems: list[str] = []
    evaluation = {"targets": 4, "ceiling": 2, "candidates": 10}
    values = {"target": target, "threat": threat, "attack": name, "eval": evaluation}
    return require_resolved(resolve_attack(values, {}, problems), problems)


@pytest.fixture(scope="module")
def small(tiny, tmp_path_factory):
    """A run whose server sends changes of a small model: all its broadcasts are replayed."""
    return train(tiny(protocol="fedkd"), runs=tmp_path_factory.mktemp("small"))


@pytest.mark.parametrize(
    ("target", "name", "threat", "needed"),
    [
        ("uploaded", PIXEL, "fedre-paper", {LAST}),
        ("recovered-prototypes", PIXEL, "strong", {FIRST, LAST}),
        ("uploaded", {"name": "disentangle"}, "strong", {FIRST, LAST}),
        ("labels", {"name": "labels"}, "realistic", {LAST}),
        ("uploaded", {"name": "membership"}, "strong", {FIRST, LAST}),
    ],
)
def test_each_file_of_messages_is_hashed_once(runs, hashed, target, name, threat, needed):
    trial = prepare_attack(runs["fedre"], ask(target, name, threat))
    trial.lines()
    assert needed <= set(hashed) and set(hashed.values()) == {1}


def test_broadcasts_that_are_replayed_are_hashed_once_too(small, hashed):
    name = {"name": "loss-membership"}
    trial = prepare_attack(small, ask("uploaded", name, "realistic"))
    assert trial.observation.models  # replayed from all broadcasts
    assert {FIRST, LAST} <= set(hashed) and set(hashed.values()) == {1}


@pytest.mark.slow
def test_a_whole_attack_hashes_each_file_once(runs, hashed):
    result = attack(runs["fedgh"], ask("uploaded", PIXEL, "fedre-paper"))
    assert set(hashed.values()) == {1} and result.record["status"] == "complete"


def test_a_file_that_changes_between_two_attacks_is_noticed(tiny, tmp_path):
    run = train(tiny(protocol="fedre"), runs=tmp_path)
    settings = ask("uploaded", PIXEL, "fedre-paper")
    prepare_attack(run, settings)
    path = run.folder / "uploads" / "r0002.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedInputError, match="is not the file that was recorded"):
        prepare_attack(run, settings)
