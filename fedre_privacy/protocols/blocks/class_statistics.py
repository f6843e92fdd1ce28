"""Counts, means and covariances of a client's classes, and a head from them (FedPFT, FedCGS)."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from fedre_privacy.core.artifacts import ClassStatistics
from fedre_privacy.core.eigenvalues import symmetric_eigen
from fedre_privacy.core.triangles import pack, unpack
from fedre_privacy.core.types import Emission, Mixture

FORMS = {"full": "full", "diagonal": "diag", "spherical": "spherical"}
"""Covariances of a class of its own, and what scikit-learn calls them."""
REGULAR = 1e-6
"""Added to every variance, as scikit-learn's mixtures do."""
TOLERANCE, ITERATIONS = 1e-12, 10_000
"""When fitting a mixture ends, as in the public code."""


def mixture_statistics(
    reps: Tensor, labels: Tensor, components: int, form: str, rng: torch.Generator
) -> Emission | None:
    """A Gaussian mixture of every class that has more samples than components.

    Args:
        reps: (n, d). labels: (n,) int64.
        components: of each class's mixture; 1: mean and covariance, without a fit.
        form: a key of `FORMS`.
        rng: draws where fits start.

    Returns:
        Classes ascending, their components in order, float32; None where no class is large enough.
    """
    reps, labels = reps.cpu(), labels.cpu()  # once, not for every class
    means, spreads, counts, owners = [], [], [], []
    rows, samples, weights = [], [], []
    for label in labels.unique().tolist():
        index = (labels == label).nonzero().squeeze(1)
        if len(index) <= components:
            continue
        own = reps[index].double()
        shares = _shares(own, components, form, rng)
        for share in shares.T:
            total = share.sum()
            mean = share @ own / total
            centred = own - mean
            means.append(mean)
            spreads.append(_spread(centred, share / total, form))
            counts.append(total)
            owners.append(label)
            inside = share > 1e-6 * total
            rows.append(torch.full((int(inside.sum()),), len(means) - 1))
            samples.append(index[inside])
            weights.append((share / total)[inside].float())
    if not means:
        return None
    sizes = torch.stack(counts)
    whole = sizes.round().long() if components == 1 else sizes.float()
    made = ClassStatistics(
        torch.stack(means).float(), whole, torch.tensor(owners),
        {form: torch.stack(spreads).float()},
    )  # fmt: skip
    mixture = Mixture(torch.cat(rows), torch.cat(samples), torch.cat(weights), len(means))
    return Emission(made, mixture)


def _shares(own: Tensor, components: int, form: str, rng: torch.Generator) -> Tensor:
    """How much of each sample (n, d) belongs to each component, (n, components)."""
    if components == 1:
        return own.new_ones(len(own), 1)
    seed = int(torch.randint(2**31 - 1, (1,), generator=rng))
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    fit = GaussianMixture(
        components, covariance_type=FORMS[form], tol=TOLERANCE, max_iter=ITERATIONS,
        reg_covar=REGULAR, random_state=seed,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        shares = fit.fit(own.numpy()).predict_proba(own.numpy())
    return torch.from_numpy(shares).double().clamp(min=1e-12)


def _spread(centred: Tensor, share: Tensor, form: str) -> Tensor:
    if form == "full":
        matrix = centred.T @ (centred * share[:, None])
        return pack(matrix + REGULAR * torch.eye(len(matrix), dtype=matrix.dtype))
    variance = share @ centred.square() + REGULAR
    return variance.mean() if form == "spherical" else variance


def drawn_from(sent: ClassStatistics, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """As many representations (n, d) as the classes have, from their mixtures, and labels (n,).

    Draws of a class fall on its components by their counts.
    """
    means, counts = sent.means.double(), sent.counts.double()
    ((form, values),) = sent.spread.items()
    rows = []
    for label in sent.labels.unique().tolist():
        own = (sent.labels == label).nonzero().squeeze(1)
        number = max(1, round(float(counts[own].sum())))
        picked = torch.multinomial(counts[own], number, replacement=True, generator=rng)
        rows.append(own[picked])
    row = torch.cat(rows).sort().values
    noise = torch.randn(len(row), means.shape[1], generator=rng, dtype=torch.float64)
    out = means[row]
    if form != "full":
        roots = values.double().clamp(min=0).sqrt()[row]
        return (out + noise * (roots if form == "diagonal" else roots[:, None])).float(), (
            sent.labels[row]
        )
    for number in row.unique().tolist():
        here = row == number
        values_of, vectors = symmetric_eigen(unpack(values[number].double(), means.shape[1]))
        out[here] += (noise[here] * values_of.clamp(min=0).sqrt()) @ vectors.T
    return out.float(), sent.labels[row]
