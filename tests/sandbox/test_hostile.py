"""What a hostile attack can find of the run that it attacks."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import zlib
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from fedre_privacy.attacks.base import Context
from fedre_privacy.core.errors import ConfigError, IncompatibleError
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.registry import allow_module_paths
from fedre_privacy.core.rng import derive
from fedre_privacy.data.base import ImageData
from fedre_privacy.entanglement.base import Draw
from fedre_privacy.experiments.attack import attack, prepare_attack
from fedre_privacy.experiments.targets import TargetSource, evaluator_secret
from fedre_privacy.protocols.blocks.state import Samples, client_secret
from fedre_privacy.runs.resolution import resolve_attack, resolve_training
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.training import train
from fedre_privacy.sandbox import bubblewrap as sandbox
from fedre_privacy.sandbox.client import run_attack

needs_sandbox = pytest.mark.skipif(
    bool(sandbox.refusal()), reason=f"no sandbox: bubblewrap, {sandbox.refusal()}"
)
GUESSED = range(1000)
"""Seeds that anybody would try."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """FedRE under noise; its folder and a variable name it by a word that occurs nowhere else."""
    problems: list[str] = []
    settings = resolve_training(
        {
            "data": {"name": "digits", "size": 16, "per_class": 12},
            "model": {"name": "cnn4", "dim": 32},
            "train": {"clients": 3, "rounds": 2, "batch_size": 8},
            "defense": [{"name": "gaussian", "clip": 8.0, "noise": 0.1}],
        },
        {},
        problems,
    )
    assert settings is not None, problems
    return train(settings, runs=tmp_path_factory.mktemp("shibboleth") / "runs")


def played(run: Run, isolation: str, folder: Path, told: str = "") -> dict[str, Any]:
    """What the hostile attack finds, started from the run's own folder with it in a variable."""
    shutil.copyfile(Path(__file__).with_name("hostile.py"), folder / "hostile.py")
    problems: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        allow_module_paths("hostile:Hostile")
        patch.chdir(run.folder)
        patch.setenv("FEDRE_SECRET_PLACE", str(run.folder))
        settings = resolve_attack(
            {
                "attack": {"name": "hostile:Hostile", "told": told},
                "threat": "strong",
                "eval": {"targets": 4, "seed": GUESSED.start},
            },
            {},
            problems,
        )
        assert settings is not None, problems
        trial = prepare_attack(run, settings)
        done = run_attack(
            settings.attack,
            trial.observation,
            Context(trial.attack_seed),
            outcome=Reconstruction,
            isolation=isolation,
            hidden=trial.hidden(),
        )
    assert done.how == isolation and isinstance(done.outcome, Reconstruction)
    found: dict[str, Any] = json.loads(zlib.decompress(b64decode(done.outcome.stopped_because)))
    return found


