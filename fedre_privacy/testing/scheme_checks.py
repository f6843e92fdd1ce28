"""What every entanglement scheme promises, on a few samples of a client."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from fedre_privacy.core.config import build_plugin, knobs
from fedre_privacy.core.rng import stream
from fedre_privacy.core.types import Emission
from fedre_privacy.entanglement.base import Draw, Entanglement, by_class, schemes

from .federation import expect, name_of, survives

CLASSES, DIM = 6, 7
LABELS = {
    "uneven classes": torch.tensor([0, 3, 3, 3, 5, 0, 3, 5, 5, 5, 3]),
    "one class": torch.full((4,), 2),
    "one sample": torch.tensor([4]),
    "a class with one sample": torch.tensor([0, 0, 0, 5]),
    "all classes": torch.arange(CLASSES).repeat(3),
}
BASES = ("rar", "rsr", "vap")
"""Schemes on which one that is built on another is tried, beside its default."""


def some_reps(labels: Tensor, seed: int = 0) -> Tensor:
    """Representations of samples (n, d)."""
    return torch.randn(len(labels), DIM, generator=stream(seed, "reps"))


def draw_of(labels: Tensor, seed: int = 0, client: int = 2, round: int = 5) -> Draw:
    """What a scheme is asked for these labels (n,)."""
    return Draw(
        labels=labels, num_classes=CLASSES, dim=DIM, seed=seed, secret=seed, client=client,
        round=round,
    )  # fmt: skip


def same(one: Emission | None, other: Emission | None) -> bool:
    """Whether two uploads and their mixtures are equal, bit for bit."""
    if one is None or other is None:
        return one is other
    pairs = [(one.artifact.tensors()[n], t) for n, t in other.artifact.tensors().items()]
    if one.mixture is None or other.mixture is None:
        return one.mixture is other.mixture and all(torch.equal(a, b) for a, b in pairs)
    pairs.append((one.mixture.weight, other.mixture.weight))
    pairs.append((one.mixture.sample, other.mixture.sample))
    return all(torch.equal(a, b) for a, b in pairs)


Part = type[Entanglement] | Entanglement
"""A scheme with its defaults, or with the settings of an instance."""


def each(part: Part) -> Iterator[tuple[Entanglement, str, Tensor]]:
    """A scheme for all labels, and on other schemes where it is built on one."""
    for scheme in [part] if isinstance(part, Entanglement) else _variants(part):
        for what, labels in LABELS.items():
            yield scheme, what, labels


def _variants(cls: type[Entanglement]) -> list[Entanglement]:
    name = name_of(cls, schemes)
    made = [cls()]
    for base in BASES if "base" in {knob.name for knob in knobs(cls)} else ():
        problems: list[str] = []
        values = {"name": name, "base": base}
        one = build_plugin(schemes, values, at="scheme", problems=problems)
        if one is None:
            raise AssertionError(" ".join(problems))
        made.append(one)
    return made


def declarations(part: Part) -> None:
    """It has a name and a docstring, and keeps its settings."""
    made = part if isinstance(part, Entanglement) else part()
    name = name_of(type(made), schemes)
    expect(made.name == name and bool(type(made).__doc__), "It has no name or no docstring.")
    survives(schemes, made, "protocol.entanglement")


def weights_are_a_distribution(part: Part) -> None:
    """Weights are not negative and sum to one, or to less where a decoy takes the rest."""
    for scheme, what, labels in each(part):
        mix = scheme.mix(draw_of(labels))
        if mix is None:
            continue
        shape = mix.weights.shape == (len(labels),) and mix.weights.dtype == torch.float64
        expect(shape, f"Weights of {what} are not float64 ({len(labels)},).")
        expect(bool((mix.weights >= 0).all()), f"Some weights of {what} are negative.")
        total = float(mix.weights.sum())
        room = 0 < total < 1 if mix.decoy is not None else abs(total - 1) < 1e-12
        expect(room, f"Weights of {what} sum to {total}.")


def the_upload_is_the_sum(part: Part) -> None:
    """What is uploaded is the weighted sum of representations, and of the decoy."""
    for scheme, what, labels in each(part):
        reps, draw = some_reps(labels), draw_of(labels)
        mix, emission = scheme.mix(draw), scheme(reps, draw)
        expect((mix is None) == (emission is None), f"It uploads of {what} what it did not mix.")
        if mix is None or emission is None:
            continue
        mixed = (mix.weights[:, None] * reps.double()).sum(0)
        if mix.decoy is not None:
            mixed = mixed + mix.decoy * reps.double().mean(0).square().sum().sqrt()
        upload = emission.artifact.tensors()
        single = upload["rep"].dtype == upload["encoding"].dtype == torch.float32
        expect(single, "What it uploads is not float32.")
        near = torch.allclose(upload["rep"].double(), mixed, atol=1e-6, rtol=0)
        expect(near, f"The upload of {what} is not the sum that its weights say.")


def the_encoding_is_true(part: Part) -> None:
    """The encoding lies on the simplex; with `exact` it is what was mixed, class by class."""
    for scheme, what, labels in each(part):
        draw = draw_of(labels)
        emission, mix = scheme(some_reps(labels), draw), scheme.mix(draw)
        if emission is None or mix is None:
            continue
        encoding = emission.artifact.tensors()["encoding"]
        on = encoding.shape == (CLASSES,) and bool((encoding >= 0).all())
        expect(on and abs(float(encoding.sum()) - 1) < 1e-6, f"The encoding of {what} is none.")
        if not all(layer.exact for layer in scheme.layers()):
            continue
        true, present = by_class(mix.weights, draw).float(), labels.bincount(minlength=CLASSES) > 0
        expect(
            torch.allclose(encoding[present], true[present], atol=1e-6, rtol=0),
            f"It declares exact = True; the encoding of {what} is not what was mixed.",
        )
        absent = float(encoding[~present].sum())
        expect(mix.decoy is not None or absent == 0, f"It names classes that {what} do not hold.")
        expect(abs(float(true.sum()) + absent - 1) < 1e-6, f"Decoys of {what} take another share.")


def the_recorded_mixture_is_the_used_one(part: Part) -> None:
    """The evaluator is told which samples were mixed, with which weights."""
    for scheme, what, labels in each(part):
        reps, draw = some_reps(labels), draw_of(labels)
        mix, emission = scheme.mix(draw), scheme(reps, draw)
        if emission is None or mix is None:
            continue
        mixture = emission.mixture
        if mixture is None:
            raise AssertionError(f"The upload of {what} comes without its mixture.")
        expect(mixture.num_rows == 1 and set(mixture.row.tolist()) == {0}, "It has other rows.")
        dense = torch.zeros(len(labels), dtype=torch.float64)
        dense[mixture.sample] = mixture.weight.double()
        near = torch.allclose(dense, mix.weights, atol=1e-7, rtol=0)
        support = mixture.support(0).tolist() == mix.weights.nonzero().squeeze(1).tolist()
        expect(near and support, f"The recorded mixture of {what} is not the one that was used.")
        if mix.decoy is None:
            rep = emission.artifact.tensors()["rep"]
            near = torch.allclose(mixture.mean(reps)[0], rep, atol=1e-6, rtol=0)
            expect(near, f"The recorded mixture of {what} makes another upload.")


def the_same_draw_gives_the_same(part: Part) -> None:
    """Nothing is drawn from torch's global generator, and what is given stays as it is."""
    for scheme, what, labels in each(part):
        reps, asked = some_reps(labels), labels.clone()
        before = torch.random.get_rng_state()
        first = scheme(reps, draw_of(asked))
        torch.rand(3)
        torch.random.set_rng_state(before)
        second = scheme(reps, draw_of(asked))
        drawn = not torch.equal(torch.random.get_rng_state(), before)
        expect(not drawn, "It draws from torch's global generator; draw from `rng`.")
        expect(same(first, second), f"The same draw of {what} gives another upload.")
        kept = torch.equal(reps, some_reps(labels)) and torch.equal(asked, labels)
        expect(kept, f"It changes the representations or labels of {what}.")


CHECKS: tuple[Callable[[Part], None], ...] = (
    declarations,
    weights_are_a_distribution,
    the_upload_is_the_sum,
    the_encoding_is_true,
    the_recorded_mixture_is_the_used_one,
    the_same_draw_gives_the_same,
)
