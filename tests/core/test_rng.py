"""A stream depends on its own key and on nothing else."""

from __future__ import annotations

import itertools
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from fedre_privacy.core.rng import derive, seeded_generators, stream


def draw(generator: torch.Generator) -> list[float]:
    return torch.rand(4, generator=generator).tolist()


def test_equal_keys_give_equal_streams():
    assert draw(stream(3, "batches", client=1, round=2)) == draw(
        stream(3, "batches", client=1, round=2)
    )


def test_no_two_keys_share_a_stream():
    keys = list(itertools.product((0, 1), ("a", "b"), (-1, 0, 1), (-1, 0, 1), (-1, 0, 1)))
    seeds = {derive(s, p, client=c, round=r, index=i) for s, p, c, r, i in keys}
    assert len(seeds) == len(keys)
    assert all(0 <= seed < 2**63 for seed in seeds)
    # digits must not run together: (1, 23) is not (12, 3)
    assert derive(0, "a", client=1, round=23) != derive(0, "a", client=12, round=3)


def test_streams_do_not_depend_on_the_order_of_use():
    forward = {c: draw(stream(0, "x", client=c)) for c in (0, 1, 2)}
    torch.rand(7)
    backward = {}
    for c in (2, 1, 0):
        other = stream(0, "y", client=c)
        torch.rand(11, generator=other)
        backward[c] = draw(stream(0, "x", client=c))
    assert forward == backward


def test_seeds_are_the_same_in_every_version():
    assert derive(0, "batches") == 348249033354518024
    assert derive(7, "entangle", client=3, round=5, index=1) == 5060395166676339141


def test_seeded_restores_the_global_generator():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with seeded_generators(1, "model", client=2):
        inside = torch.rand(3)
        torch.rand(100)
    assert torch.equal(torch.rand(3), expected)
    torch.rand(13)
    with seeded_generators(1, "model", client=2):
        assert torch.equal(torch.rand(3), inside)
    with seeded_generators(1, "model", client=3):
        assert not torch.equal(torch.rand(3), inside)


def test_seeded_restores_after_an_error():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    try:
        with seeded_generators(1, "model"):
            torch.rand(1)
            raise KeyError
    except KeyError:
        pass
    assert torch.equal(torch.rand(3), expected)


def test_threads_have_the_global_generators_one_after_another():
    def drawn(number: int) -> torch.Tensor:
        with seeded_generators(number, "threads"):
            parts = []
            for _ in range(20):
                parts.append(torch.rand(3))
                time.sleep(0.0005)  # another thread's turn
            return torch.cat(parts)

    alone, before = [drawn(number) for number in range(6)], torch.random.get_rng_state()
    with ThreadPoolExecutor(3) as crew:
        together = list(crew.map(drawn, range(6)))
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_block_draws_what_manual_seed_would_give_it_and_takes_no_stack_trace(monkeypatch):
    torch.manual_seed(derive(1, "model", client=2))
    expected = torch.rand(3)
    if not torch.cuda.is_available():
        monkeypatch.setattr(traceback, "format_stack", lambda: pytest.fail("a trace was taken"))
    with seeded_generators(1, "model", client=2):
        assert torch.equal(torch.rand(3), expected)
