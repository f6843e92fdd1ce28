"""What an entanglement scheme is: weights over a client's samples, summing to one.

A scheme answers one question, which weight each training sample gets (`sample_weights`); the
mixed representation and the mixed label encoding follow from it, so a scheme is a few lines and
the recorded weights are always the used ones. A scheme that changes what another one does, or
says about itself something else than what it mixed, writes `mix` instead.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedre_privacy.core.artifacts import EntangledRep
from fedre_privacy.core.channels import NOTHING, Channel
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.registry import Registry
from fedre_privacy.core.rng import stream
from fedre_privacy.core.types import Emission, Mixture

schemes: Registry[Entanglement] = Registry("entanglement scheme", "fedre_privacy.entanglement")

_TOLERANCE = 1e-5

DISTRIBUTIONS = ("uniform", "gaussian", "laplace")
POSITIVE = ("abs", "softmax", "clamp", "redraw")


@dataclass(frozen=True, eq=False, kw_only=True)
class Draw:
    """One client in one round: the labels it holds, and the random streams for its weights.

    Args:
        labels: (n,) int64 on the CPU, values below num_classes.
        num_classes: length of a label encoding.
        seed: the run's, of streams that all clients share.
        secret: the client's own, which nobody without its data can compute (`Task.secret`).
        round: the round, or -1 where weights are drawn once and kept for the whole run.
    """

    labels: Tensor
    num_classes: int
    dim: int
    seed: int
    secret: int
    client: int
    round: int = -1

    def rng(self, purpose: str = "") -> torch.Generator:
        """Return a fresh stream of this client and round; other purposes, other numbers."""
        return stream(self.secret, _purpose(purpose), client=self.client, round=self.round)

    def shared_rng(self, purpose: str) -> torch.Generator:
        """Return a fresh stream that is the same at every client and in every round."""
        return stream(self.seed, _purpose(purpose))

    def of_run(self) -> Draw:
        """Return the same client with the streams of the whole run: the same in every round."""
        return dataclasses.replace(self, round=-1)

    def only(self, keep: Tensor) -> Draw:
        """Return the same client with some of its samples; keep (n,) bool."""
        return dataclasses.replace(self, labels=self.labels[keep])


def _purpose(purpose: str) -> str:
    return f"entangle {purpose}".rstrip()


@dataclass(frozen=True, eq=False)
class Mix:
    """What a client mixes, and what it says it mixed.

    Shape:
        weights (n,) float64, non-negative: of the samples. They sum to 1, or to less where the
            rest of the upload is a decoy.
        encoding (C,) float64, non-negative, summing to 1: the label encoding to upload.
        decoy (d,) float64 or None: what is added to the mixed representation and comes from no
            sample, in units of the length of the client's mean representation.
    """

    weights: Tensor
    encoding: Tensor
    decoy: Tensor | None = None


@schemes.base
@dataclass(frozen=True, kw_only=True)
class Entanglement:
    """Base of all schemes. Authors write `sample_weights`; a scheme is pure and seeded."""

    name: ClassVar[str] = ""
    when_to_use: ClassVar[str] = ""
    """When to take it rather than another scheme: a clause of at most 100 characters."""
    exact: ClassVar[bool] = True
    """Whether the encoding says of the samples what was really mixed of them."""

    def sample_weights(
        self, labels: Tensor, num_classes: int, rng: torch.Generator
    ) -> Tensor | None:
        """Weight of each of a client's training samples, or None to upload nothing this round.

        Args:
            labels: (n,) int64 on the CPU, values below num_classes.
            rng: a CPU stream keyed by (seed, client, round), or by (seed, client) when the
                protocol re-uses its weights in every round.

        Returns:
            (n,) floating, non-negative, summing to 1.
        """
        raise TypeError(f"{type(self).__name__} does not define sample_weights")

    def layers(self) -> list[Entanglement]:
        """The scheme, and whatever schemes it is built on, outermost first."""
        inside = [getattr(self, item.name) for item in dataclasses.fields(self)]
        built_on = [one for one in inside if isinstance(one, Entanglement)]
        return [self, *(layer for one in built_on for layer in one.layers())]

    def mix(self, draw: Draw) -> Mix | None:
        """What is mixed and what is said about it, or None to upload nothing this round.

        The default asks `sample_weights` and says the truth. Override it to build on another
        scheme (`compose`), or for weights that need streams of the run (`Draw.of_run`).

        Raises:
            IncompatibleError: the weights are no distribution over the samples.
        """
        given = self.sample_weights(draw.labels, draw.num_classes, draw.rng())
        if given is None:
            return None
        weights = self._shares("weights", given, len(draw.labels))
        return Mix(weights, by_class(weights, draw))

    def channel(self) -> Channel | None:
        """What the upload is beside the mix that its encoding tells; None: it does not say.

        The default is nothing for a scheme that writes `sample_weights`, whose encoding is always
        true, and None for one that writes `mix`. Of a `base` it says nothing: that is asked too.
        """
        return NOTHING if type(self).mix is Entanglement.mix else None

    def __call__(self, reps: Tensor, draw: Draw) -> Emission | None:
        """Mix a client's representations (n, d) and labels; None if it uploads nothing.

        Raises:
            IncompatibleError: the scheme broke what `Mix` promises.
        """
        mix = self.mix(draw)
        if mix is None:
            return None
        weights = self._shares("weights", mix.weights, len(draw.labels), whole=mix.decoy is None)
        encoding = self._shares("a label encoding", mix.encoding, draw.num_classes)
        rep = weights.to(reps) @ reps
        if mix.decoy is not None:
            if mix.decoy.shape != rep.shape:
                raise self._refusal("a decoy", f"shape {tuple(mix.decoy.shape)}", f"({draw.dim},)")
            rep = rep + mix.decoy.to(reps) * reps.mean(0).norm()
        used = weights.nonzero().squeeze(1)
        mixture = Mixture(torch.zeros_like(used), used, weights[used].float(), num_rows=1)
        return Emission(EntangledRep(rep, encoding.float()), mixture)

    def _shares(self, what: str, given: Tensor, size: int, *, whole: bool = True) -> Tensor:
        """Return `given` in float64, or refuse it: (size,), from 0 on, summing to 1 or less."""
        values = torch.as_tensor(given)
        if tuple(values.shape) != (size,):
            raise self._refusal(what, f"shape {tuple(values.shape)}", f"({size},)")
        if not bool((values.isfinite() & (values >= 0)).all()):
            raise self._refusal(what, "negative or non-finite values", "finite numbers from 0 on")
        total = values.double().sum()
        if float(total) > 1 + _TOLERANCE or (whole and float(total) < 1 - _TOLERANCE):
            needed = "1; divide by the sum" if whole else "at most 1"
            raise self._refusal(what, f"the sum {float(total):.6g}", needed)
        if whole and values.dtype != torch.float64:  # it sums to 1 in its own precision only
            return values.double() / total
        return values.double()

    def _refusal(self, what: str, got: str, needed: str) -> IncompatibleError:
        return IncompatibleError(
            f"Entanglement scheme '{self.name or type(self).__name__}' gave {what} with {got}; "
            f"needed: {needed}."
        )


def by_class(weights: Tensor, draw: Draw) -> Tensor:
    """Add up the weights (n,) of each class: the label encoding of a mix, (num_classes,)."""
    empty = torch.zeros(draw.num_classes, dtype=torch.float64)
    return empty.index_add_(0, draw.labels, weights)


def class_sizes(labels: Tensor, num_classes: int) -> Tensor:
    """Samples of each class, (num_classes,) float64."""
    return torch.bincount(labels, minlength=num_classes).double()


def spread_over_classes(class_weights: Tensor, labels: Tensor) -> Tensor:
    """Turn weights over prototypes (num_classes,) into weights over samples: v_c / n_c.

    Classes that are absent get nothing and the rest is renormalised to sum 1.
    """
    sizes = class_sizes(labels, len(class_weights))
    present = torch.where(sizes > 0, class_weights.double(), 0.0)
    per_class = present / present.sum() / sizes.clamp(min=1)
    return per_class[labels]


def on_some(scheme: Entanglement, draw: Draw, keep: Tensor) -> Mix | None:
    """Let a scheme see only the samples in keep (n,) bool; the others get weight 0.

    None, so no upload, where nothing is kept.
    """
    if not bool(keep.any()):
        return None
    mix = scheme.mix(draw.only(keep))
    if mix is None:
        return None
    weights = torch.zeros(len(keep), dtype=torch.float64)
    weights[keep] = mix.weights
    return dataclasses.replace(mix, weights=weights)


def blend(one: Mix, other: Mix, share: float) -> Mix:
    """Mix two mixes of the same samples: (1 - share) of one, share of the other."""

    def between(a: Tensor, b: Tensor) -> Tensor:
        return (1 - share) * a + share * b

    if one.decoy is None or other.decoy is None:
        decoy = one.decoy if other.decoy is None else other.decoy
        if decoy is not None:
            decoy = decoy * (share if one.decoy is None else 1 - share)
    else:
        decoy = between(one.decoy, other.decoy)
    return Mix(between(one.weights, other.weights), between(one.encoding, other.encoding), decoy)


def positive_weights(
    count: int, rng: torch.Generator, *, distribution: str, positive: str
) -> Tensor:
    """Draw `count` weights and make them positive, not yet normalised.

    Uniform(0, 1), N(0, 1) or Laplace(0, 1). The paper does not say what happens to negative
    draws, which would put the label encoding outside the simplex; `positive` chooses: absolute
    value, softmax, clamp at 1e-6, or redraw until positive. A total that is almost zero falls
    back to equal weights.

    Returns:
        (count,) float64.

    Reference: FedRE (CVPR 2026), Table 7.
    """
    weights = _draw(count, rng, distribution)
    if positive == "abs":
        weights = weights.abs()
    elif positive == "softmax":
        weights = weights.softmax(0)
    elif positive == "clamp":
        weights = weights.clamp(min=1e-6)
    else:
        while (negative := weights <= 0).any():
            weights = torch.where(negative, _draw(count, rng, distribution), weights)
    return weights if weights.sum() >= 1e-12 else torch.ones_like(weights)


def _draw(count: int, rng: torch.Generator, distribution: str) -> Tensor:
    if distribution == "gaussian":
        return torch.randn(count, generator=rng, dtype=torch.float64)
    uniform = torch.rand(count, generator=rng, dtype=torch.float64)
    if distribution == "uniform":
        return uniform
    centred = uniform - 0.5
    return -centred.sign() * torch.log1p(-2 * centred.abs())
