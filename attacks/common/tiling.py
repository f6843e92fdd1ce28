"""From targets to answers: cut into pieces, each kept when finished and taken up again, joined.

A piece is a mapping of tensors by name. Row i belongs to the piece's target i, but for the trace
(logged steps, targets), its steps (logged steps,), and single numbers ().
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import Event

import torch
from torch import Tensor

from fedre_privacy.attacks.base import Context, ResultCache
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.threads import single_threaded

from .tiles import each, halve_tile, progress

Piece = dict[str, Tensor]
Tick = Callable[[int, Tensor], None]
"""To be called along the way with the step and the match of each row."""


def in_tiles_of(
    work: Callable[[list[int], Tick], Piece],
    order: Sequence[int],
    context: Context,
    *,
    steps: int,
    cpu: int,
    gpu: int,
    name: str = "rows",
) -> Piece:
    """Attack targets in tiles, `cpu` or `gpu` neighbours in an order at a time.

    Tiles are worked on one per core; on a GPU one after another, halved when it is full.

    Args:
        work: the numbers of some targets to what they came to.
        order: numbers of all targets.
        steps: of the work, for progress.
        name: what finished tiles are kept under.

    Returns:
        The answers to all targets, by number.

    Raises:
        OutOfMemoryError: a GPU has no room for a single target.
    """
    total, stopped = len(order), Event()
    size = max(1, cpu if context.device.type == "cpu" else gpu)

    def tile(first: int) -> Piece:
        last = min(first + size, total)
        key = f"{name}-{first:06d}-{last:06d}"
        piece = context.cache.load(key)
        if piece is None:
            rows = last - first
            tick = progress(context, stopped, of=steps, first=first, rows=rows, total=total)
            piece = work(list(order[first:last]), tick)
            context.cache.save(key, piece)
        return piece

    with single_threaded(context.device) as cores:
        if cores > 1:
            pieces = each(tile, range(0, total, size), cores, stopped)
        else:
            pieces, first = [], 0
            while first < total:
                try:
                    pieces.append(tile(first))
                    first += size
                except torch.cuda.OutOfMemoryError:
                    size = halve_tile(size, context, f"{first} of {total}")
    return join(pieces, torch.tensor(order))


def in_groups(
    work: Callable[[str, Tick], Piece],
    groups: Mapping[str, Tensor],
    context: Context,
    *,
    steps: int,
    cores: int,
    kin: Callable[[str], Hashable] | None = None,
) -> Piece:
    """Attack targets in groups (name to the numbers of targets), one per core at a time.

    Args:
        work: the name of a group to what its targets came to; kept under this name.
        steps: of the work, for progress.
        kin: groups for which it is the same are worked on one after another on one core, so that
            the later ones find what the first has left; none: every group by itself.

    Returns:
        The answers to all targets, by number.
    """
    sizes = [len(numbers) for numbers in groups.values()]
    names, stopped = list(groups), Event()

    def group(place: int) -> Piece:
        rows, first, total = sizes[place], sum(sizes[:place]), sum(sizes)
        tick = progress(context, stopped, of=steps, first=first, rows=rows, total=total)
        return cached(context, names[place], partial(work, names[place], tick))

    series: dict[Hashable, list[int]] = {}
    for place, name in enumerate(names):
        series.setdefault(kin(name) if kin else place, []).append(place)

    def one_after_another(places: list[int]) -> list[Piece]:
        return [group(place) for place in places]

    made = each(one_after_another, list(series.values()), cores, stopped)
    order = [names[place] for places in series.values() for place in places]
    return join([one for some in made for one in some], torch.cat([groups[n] for n in order]))


def cached(context: Context, name: str, make: Callable[[], Piece]) -> Piece:
    """What an interrupted attack kept under a name, or what is made now, which is kept."""
    found = context.cache.load(name)
    if found is None:
        found = make()
        context.cache.save(name, found)
    return found


def join(pieces: Sequence[Mapping[str, Tensor]], numbers: Tensor | None = None) -> Piece:
    """Pieces one after another, or rows sorted by the numbers (N,) of their targets.

    Traces are cut to the shortest; single numbers become one for each piece.
    """
    logged = min(len(piece["trace"]) for piece in pieces)
    back = slice(None) if numbers is None else numbers.argsort()
    out = {}
    for name, first in pieces[0].items():
        found = [piece[name] for piece in pieces]
        if name == "trace_steps":
            out[name] = first[:logged]
        elif name == "trace":
            out[name] = torch.cat([trace[:logged] for trace in found], dim=1)[:, back]
        elif first.dim() == 0:
            out[name] = torch.stack(found)
        else:
            whole = torch.cat(found)
            out[name] = whole[back] if len(whole) else whole
    return out


def reconstruction(found: Mapping[str, Tensor], stopped_because: str) -> Reconstruction:
    """Answers to all targets: images, prior, fit and trace, maybe trace_steps and spread."""
    names = ("images", "prior", "fit", "trace", "trace_steps", "spread")
    fields = {name: found[name] for name in names if name in found}
    return Reconstruction.of(**fields, stopped_because=stopped_because)


def stage(context: Context, prefix: str) -> Context:
    """The context of one stage of an attack, whose pieces are kept under names of its own."""
    return replace(context, cache=_PrefixedCache(context.cache, prefix))


@dataclass(frozen=True)
class _PrefixedCache:
    """A part of what is kept, under names that begin with a prefix."""

    cache: ResultCache
    prefix: str

    def load(self, name: str) -> dict[str, Tensor] | None:
        return self.cache.load(self.prefix + name)

    def save(self, name: str, tensors: dict[str, Tensor]) -> None:
        self.cache.save(self.prefix + name, tensors)
