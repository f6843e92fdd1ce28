"""What calling an attack checks, before and after the author's part."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from fedre_privacy.attacks.base import (
    Attack,
    NoCache,
    attacks,
    mismatch,
    needed_for,
    readers,
    readers_of_any,
)
from fedre_privacy.core.artifacts import (
    Counts,
    EntangledRep,
    HeadState,
    ModelState,
    Prototypes,
    Representations,
)
from fedre_privacy.core.errors import AttackFailedError, DivergedError, IncompatibleError
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.types import Knowledge
from fedre_privacy.threats.base import threats


def answer(images: Tensor, diverged: Tensor | None = None) -> Reconstruction:
    count = len(images)
    return Reconstruction(
        images=images,
        prior=torch.zeros_like(images),
        fit=torch.zeros(count),
        trace=torch.zeros(1, count),
        trace_steps=torch.zeros(1),
        stopped_because="done",
        diverged=torch.zeros(count, dtype=torch.bool) if diverged is None else diverged,
    )


@dataclass(frozen=True, kw_only=True)
class Answers(Attack):
    """Returns what it was told to."""

    name = "answers"
    consumes = (Representations,)
    given: ClassVar[Reconstruction]

    def run(self, observation, context) -> Reconstruction:
        return self.given


@pytest.fixture
def problem(observe, rotation):
    seen = observe([torch.ones(3, 256)], {(0, 1): rotation()}, image_shape=(1, 2, 2))
    return replace(seen, extractors={})


def returns(images: Tensor, diverged: Tensor | None = None) -> Answers:
    Answers.given = answer(images, diverged)
    return Answers()


def test_a_good_answer_passes(problem):
    images = torch.rand(3, 1, 2, 2)
    images[0, 0, 0, 0], images[0, 0, 0, 1] = 0, 1
    assert torch.equal(returns(images)(problem).images, images)


@pytest.mark.parametrize("shape", [(2, 1, 2, 2), (3, 2, 2), (3, 1, 2, 3), (3, 3, 2, 2)])
def test_a_wrong_shape_is_refused(problem, shape):
    with pytest.raises(IncompatibleError, match=r"must be \(3, 1, 2, 2\) for 3 targets"):
        returns(torch.zeros(shape))(problem)


@pytest.mark.parametrize("value", [-0.01, 1.01])
def test_values_outside_the_range_are_refused(problem, value):
    images = torch.full((3, 1, 2, 2), 0.5)
    images[1, 0, 0, 0] = value
    with pytest.raises(IncompatibleError, match=r"values are in \[0, 1\]"):
        returns(images)(problem)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_divergence_must_be_marked(problem, value):
    images = torch.full((3, 1, 2, 2), 0.5)
    images[1, 0, 0, 0] = value
    with pytest.raises(IncompatibleError, match="without marking"):
        returns(images)(problem)
    marked = torch.tensor([False, True, False])
    assert returns(images, marked)(problem).diverged.tolist() == marked.tolist()


def test_no_finite_answer_is_an_error(problem):
    with pytest.raises(DivergedError, match="all 3 targets"):
        returns(torch.full((3, 1, 2, 2), torch.nan), torch.ones(3, dtype=torch.bool))(problem)


def test_an_attack_without_run_says_so(problem):
    class Empty(Attack):
        consumes = (Representations,)

    with pytest.raises(AttackFailedError, match="TypeError: Empty does not define run"):
        Empty()(problem)


def test_every_reason_is_given_at_once():
    problems = mismatch(attacks.get("dip"), threats.get("eavesdropper"), {HeadState})
    assert len(problems) == 2
    assert "HeadState" in problems[0] and "needs EXTRACTOR" in problems[1]
    assert "grants UPLOADS" in problems[1]
    reads = {Representations, Prototypes, EntangledRep}
    assert mismatch(attacks.get("dip"), threats.get("fedre-paper"), reads) == []


def test_readers_of_a_kind():
    assert {"dip", "pixel"} <= set(readers([EntangledRep]))
    membership = ["alignment", "loss-membership", "own-list-alignment", "span"]
    assert set(readers([HeadState])) == {
        "head", "head-features", "labels", "property", *membership,
    }  # fmt: skip
    assert readers([]) == []
    assert "labels" in readers([ModelState, Counts]) and "head" not in readers([ModelState, Counts])


def test_the_empty_shelf_keeps_nothing():
    cache = NoCache()
    cache.save("a", {"x": torch.ones(1)})
    assert cache.load("a") is None


def test_what_reads_some_kinds_is_named_by_question():
    found = readers_of_any([ModelState, Counts])
    assert found["labels"] == [Counts, ModelState] and found["head"] == [ModelState]
    assert "dip" not in found and readers_of_any([]) == {}
    strong = threats.get("strong")
    (problem,) = mismatch(attacks.get("membership"), strong, {ModelState, Counts})
    _, _, listed = problem.partition("Attacks for them: ")
    questions = dict(part.split(": ") for part in listed.removesuffix(".").split("; "))
    assert questions["labels"] == "labels"
    assert "loss-membership (ModelState)" in questions["membership"].split(", ")
    assert "update-inversion (ModelState)" in questions["images"].split(", ")
    assert "head (ModelState)" in questions["prototypes"].split(", ")


def test_some_kinds_need_more():
    attack = attacks.get("loss-membership")
    assert Knowledge.EXTRACTOR in needed_for(attack, {HeadState, Counts})
    assert needed_for(attack, {ModelState}) == needed_for(attack(), {ModelState}) == attack.needs