@pytest.fixture(scope="module", params=["process", pytest.param("strict", marks=needs_sandbox)])
def found(
    run: Run, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What it finds without being told anything."""
    return played(run, str(request.param), tmp_path_factory.mktemp("own"))


@pytest.fixture
def data(run: Run) -> ImageData:
    return run.settings.data.load()


def test_nothing_names_the_run(run, found):
    for word in ("shibboleth", run.name):
        assert [text for text in found["words"] if word in text] == []


def test_nothing_of_the_evaluator_is_loaded(found):
    rooms = {name.split(".")[1] for name in found["modules"]}
    assert rooms <= {"attacks", "core", "models", "sandbox"}


def test_no_picture_but_the_public_ones_is_within_reach(run, found, data):
    train_, _ = run.split_indices()
    private = {
        hashlib.sha256(data.floats(index[None])[0].numpy().tobytes()).hexdigest()
        for own in train_
        for index in own
    }
    public = {
        hashlib.sha256(data.floats(index[None])[0].numpy().tobytes()).hexdigest()
        for own in run.split_indices()[1]
        for index in own
    }
    seen = set(found["images"])
    assert seen & (public - private)  # the search does find pictures
    assert not seen & (private - public)
    assert "a view into something larger" not in seen


@needs_sandbox
def test_in_a_sandbox_a_path_that_was_told_does_not_open(run, tmp_path):
    assert played(run, "strict", tmp_path, told=str(run.folder))["opened"] == []
    assert not (run.folder / "changed").exists()


def test_without_a_sandbox_the_rights_of_the_user_remain(run, tmp_path):
    opened = played(run, "process", tmp_path, told=str(run.folder))["opened"]
    assert str(run.folder) in opened
    (run.folder / "changed").unlink()


def test_no_seed_that_made_anything_can_be_had(run, found, data):
    tried = {*found["numbers"], *GUESSED}
    seed = TargetSource(run, data, round=None, seed=GUESSED.start).attack_seed
    assert seed in tried  # the search does find numbers
    hidden = {"evaluator": evaluator_secret(run, data, GUESSED.start)}
    for client, own in enumerate(run.split_indices()[0]):
        samples = Samples(data.images[own], data.labels[own])
        hidden[f"client {client}"] = client_secret(samples.fingerprint(), 0, client)
    places = {"client": 0, "round": 2}
    streams = {
        "noise": ("defense 0 gaussian", {**places, "index": 0}),
        "weights": ("entangle", places),
        "targets": ("targets entangled", {"client": 0}),
        "candidates": ("evaluator: candidates, order", {}),
        "public images": ("held out", {}),
    }
    for what, (purpose, key) in streams.items():
        true = {derive(one, purpose, **key) for one in hidden.values()}
        again = {derive(one, purpose, **key) for one in tried}
        again |= {derive(derive(one, "attack"), purpose, **key) for one in tried}
        assert not true & again, what
        assert not true & tried, what
    assert not set(hidden.values()) & tried


def test_the_secret_of_a_client_needs_every_pixel(run, data):
    own = run.split_indices()[0][0]
    samples = Samples(data.images[own], data.labels[own])
    other = Samples(samples.images.clone(), samples.labels)
    other.images[0, 0, 0, 0] ^= 1
    assert samples.fingerprint() != other.fingerprint()
    assert client_secret(samples.fingerprint(), 0, 0) != client_secret(samples.fingerprint(), 1, 0)


def test_uploads_were_made_with_that_secret(run, data):
    """The streams above are the ones that training used: with the secret they come again."""
    own = run.split_indices()[0][0]
    samples = Samples(data.images[own], data.labels[own])
    made = run.mixtures(2)[0, 0]
    draw = Draw(
        labels=samples.labels,
        num_classes=data.num_classes,
        dim=32,
        seed=0,
        secret=client_secret(samples.fingerprint(), 0, 0),
        client=0,
        round=2,
    )
    weights = run.settings.protocol.entanglement.mix(draw).weights  # type: ignore[attr-defined]
    assert weights[made.sample].float().equal(made.weight)
    assert not dataclasses.replace(draw, secret=0).rng().initial_seed() == draw.rng().initial_seed()


def test_a_module_of_a_script_is_refused_before_anything_runs(run):
    class Local(type(resolve_attack({}, {}, []).attack)):  # type: ignore[misc,union-attr]
        """Cannot be imported by name."""

    settings = resolve_attack({"eval": {"targets": 2}}, {}, [])
    assert settings is not None
    with pytest.raises(ConfigError, match="same-process"):
        attack(run, dataclasses.replace(settings, attack=Local(steps=2)), isolation="process")


def test_an_attack_that_dies_is_said_and_can_go_on(run, tmp_path, monkeypatch):
    (tmp_path / "dying.py").write_text(
        "import os\n"
        "from dataclasses import dataclass\n"
        "from fedre_privacy.attacks.dip import DeepImagePrior\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Dying(DeepImagePrior):\n"
        "    def run(self, observation, context):\n"
        "        os.kill(os.getpid(), 9)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    allow_module_paths("dying:Dying")
    problems: list[str] = []
    settings = resolve_attack({"attack": {"name": "dying:Dying", "steps": 2}}, {}, problems)
    assert settings is not None, problems
    with pytest.raises(IncompatibleError, match="ended without an answer"):
        attack(run, settings, isolation="process")
    record = json.loads((run.folder / "attacks" / settings.folder_name / "record.json").read_text())
    assert record["status"] == "failed"
    assert os.path.isdir(run.folder / "attacks" / settings.folder_name)
