"""Answers of every dtype, shape and value: each is scored, or an error that names the attack."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedre_privacy.attacks.base import Context, check_outcome
from fedre_privacy.core.answers import MOST_LETTERS, typed_answer
from fedre_privacy.core.errors import DivergedError, IncompatibleError
from fedre_privacy.core.files import json_text, write_frame, write_tensors
from fedre_privacy.core.outcomes import Outcome
from fedre_privacy.eval.report import save_figure
from fedre_privacy.experiments.attack import prepare_attack
from fedre_privacy.experiments.questions.base import Trial, question_of, questions
from fedre_privacy.runs.resolution import resolve_attack
from fedre_privacy.runs.run import Run

ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "images": ("fedgh", {"attack": {"name": "pixel", "steps": 2}}),
    "prototypes": ("fedre", {"attack": "disentangle", "target": "uploaded"}),
    "labels": ("fedgh", {"attack": "labels", "target": "labels"}),
    "membership": ("fedgh", {"attack": "membership", "target": "membership"}),
    "source": ("fedgh", {"attack": "membership", "target": "source"}),
    "retrieval": ("fedgh", {"attack": "nearest-candidate", "target": "retrieval"}),
    "representations": ("fedpft", {"attack": "unpool", "target": "representations"}),
    "property": ("fedgh", {"attack": "property", "target": "property", "threat": "public-init"}),
}
EVAL = {
    "targets": 3, "ceiling": 0, "candidates": 12, "gallery": 4, "public": 60, "metrics": ["psnr"],
}  # fmt: skip
FLOAT8 = [getattr(torch, name) for name in ("float8_e4m3fn", "float8_e5m2") if hasattr(torch, name)]
DTYPES = [
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.bool,
    torch.uint8, torch.int8, torch.int32, torch.int64, torch.uint16, torch.uint64, *FLOAT8,
]  # fmt: skip
NUMBERS = (torch.nan, torch.inf, -torch.inf, -1.0, 0.0, 0.3, 1.0, 2.0, 999.0, 1e30, -1e30, 1e300)
NO_TENSORS = (None, 0.5, [0.5], "0.5", {"a": 1}, object())
TEXTS = (
    None,
    7,
    b"x",
    ["x"],
    ("x", 7),
    "\ud800",
    ("\ud800",),
    "x" * (MOST_LETTERS + 1),
    "",
    ("a",),
)


@pytest.fixture(scope="module")
def trial(trained: Callable[..., Run]) -> Callable[[str], Trial]:
    def prepared(question: str) -> Trial:
        protocol, values = ASKED[question]
        problems: list[str] = []
        settings = resolve_attack({"threat": "strong", "eval": EVAL, **values}, {}, problems)
        assert settings is not None, problems
        assert question_of(settings).name == question
        return prepare_attack(trained(protocol), settings)

    return cache(prepared)


@pytest.fixture(scope="module")
def honest(trial: Callable[[str], Trial]) -> Callable[[str], Outcome]:
    return cache(
        lambda question: trial(question).settings.attack(
            trial(question).observation, Context(seed=3)
        )
    )


def tensors(value: Tensor) -> Iterator[tuple[str, Any]]:
    """The same field otherwise."""
    for dtype in DTYPES:
        yield str(dtype), value.to(dtype)
    for number in NUMBERS:
        yield f"all {number}", torch.full(value.shape, number, dtype=torch.float64)
        if len(value) and value.dim():
            some = value.double().clone()
            some[0] = number
            yield f"first {number}", some
    for shape in ((), (0,), (1,), (0, 5), (*value.shape, 1), (1, *value.shape), value.shape[::-1]):
        yield f"shape {tuple(shape)}", torch.zeros(shape, dtype=value.dtype)
    yield "one fewer", value[:-1]
    yield "one more", torch.cat([value, value[:1]])
    yield "sparse", value.to_sparse()
    yield "meta", value.to("meta")
    yield "with a gradient", value.double().clone().requires_grad_()
    yield "conjugate", torch.zeros(value.shape, dtype=torch.complex64).conj()
    yield "uint64 beyond", torch.full(value.shape, -1).to(torch.uint64)
    yield "int64 beyond", torch.full(value.shape, 2**62)
    for other in NO_TENSORS:
        yield type(other).__name__, other


def variants(answer: Outcome) -> Iterator[tuple[str, Outcome]]:
    for item in dataclasses.fields(answer):
        value = getattr(answer, item.name)
        for name, other in tensors(value) if isinstance(value, Tensor) else enumerate(TEXTS):
            yield f"{item.name}: {name}", dataclasses.replace(answer, **{item.name: other})


DRAWN = 60
SOME, MOST = {"images": 25}, {"images": 5}
"""One of so many accepted answers is scored, in all runs and in slow ones; one of 60 is drawn."""


def test_every_question_of_ours_is_asked():
    ours = {name for name in questions.names() if "fedre_privacy." in questions.origin(name)}
    assert ours == set(ASKED)


@pytest.mark.parametrize(
    ("question", "every"),
    [
        *((name, SOME.get(name, 4)) for name in ASKED),
        *(pytest.param(name, MOST.get(name, 1), marks=pytest.mark.slow) for name in ASKED),
    ],
)
def test_an_answer_is_scored_or_refused_by_the_attacks_name(
    question: str,
    every: int,
    trial: Callable[[str], Trial],
    honest: Callable[[str], Outcome],
    tmp_path: Path,
) -> None:
    asked = trial(question)
    attack, seen = asked.settings.attack, asked.observation
    tried, scored, failed = 0, 0, []
    for name, answer in variants(honest(question)):
        tried += 1
        try:
            found = check_outcome(attack, seen, answer, question_of(asked.settings).outcome())
        except (IncompatibleError, DivergedError) as error:
            assert f"Attack '{attack.name}' " in str(error), name
            continue
        scored += 1
        if scored % every:
            continue
        try:
            card = asked.score(found)
            write_frame(tmp_path / "scores.csv", card.rows)
            asked.write(tmp_path, found)
            tensors, texts = found.save()
            write_tensors(tmp_path / "recovered.safetensors", tensors, metadata=texts)
            json_text(card.record())
            if scored % DRAWN == 0:
                for figure in asked.figures(found, card).values():
                    save_figure(figure, tmp_path / "figure", dpi=30)
        except Exception as error:
            failed.append(f"{name}: {type(error).__name__}: {error}")
    assert not failed, "\n".join(failed)
    assert tried >= 60 and 0 < scored < tried


@pytest.mark.parametrize("question", ASKED)
def test_what_an_attack_of_ours_returns_is_of_its_types_already(question, trial, honest):
    answer = honest(question)
    found, problems = typed_answer(answer, trial(question).observation)
    assert problems == []
    for item in dataclasses.fields(answer):
        before, after = getattr(answer, item.name), getattr(found, item.name)
        assert before is after or torch.equal(before.nan_to_num(), after.nan_to_num())
        assert not isinstance(before, Tensor) or before.dtype == after.dtype


@pytest.mark.parametrize("other", [None, {}, "images", torch.zeros(3)])
def test_another_kind_of_answer_is_refused(other, trial):
    asked = trial("images")
    with pytest.raises(IncompatibleError, match=r"Attack 'pixel' returned a .* is needed"):
        check_outcome(asked.settings.attack, asked.observation, other)


def test_an_honest_author_may_answer_in_double_precision(trial, honest):
    asked, answer = trial("images"), honest("images")
    double = dataclasses.replace(
        answer, images=answer.images.double(), prior=answer.prior.double(), fit=answer.fit.double()
    )
    found = check_outcome(asked.settings.attack, asked.observation, double)
    assert found.images.dtype == torch.float32 and torch.equal(found.images, answer.images)
    assert asked.score(found).verdict == asked.score(answer).verdict
