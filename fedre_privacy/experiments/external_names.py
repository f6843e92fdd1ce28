"""Tensors of another system under the names of one's own module: what they are called, and what
had to be assumed to find it out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from fedre_privacy.core.units import first_few

COUNTED = "num_batches_tracked"
"""What BatchNorm counts beside its statistics; some systems leave it out."""
WRAPPERS = frozenset({
    "module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module",
})  # fmt: skip
"""Parts of names that DataParallel, torch.compile and their like put in."""

SHOWN = 4
"""Names that a sentence lists."""

Names = dict[str, str]
"""From the name that was sent to the module's own."""


@dataclass(frozen=True, eq=False)
class Layout:
    """What a module's tensors are called, and their shapes.

    Args:
        state: parameters and buffers, in the order of ``state_dict()``.
        parameters: names of parameters, in their order.
        trained: those that take a gradient.
    """

    state: Mapping[str, Tensor]
    parameters: tuple[str, ...]
    trained: tuple[str, ...]

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """The layout of a module; a copy that nothing changes later."""
        own = dict(module.named_parameters())
        return cls(
            {name: value.detach().clone() for name, value in module.state_dict().items()},
            tuple(own),
            tuple(name for name, value in own.items() if value.requires_grad),
        )


@dataclass(frozen=True, eq=False)
class NamedTensors:
    """What was sent, under the names of a module.

    Args:
        tensors: with the shapes of the module.
        problems: why it does not fit; then there are no tensors.
    """

    tensors: Mapping[str, Tensor]
    said: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def under_names(
    sent: Mapping[str, Tensor], layout: Layout, *, gradient: bool = False, more: bool = False
) -> NamedTensors:
    """Find the module's tensor that each of those that were sent is.

    Tried in this order: the same names; a list, in the order of parameters or of ``state_dict()``;
    names with the parts that wrappers put in; one part of the names, where others stand beside it;
    the names of one part of the module, such as its head.

    Args:
        sent: names are the numbers 0, 1, ... where a list was sent.
        gradient: a list holds parameters rather than a whole state.
        more: tensors that the module does not have may stand beside all of its parameters.
    """
    for names, said, beside in _ways(sent, layout, gradient):
        if names and not _misfits(sent, names, layout):
            left = [name for name in sent if name not in names]
            told = [said] if said else []
            if left:
                told.append(f"{first_few(left, SHOWN)} left out, which the module does not have")
            if not left or (more or beside) and set(layout.parameters) <= set(names.values()):
                shaped = {o: sent[n].reshape(layout.state[o].shape) for n, o in names.items()}
                return NamedTensors(shaped, tuple(told))
    names = next((listed for listed in _lists(sent, layout, gradient)), {n: n for n in sent})
    absent = [n for n in layout.parameters if n not in names.values()]
    problems = [
        *_misfits(sent, {n: own for n, own in names.items() if own in layout.state}, layout),
        *(f"'{name}' was not sent" for name in absent),
        *(f"'{own}' is not of the network" for own in names.values() if own not in layout.state),
    ]
    return NamedTensors({}, problems=tuple(problems or ["nothing was sent"]))


def _ways(
    sent: Mapping[str, Tensor], layout: Layout, gradient: bool
) -> Iterator[tuple[Names, str, bool]]:
    """Ways to name some of the tensors, what each assumes, and whether others stand beside them."""
    own = layout.state
    yield {name: name for name in sent if name in own}, "", False
    for names in _lists(sent, layout, gradient):
        yield names, "", False
    bare = {_bare(name): name for name in own}
    if len(bare) == len(own):
        found = {name: bare[_bare(name)] for name in sent if _bare(name) in bare}
        if len(set(found.values())) == len(found):
            yield found, "names taken without what wrappers put in (module., _orig_mod.)", False
    heads = {name[: at + 1] for name in sent for at, sign in enumerate(name) if sign == "."}
    for head in sorted(heads, key=lambda one: (len(one), one)):
        part = {n.removeprefix(head): t for n, t in sent.items() if n.startswith(head)}
        inner = [{n: n for n in part if n in own}, *_lists(part, layout, gradient)]
        for names in inner:
            if len(names) == len(part):
                yield (
                    {head + n: to for n, to in names.items()},
                    f"names taken without '{head}'",
                    True,
                )
    places = {name[: at + 1] for name in own for at, sign in enumerate(name) if sign == "."}
    fits = [place for place in sorted(places) if not _misfits(
        sent, {n: place + n for n in sent if place + n in own}, layout
    ) and all(place + n in own for n in sent)]  # fmt: skip
    if len(fits) == 1:
        yield {n: fits[0] + n for n in sent}, f"names taken as those of '{fits[0][:-1]}'", False


def _lists(sent: Mapping[str, Tensor], layout: Layout, gradient: bool) -> Iterator[Names]:
    """Names of a list, in the orders that have its length."""
    if not sent or set(sent) != {str(number) for number in range(len(sent))}:
        return  # names, not numbers
    short = [name for name in layout.state if not name.endswith(COUNTED)]
    states = [short, list(layout.state)]
    learnt = [list(layout.parameters), list(layout.trained)]
    for order in (*learnt, *states) if gradient else (*states, *learnt):
        if len(order) == len(sent):
            yield {str(number): name for number, name in enumerate(order)}


def _bare(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def _misfits(sent: Mapping[str, Tensor], names: Names, layout: Layout) -> list[str]:
    """Shapes that differ; one number is one number, in whatever shape."""
    return [
        f"'{own}' is {tuple(sent[name].shape)}, not {tuple(layout.state[own].shape)}"
        for name, own in names.items()
        if sent[name].shape != layout.state[own].shape
        and not sent[name].numel() == layout.state[own].numel() == 1
    ]
