"""Numbers and data at the edge: every protocol and attack works or ends in one clear error.

Nothing here is about quality. A training that completes has finite uploads, models and losses, and
an accuracy that is a number, or none where nobody has test images. An attack that completes has no
NaN among its scores, and a score without a value beside a verdict that says so. What cannot work
is refused by an error of the package, never by one of torch or NumPy. New protocols and attacks are
tested by being registered.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedre_privacy.api import run_attack
from fedre_privacy.attacks.base import Context, attacks
from fedre_privacy.core import files
from fedre_privacy.core.artifacts import Artifact
from fedre_privacy.core.config import knobs
from fedre_privacy.core.errors import FedreError
from fedre_privacy.core.types import Upload
from fedre_privacy.eval import Card
from fedre_privacy.experiments.attack import prepare_attack
from fedre_privacy.experiments.questions.base import question_of
from fedre_privacy.federation.recorder import read_messages
from fedre_privacy.protocols.base import protocols
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.training import train
from fedre_privacy.testing import federation
from fedre_privacy.testing.attack_checks import protocol_to_attack

ELSEWHERE = {"analytic"}
"""Reads networks that no built-in architecture is."""
ATTACKS = sorted(set(attacks.names()) - ELSEWHERE)
Values = dict[str, Any]


def pictures(count: int = 48, side: int = 16, classes: int = 3, like: str = "noise") -> Values:
    """Images (count, 1, side, side) uint8, all alike or not, and labels that take turns."""
    shape = (count, 1, side, side)
    random = np.random.RandomState(0)
    images = random.randint(0, 256, shape).astype(np.uint8)
    if like == "flat":
        images[:] = 128
    elif like == "one":
        images[:] = images[:1]
    return {"x": images, "y": np.arange(count) % classes}


def lr(value: float, **more: Any) -> Values:
    return {"train": {"lr": value, **more}}


RESNET: Values = {"model": {"name": "resnet4", "dim": 8}}
LARGE: Values = {**RESNET, "train": {"batch_size": 2, "rounds": 1}}
USUAL = "nothing unusual"
CASES: dict[str, tuple[Values, Values]] = {
    USUAL: (pictures(), {}),
    "step size overflows": (pictures(), lr(1e30)),
    "step size overflows in the only step": (pictures(), lr(1e30, rounds=1, batch_size=32)),
    "step size much too large": (pictures(), lr(1e4)),
    "step size too small for float32": (pictures(), lr(1e-46)),
    "zero variance": (pictures(like="flat"), {}),
    "identical images": (pictures(like="one"), {}),
    "one image": (pictures(count=1, classes=1), {"train": {"clients": 1}}),
    "one image to train on": (pictures(count=2, classes=1), {"train": {"clients": 1}}),
    "one image for each client": (pictures(count=6), {"train": {"train_ratio": 0.5}}),
    "one class": (pictures(classes=1), {}),
    "one client": (pictures(), {"train": {"clients": 1}}),
    "no test images": (pictures(), {"train": {"train_ratio": 0.999999}}),
    "2 pixels": (pictures(side=2), RESNET),
    "2 pixels, model for more": (pictures(side=2), {}),
    "512 pixels": (pictures(count=9, side=512), LARGE),
}
OFTEN = ("dip", "disentangle", "head", "inverting-gradients", "labels", "linear", "membership")
"""Attacks that are played in every test run; the others in the slow ones."""
QUICK = ("step size overflows in the only step", "one image to train on", "zero variance")
TRAININGS = [
    pytest.param(case, marks=[] if case in QUICK[:2] else pytest.mark.slow) for case in CASES
]
SEARCHES = {"dlg", "idlg", "inverting-gradients", "update-inversion"}
"""Attacks that take minutes for gradients of 512 pixels; they are played on all other cases."""
PLAYED = [
    pytest.param(name, case, marks=[] if case == QUICK[2] and name in OFTEN else pytest.mark.slow)
    for name in ATTACKS
    for case in CASES
    if not (name in SEARCHES and case == "512 pixels")
]


def settings_of(protocol: str, case: str, path: Path, steering: tuple[str, ...]) -> Any:
    over = CASES[case][1]
    sections: dict[str, Values] = {
        "data": {"name": "npz", "path": str(path)},
        "partition": {"name": "iid"},
        "model": {"name": "cnn4", "dim": 8},
        "train": {"clients": 3, "rounds": 2, "batch_size": 4},
        "record": {"keep_every": 1},
    }
    laid = {key: {**values, **over.get(key, {})} for key, values in sections.items()}
    made = federation.settings_of(protocol, **laid, steering=list(steering))
    small = getattr(made.protocol, "small", None)
    if small is None:
        return made
    own = replace(small, name=made.model.name)
    return replace(made, protocol=replace(made.protocol, small=own))


@pytest.fixture(scope="session")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run | FedreError]:
    """Train a protocol on a case once, under steerings: its run, or the error that it ended in."""
    folder = tmp_path_factory.mktemp("abuse")

    @cache
    def end(protocol: str, case: str, steering: tuple[str, ...] = ()) -> Run | FedreError:
        path = folder / f"{case.replace(' ', '-')}.npz"
        if not path.exists():
            np.savez(path, **CASES[case][0])
        try:
            return train(settings_of(protocol, case, path, steering), runs=folder)
        except FedreError as error:
            return error

    return end


def check_refusal(error: FedreError) -> None:
    """It has a sentence, and no trace of another package's."""
    assert error.problems and all(problem.strip() for problem in error.problems)
    assert "Traceback" not in str(error) and "RuntimeError" not in str(error)


