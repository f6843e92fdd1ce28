"""What every learnt defence promises: its modules, its change, its terms, and what it says of them.

All are asked on a small linear extractor of 4 x 4 images, which no defence was made for.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedre_privacy.core.channels import Channel
from fedre_privacy.core.rng import seeded_generators
from fedre_privacy.defenses.base import Defense, FederationFacts
from fedre_privacy.defenses.defended_modules import defended_extractor
from fedre_privacy.defenses.learnt import (
    DefendedTraining,
    begin_modules,
    changes_representations,
    learns,
)
from fedre_privacy.defenses.local_pass import ModelShapes

from .federation import NotApplicable, expect
from .message_checks import defense_of

GLOBAL = "It draws from torch's global generator; draw from `rng`."
SHAPES = ModelShapes((1, 4, 4), 6, 3)
ROWS = 12

Made = tuple[nn.Module, nn.Module, dict[str, nn.ModuleDict]]


def _client(defense: Defense) -> Made:
    """An extractor, a head and the defence's modules, the same in every call."""
    with seeded_generators(5, "learnt checks"):
        extractor = nn.Sequential(nn.Flatten(), nn.Linear(16, SHAPES.dim), nn.Softplus())
        head = nn.Linear(SHAPES.dim, SHAPES.classes)
        return extractor, head, begin_modules([defense], SHAPES)


def _images() -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(3)
    return torch.rand((ROWS, *SHAPES.image), generator=rng), torch.arange(ROWS) % SHAPES.classes


def _generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _learnt(cls: type[Defense]) -> Defense:
    """The defence with its defaults.

    Raises:
        NotApplicable: it learns nothing.
    """
    made = defense_of(cls)
    if not learns(made):
        raise NotApplicable("It learns nothing.")
    return made


def its_modules_begin_alike(cls: type[Defense]) -> None:
    """Own modules follow from the seeded generator, and opponents are among them."""
    made = _learnt(cls)
    one, two = (_client(made)[2] for _ in range(2))
    for key, module in one.items():
        for name, value in module.state_dict().items():
            same = torch.equal(value, two[key].state_dict()[name])
            expect(same, f"The same seed begins '{name}' with other numbers.")


def its_change_is_what_it_says(cls: type[Defense]) -> None:
    """It keeps the shape, draws from its stream alone, and predicts without a draw."""
    made, before = _learnt(cls), torch.random.get_rng_state()
    if not changes_representations(made):
        raise NotApplicable("It changes no representations.")
    extractor, _, own = _client(made)
    images, _ = _images()
    held = defended_extractor(extractor, [made], own).eval()
    with torch.no_grad():
        calm = [held(images) for _ in range(2)]
        drawn = [held.sample(images, _generator(seed)) for seed in (1, 1, 2)]  # type: ignore[operator]
    expect(bool(calm[0].isfinite().all() and drawn[0].isfinite().all()), "It makes infinite ones.")
    expect(torch.equal(*calm), "Where nothing may be drawn (`rng` is None) two passes differ.")
    expect(torch.equal(drawn[0], drawn[1]), "The same stream gives other numbers.")
    expect(torch.equal(torch.random.get_rng_state(), before), GLOBAL)
    said = _channel(made)
    if said is not None:
        expect(bool(said.extractor), "Its channel names no LearntChange and no RandomChange.")
        random = not torch.equal(drawn[0], drawn[2])
        told = any(step.random for step in said.extractor)
        expect(told or not random, "It draws, and its channel says LearntChange(random=False).")
    with torch.no_grad():
        left = torch.where(calm[0] == 0, 0.0, extractor(images))
    masks = torch.allclose(calm[0], left, atol=1e-6) and torch.equal(drawn[0], calm[0])
    expect(masks or not made.sets_zeros, "It does more than to set coordinates to 0.")
    masks &= bool((calm[0] == 0).any())
    expect(not masks or made.sets_zeros, "It sets coordinates to 0: say so, `sets_zeros = True`.")


def training_with_it_repeats(cls: type[Defense]) -> None:
    """A step of training is finite, the same twice, and leaves no hook."""
    made = _learnt(cls)
    if said := _channel(made):
        term = type(made).training_term is not Defense.training_term
        expect(bool(said.training) or not term, "Its channel names no TrainingTerm at `training`.")
    ends = []
    for _ in range(2):
        extractor, head, own = _client(made)
        images, labels = _images()
        taking_part = DefendedTraining(
            [made], extractor, head, own, lambda purpose: _generator(), round=1, rounds=2
        )
        modules, _ = taking_part.trained(0.1)
        params = [p for m in (extractor, head, *modules) for p in m.parameters() if p.requires_grad]
        before = torch.random.get_rng_state()
        with taking_part.defended(
            lambda x, y: nn.functional.cross_entropy(head(extractor(x)), y)  # noqa: B023
        ) as loss:
            value = loss(images, labels)
            expect(value.dim() == 0 and bool(value.isfinite()), "Its term is no finite scalar.")
            slopes = torch.autograd.grad(value, params, allow_unused=True)
        expect(torch.equal(torch.random.get_rng_state(), before), GLOBAL)
        expect(
            all(bool(s.isfinite().all()) for s in slopes if s is not None),
            "Its term has a gradient that is not finite.",
        )
        state = [v for m in own.values() for v in m.state_dict().values()]
        ends.append([*(s for s in slopes if s is not None), *map(torch.clone, state)])
        hooks = extractor._forward_hooks or extractor._forward_pre_hooks
        expect(not hooks, "It leaves hooks on the extractor.")
    same = all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
    expect(same, "The same streams give another step.")


def _channel(made: Defense) -> Channel | None:
    return made.channel(
        FederationFacts("fedgh", (), ((3, 3, 3),), (2,), rounds=2, training_only=True)
    )


CHECKS: tuple[Callable[[type[Defense]], None], ...] = (
    its_modules_begin_alike,
    its_change_is_what_it_says,
    training_with_it_repeats,
)
