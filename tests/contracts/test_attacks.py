"""Attacks on representations beyond what all promise: noise, seeds, tiles on cores and on a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedre_privacy.attacks.base import Context, attacks
from fedre_privacy.core.artifacts import Representations
from fedre_privacy.core.config import knobs
from fedre_privacy.core.events import Event
from fedre_privacy.core.rng import stream
from fedre_privacy.testing.attack_checks import Box, different
from fedre_privacy.testing.known_problem import (
    BRIEF,
    QUICK,
    answer_of,
    attack_of,
    floor,
    originals,
    problem,
    psnr_db,
    short_answer_of,
)

NAMES = [
    name
    for name in attacks.names()
    if issubclass(Representations, attacks.get(name).consumes)
    and attacks.get(name).answers == "images"
]
EXACT = {"linear", "decoder", "shadow"}
"""Exact on the known problem by closed form, whatever the seed."""
TILED = sorted({"dip", "pixel", "joint-disentangle", "linear", "shadow", "ensemble-kalman"})
"""Work in tiles alone; others train a network first."""


def make(name: str, table=BRIEF, **settings):
    return attack_of(attacks.get(name), table, **settings)


def test_every_listed_name_exists():
    assert {*QUICK, *BRIEF, *TILED} <= set(NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_noise_for_an_upload_tells_nothing(name):
    def noise(reps: Tensor) -> Tensor:
        return reps.std() * torch.randn(reps.shape, generator=stream(0, "noise"))

    assert psnr_db(make(name, QUICK)(problem(noise)).images) < floor() + 0.5


@pytest.mark.parametrize("name", sorted(set(NAMES) - EXACT))
def test_another_seed_gives_another_answer(name):
    found = make(name)(problem(), Context(seed=6))
    assert not torch.equal(found.images, short_answer_of(attacks.get(name)).images)


@pytest.mark.parametrize("name", NAMES)
def test_the_number_of_threads_changes_nothing(name):
    threads = torch.get_num_threads()
    try:
        for count in (2, 4):
            torch.set_num_threads(count)
            assert different(make(name)(problem()), short_answer_of(attacks.get(name))) == []
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(threads)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", NAMES)
def test_the_chunk_changes_next_to_nothing_on_a_gpu(name):
    settings = {knob.name for knob in knobs(attacks.get(name))}
    if "chunk" not in settings:
        pytest.skip(f"{name} has no chunk")
    # Tiles of another size may take other kernels: last digits differ, and grow with the steps.
    context = Context(device=torch.device("cuda"))
    exact = {"precision": "float32"} if "precision" in settings else {}
    first, second = (make(name, chunk=chunk, **exact)(problem(), context) for chunk in (1, 64))
    assert torch.allclose(first.images, second.images, atol=1e-3)


# --- tiles ---------------------------------------------------------------------------------------


class Kill(Exception):
    """An interruption."""


@pytest.mark.parametrize("name", TILED)
def test_an_interruption_keeps_finished_tiles(name):
    def report(event: Event) -> None:
        if event.data["first"] > 0:
            raise Kill

    box, threads = Box({}), torch.get_num_threads()
    torch.set_num_threads(1)  # one tile after another
    try:
        with pytest.raises(Kill):
            make(name)(problem(), Context(report=report, cache=box))
    finally:
        torch.set_num_threads(threads)
    assert len(box.saved) == 1
    worked_on = set()
    context = Context(cache=box, report=lambda event: worked_on.add(event.data.get("first")))
    assert different(make(name)(problem(), context), short_answer_of(attacks.get(name))) == []
    assert 0 not in worked_on and worked_on and len(box.saved) > 1


@pytest.mark.parametrize("name", NAMES)
def test_a_failing_tile_stops_the_others(name):
    def report(event: Event) -> None:
        raise Kill

    box, threads = Box({}), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(Kill):
            make(name)(problem(), Context(report=report, cache=box))
        assert box.saved == [] and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_finite_diverges_with_a_step_to_take(name):
    spoilt = problem(lambda reps: reps * torch.nan)
    seen = replace(spoilt, targets=spoilt.targets[:1])
    with pytest.raises(Exception, match="all 5 targets") as caught:
        make(name)(seen)
    assert caught.value.next_step and len(originals()) == 10


@pytest.mark.parametrize("name", NAMES)
def test_every_built_in_answer_is_nearest_to_the_digit_it_stands_for(name):
    errors = answer_of(attacks.get(name)).images[:, None] - originals()[None]
    assert errors.square().flatten(2).mean(2).argmin(1).tolist() == list(range(10))
