"""Pieces of an attack: cut, kept, taken up again, and joined in the order of the targets."""

from __future__ import annotations

import pytest
import torch

from fedre_privacy.attacks.base import Context
from fedre_privacy.attacks.common.tiles import CPU_TILE, cpu_tile
from fedre_privacy.attacks.common.tiling import in_groups, in_tiles_of, join, reconstruction, stage


class Kept(dict):
    """A result cache in memory."""

    def load(self, name):
        return self.get(name)

    def save(self, name, tensors):
        self[name] = tensors


def answered(numbers, *, logged=3):
    """What targets come to: their number in every place."""
    rows = torch.tensor(numbers, dtype=torch.float32)
    return {
        "images": rows.reshape(-1, 1, 1, 1),
        "prior": rows.reshape(-1, 1, 1, 1),
        "fit": rows,
        "trace": rows.expand(logged, -1),
        "trace_steps": torch.arange(logged),
        "steps": torch.tensor(len(numbers)),
    }


ORDER = [4, 2, 0, 3, 1]


def tiled(context, work):
    return in_tiles_of(work, ORDER, context, steps=1, cpu=2, gpu=2)


def test_tiles_are_neighbours_in_the_order_and_answers_are_by_number():
    seen, cache = [], Kept()

    def work(some, tick):
        seen.append(some)
        tick(0, torch.zeros(len(some)))
        return answered(some, logged=3 if len(some) == 2 else 2)

    found = tiled(Context(cache=cache), work)
    assert sorted(seen) == [[0, 3], [1], [4, 2]]
    assert sorted(cache) == [f"rows-{a:06d}-{b:06d}" for a, b in ((0, 2), (2, 4), (4, 5))]
    assert found["fit"].tolist() == [0, 1, 2, 3, 4]
    assert found["trace"].tolist() == [[0, 1, 2, 3, 4]] * 2  # cut to the shortest
    assert found["trace_steps"].tolist() == [0, 1] and found["steps"].tolist() == [2, 2, 1]


def test_what_was_kept_is_taken_up_and_not_made_again():
    cache, made = Kept(), []

    def work(some, tick):
        made.append(some)
        if len(made) == 2:
            raise KeyboardInterrupt
        return answered(some)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with pytest.raises(KeyboardInterrupt):
            tiled(Context(cache=cache), work)
        assert list(cache) == ["rows-000000-000002"]
        found = tiled(Context(cache=cache), work)
    finally:
        torch.set_num_threads(threads)
    assert made == [[4, 2], [0, 3], [0, 3], [1]]
    assert found["fit"].tolist() == [0, 1, 2, 3, 4]


def test_groups_are_kept_under_their_names_and_tell_how_far_they_are():
    told, cache = [], Kept()
    groups = {"b": torch.tensor([3, 0]), "a": torch.tensor([1, 4, 2])}

    def work(name, tick):
        tick(0, torch.zeros(1))
        return answered(groups[name].tolist())

    context = Context(cache=cache, report=lambda event: told.append(event.data))
    found = in_groups(work, groups, context, steps=7, cores=1)
    assert found["fit"].tolist() == [0, 1, 2, 3, 4] and set(cache) == {"a", "b"}
    assert [(one["first"], one["rows"], one["total"], one["of"]) for one in told] == [
        (0, 2, 5, 7), (2, 3, 5, 7),
    ]  # fmt: skip


def test_a_stage_keeps_its_pieces_under_names_of_its_own():
    cache = Kept()
    inner = stage(stage(Context(cache=cache), "a-"), "b-")
    inner.cache.save("rows", answered([0]))
    assert list(cache) == ["a-b-rows"] and inner.cache.load("rows") is cache["a-b-rows"]
    assert inner.cache.load("other") is None


def test_what_is_not_finite_is_marked_as_diverged():
    pieces = [answered([1.0]), answered([float("nan")])]
    found = reconstruction(join(pieces), "budget spent")
    assert found.diverged.tolist() == [False, True] and found.trace_steps.tolist() == [0, 1, 2]
    empty = [{**piece, "spread": torch.zeros(0)} for piece in pieces]
    assert join(empty, torch.tensor([1, 0]))["spread"].shape == (0,)


@pytest.mark.parametrize(
    ("rows", "tiles"),
    [(1, 1), (7, 1), (8, 2), (12, 2), (16, 2), (17, 4), (24, 4), (33, 6), (64, 8), (100, 16)],
)
def test_tiles_of_a_cpu_keep_two_cores_equally_busy(rows, tiles):
    tile = cpu_tile(rows)
    assert 1 <= tile <= CPU_TILE
    assert -(-rows // tile) in (tiles, tiles - 1)  # the last may be empty after rounding up