def check_run(run: Run) -> None:
    uploads, broadcasts = read_messages(run.folder / "uploads")
    sent = [t for m in (*uploads, *broadcasts) for a in m.artifacts for t in a.tensors().values()]
    for file in (run.folder / "models").glob("*.safetensors"):
        sent += files.read_tensors(file).values()
    assert all(bool(tensor.isfinite().all()) for tensor in sent)
    tested = any(len(part) for part in run.split_indices()[1])
    with (run.folder / "metrics.csv").open(encoding="utf-8") as text:
        for row in csv.DictReader(text):
            assert math.isfinite(float(row["loss"]))
            for key in ("acc_post_local", "acc_post_broadcast"):
                assert bool(row[key]) == tested and row[key] != "nan"


def check_card(card: Card) -> None:
    for measure in card.measures:
        for value in (measure.value, measure.floor, measure.over, measure.p):
            assert value is None or math.isfinite(value), measure
    assert card.verdict.word and "nan" not in card.verdict.because.split()
    assert not [cell for row in card.table() for cell in row.values() if "nan" in cell.split()]


@pytest.mark.parametrize("case", TRAININGS)
@pytest.mark.parametrize("protocol", protocols.names())
def test_a_training_works_or_says_why_not(protocol, case, ended):
    end = ended(protocol, case)
    if isinstance(end, FedreError):
        check_refusal(end)
    else:
        check_run(end)


@pytest.mark.parametrize(("name", "case"), PLAYED)
def test_an_attack_works_or_says_why_not(name, case, ended):
    protocol, settings = protocol_to_attack(attacks.get(name))
    run = ended(protocol, case, settings.attack.steered[:1])
    if isinstance(run, FedreError):
        return
    try:
        trial = prepare_attack(run, settings)
        found = settings.attack(trial.observation, Context(seed=3))
        card = question_of(settings).score(trial, found)
    except FedreError as error:
        check_refusal(error)
        return
    check_card(card)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["zero variance", "one class", "one client", "2 pixels"])
@pytest.mark.parametrize("name", ["average", "pixel", "labels", "loss-membership"])
def test_figures_and_pages_are_drawn_or_it_says_why_not(name, case, ended):
    """One attack of each question, with all that is written."""
    protocol, settings = protocol_to_attack(attacks.get(name))
    run = ended(protocol, case)
    if isinstance(run, FedreError):
        return
    try:
        result = run_attack(run, settings, device=torch.device("cpu"), isolation="same-process")
    except FedreError as error:
        check_refusal(error)
        return
    check_card(result.card)
    assert (result.folder / "report.html").stat().st_size > 1000


def spoilt(upload: Upload, value: float) -> Upload:
    """An upload with one number replaced in every tensor of numbers."""

    def replaced(artifact: Artifact) -> Artifact:
        tensors = {name: tensor.clone() for name, tensor in artifact.tensors().items()}
        for tensor in tensors.values():
            if tensor.is_floating_point() and tensor.numel():
                tensor.view(-1)[0] = value
        made: Artifact = type(artifact).from_tensors(tensors)
        return made

    return replace(upload, artifacts=tuple(replaced(artifact) for artifact in upload.artifacts))


@pytest.mark.parametrize(
    "name", [n if n in OFTEN else pytest.param(n, marks=pytest.mark.slow) for n in ATTACKS]
)
def test_targets_that_are_not_finite_are_refused_or_scored_as_lost(name, ended):
    protocol, settings = protocol_to_attack(attacks.get(name))
    trial = prepare_attack(ended(protocol, USUAL, settings.attack.steered[:1]), settings)
    for value in (math.nan, math.inf, -math.inf):
        targets = tuple(spoilt(upload, value) for upload in trial.observation.targets)
        try:
            found = settings.attack(replace(trial.observation, targets=targets), Context(seed=3))
            card = question_of(settings).score(trial, found)
        except FedreError as error:
            check_refusal(error)
        else:
            check_card(card)


STEPPED = [name for name in ATTACKS if "lr" in {knob.name for knob in knobs(attacks.get(name))}]


@pytest.mark.slow
@pytest.mark.parametrize("value", [1e30, 1e4, 1e-46])
@pytest.mark.parametrize("name", STEPPED)
def test_an_attack_with_an_absurd_step_size_scores_or_says_that_it_diverged(name, value, ended):
    protocol, settings = protocol_to_attack(attacks.get(name))
    trial = prepare_attack(ended(protocol, USUAL, settings.attack.steered[:1]), settings)
    try:
        found = replace(settings.attack, lr=value)(trial.observation, Context(seed=3))
    except FedreError as error:
        check_refusal(error)
        return
    check_card(question_of(settings).score(trial, found))
