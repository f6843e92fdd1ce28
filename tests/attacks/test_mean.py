"""The mean of two attacks: of what it is made, where one has no answer, and what it refuses."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from fedre_privacy.attacks.base import Context
from fedre_privacy.attacks.linear import LinearDecoder
from fedre_privacy.attacks.mean import MeanOfTwo
from fedre_privacy.attacks.membership import MembershipInference
from fedre_privacy.attacks.pixel import PixelInversion
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.types import Knowledge
from fedre_privacy.testing.attack_checks import Box
from fedre_privacy.testing.known_problem import problem


@dataclass(frozen=True, kw_only=True)
class Grey(LinearDecoder):
    """Answers all targets but the first with grey."""

    victims: int = 0
    level: float = 0.2

    def run(self, observation, context):
        images = torch.full((10, *observation.image_shape), self.level)
        images[0] = torch.nan
        return Reconstruction.of(images, torch.full((10,), 3.0))


LINEAR = LinearDecoder(views=1, victims=0)


def test_it_is_the_mean_and_tells_how_far_the_two_are_apart():
    seen = problem()
    alone, other = LINEAR(seen), PixelInversion(steps=2)(seen)
    both = MeanOfTwo(first=LINEAR, second=PixelInversion(steps=2))(seen)
    assert torch.allclose(both.images, (alone.images + other.images) / 2)
    assert torch.allclose(both.fit, (alone.fit + other.fit) / 2)
    apart = (alone.images - other.images).flatten(1).square().mean(1)
    assert torch.allclose(both.spread, apart, rtol=1e-4)


def test_where_one_has_no_answer_the_other_is_taken():
    seen, grey = problem(), Grey()
    both = MeanOfTwo(first=LINEAR, second=grey)(seen)
    alone = LINEAR(seen)
    assert torch.equal(both.images[0], alone.images[0]) and not both.diverged.any()
    assert torch.allclose(both.images[1], (alone.images[1] + grey.level) / 2)
    neither = MeanOfTwo(first=grey, second=Grey(level=0.4))(seen)
    assert neither.diverged.tolist() == [True] + [False] * 9


def test_finished_pieces_of_the_two_do_not_meet():
    box = Box({})
    both = MeanOfTwo(first=LINEAR, second=LINEAR)
    assert torch.equal(both(problem(), Context(cache=box)).images, LINEAR(problem()).images)
    assert {name.split("-")[0] for name in box.saved} == {"first", "second"}


def test_it_needs_what_both_need_and_takes_a_mean_for_one_of_them():
    inner = MeanOfTwo(first=LINEAR, second=PixelInversion(steps=2))
    assert MeanOfTwo(first=LINEAR, second=inner).required >= LINEAR.required
    assert Knowledge.AUX_DATA in inner.required
    assert MeanOfTwo(first=LINEAR, second=inner)(problem()).images.shape == (10, 1, 16, 16)


def test_an_attack_that_answers_another_question_is_refused():
    with pytest.raises(ConfigError, match=r"'attack\.second' is 'membership', which answers with"):
        MeanOfTwo(second=MembershipInference())
