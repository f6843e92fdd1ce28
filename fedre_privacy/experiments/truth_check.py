"""Whether what the attacker holds makes, of the true images, what was uploaded.

Where it does not, the attack was set an impossible task, and its failure says nothing about what
leaks. The evaluator compares before the attack; no attack sees what it found.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedre_privacy.attacks.common.frozen_modules import outputs
from fedre_privacy.attacks.gradients.explained_share import updates_explained
from fedre_privacy.attacks.gradients.reconstruction import batch_labels
from fedre_privacy.attacks.gradients.victims import (
    STATISTICS,
    batch_norms,
    check_batch,
    local_steps,
    victims_of,
)
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.threads import single_threaded
from fedre_privacy.core.types import Observation, Truth, Upload

from .targets import TargetGroup

NEAR = 0.1
"""True images make an upload where they leave at most so much of what other images leave. Rounding
to 16 or 8 bits leaves less than a hundredth."""

ROUNDING = 1e-5
"""What rounding to 16 bits leaves of a vector's squared length, at most."""

MOST = 1024
"""Images of one gradient or update, at most: they pass through the model together."""

CAUSES = (
    "batch-norm mode, normalisation, kind of upload, other weights, other labels or order, or "
    "something was added to it or left out"
)
"""Why true images may not make what was uploaded, where nothing that is tried makes it."""


@dataclass(frozen=True)
class Agreement:
    """How much of the uploads their own true images make, and how much other images do.

    Args:
        own: share that the true images of an upload explain (`Attack.explained`), its mean.
        others: the same of images that did not make it.
        agrees: whether the true images make it.
        because: what else makes it, in words; empty where nothing that was tried does.
    """

    what: str
    own: float
    others: float
    agrees: bool
    because: str = ""

    def says(self) -> str:
        """What was found, in a sentence."""
        shares = f"they explain {self.own:.3f} of it, other images {self.others:.3f}"
        if self.agrees:
            return f"the module makes the {self.what} from the true images: {shares}"
        why = self.because or CAUSES
        return f"The module does not make the {self.what} from the true images ({shares}): {why}"


def agreement(
    observation: Observation,
    group: TargetGroup,
    public: Tensor,
    *,
    labels: Tensor | None = None,
    bn: str | None = None,
) -> Agreement | None:
    """Hold what was uploaded against what the true images make.

    Args:
        observation: of the attack; its targets are those of the group.
        public: (m, C, H, W), images that made none of it.
        labels: of gradients and updates the classes (M,) of the images of the truth; None: nobody
            said, and they are read off where one image made an upload.
        bn: the batch-norm mode in which the attack computes gradients; None: either will do.

    Returns:
        None where it cannot be computed: classes of several images are unknown, or too many images
        made one upload.
    """
    with single_threaded(torch.device("cpu")):
        if observation.images_per_target:
            return _of_updates(observation, group, public, labels, bn)
        return _of_rows(observation, group, public)


def _near(own: Tensor, others: Tensor, most: float = NEAR) -> bool:
    """Whether shares (N,) of true images leave at most so much of what shares of others leave."""
    return float((1 - own).mean()) <= max(ROUNDING, most * float((1 - others).mean()))


# --- representations, prototypes, mixtures -------------------------------------------------------


def _of_rows(observation: Observation, group: TargetGroup, public: Tensor) -> Agreement:
    rows, owners = observation.target_rows()
    rows = rows.double()

    def shares(
        change: Callable[[Tensor], Tensor], *, training: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Of true images, and of those of the next target (or of a public one)."""
        made = _represent_truth(observation, owners, group.truth, change, training)
        moved = made.roll(1, 0)
        if len(rows) == 1:
            module = observation.extractors[owners[0]]
            moved = outputs(module, change(public[:1].float().clone())).double()
        return _share(made, rows), _share(moved, rows)

    own, others = shares(_identity)
    found = Agreement(group.kind, float(own.mean()), float(others.mean()), _near(own, others))
    if found.agrees:
        return found
    if _in_other_order(_represent_truth(observation, owners, group.truth, _identity, False), rows):
        because = "order of rows; they are those of other true images"
    elif _near(*shares(_identity, training=True)):
        because = "batch-norm mode; it does with batch norm in training mode"
    else:
        because = _normalisation_hint(lambda change: _near(*shares(change)))
    return dataclasses.replace(found, because=because)


def _represent_truth(
    observation: Observation,
    owners: list[tuple[int, int]],
    truth: Truth,
    change: Callable[[Tensor], Tensor],
    training: bool,
) -> Tensor:
    """What extractors make of the images behind each target, in their shares (N, d)."""
    images, mixture = change(truth.images.float().clone()), truth.mixture
    out: Tensor | None = None
    for owner in dict.fromkeys(owners):
        module = copy.deepcopy(observation.extractors[owner]).cpu().eval()
        for part in batch_norms(module).values() if training else ():
            part.train()
        mine = torch.tensor([other == owner for other in owners])
        needed = mixture.sample[mine[mixture.row]].unique()
        seen = outputs(module, images[needed]).double()
        reps = seen.new_zeros(len(images), seen.shape[1]).index_copy_(0, needed, seen)
        out = seen.new_zeros(len(owners), seen.shape[1]) if out is None else out
        out[mine] = mixture.mean(reps)[mine]
    assert out is not None
    return out


def _share(made: Tensor, rows: Tensor) -> Tensor:
    """Share of each row (N, d) that vectors (N, d) explain, from 0 to 1."""
    gap, length = (made - rows).square().sum(1), rows.square().sum(1)
    return (1 - gap / length.clamp(min=1e-30)).clamp(0, 1)


def _in_other_order(made: Tensor, rows: Tensor) -> bool:
    """Whether vectors (N, d) are the rows (N, d) in another order."""
    order = torch.cdist(made, rows).argmin(1)
    return len(order.unique()) == len(rows) and _near(_share(made, rows[order]), _share(made, rows))


def _identity(images: Tensor) -> Tensor:
    return images


def _by_imagenet(images: Tensor) -> Tensor:
    """Images (n, C, H, W) less ImageNet's mean, over its deviation."""
    mean, deviation = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    if images.shape[1] != len(mean):
        return images
    shift, scale = (images.new_tensor(one)[:, None, None] for one in (mean, deviation))
    return (images - shift) / scale


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "in 0..255": lambda images: 255 * images,
    "in [-1, 1]": lambda images: 2 * images - 1,
    "less ImageNet's mean, over its deviation": _by_imagenet,
}
"""Images as others hand them to a module, in words."""


def _normalisation_hint(comes_near: Callable[[Callable[[Tensor], Tensor]], bool]) -> str:
    """The normalisation with which the true images come near the uploads, in words, or nothing."""
    words = next((words for words, change in CHANGES.items() if comes_near(change)), "")
    return f"normalisation; it comes near with images {words}" if words else ""


# --- gradients and updates -----------------------------------------------------------------------

Batch = tuple[Upload, Tensor, Tensor]
"""An upload, the images that made it and their classes."""


def _of_updates(
    observation: Observation,
    group: TargetGroup,
    public: Tensor,
    labels: Tensor | None,
    bn: str | None,
) -> Agreement | None:
    """Compare gradients, or updates with one gradient at a point between the models.

    Local training of several steps cannot be repeated, as nobody knows its batches: there the true
    images have to explain more than other images do.
    """
    batches = _batches(observation, group, labels)
    if batches is None:
        return None
    training = observation.training

    def shares(mode: str, change: Callable[[Tensor], Tensor] = _identity) -> tuple[Tensor, Tensor]:
        own: list[Tensor] = []
        others: list[Tensor] = []
        for number, (upload, images, told) in enumerate(batches):
            seen = dataclasses.replace(observation, targets=(upload,))
            places = (torch.arange(len(images)) + number * len(images)) % len(public)
            for given, out in ((images, own), (public[places].float(), others)):
                found = updates_explained(seen, change(given), told, bn=mode)
                out.append(found[0])
        return torch.stack(own), torch.stack(others)

    several = any(
        victim.local and (training is None or local_steps(training, victim.client) > 1)
        for victim in victims_of(observation)
    )
    most = 1.0 - 1e-3 if several else NEAR
    what = "update" if several else "gradient"
    possible = [mode for mode in STATISTICS if _passes(observation, batches, mode)]
    modes = [mode for mode in possible if bn is None or mode == bn]
    if not modes:
        return None
    tried = [shares(mode) for mode in modes]
    own, others = max(tried, key=lambda pair: float(pair[0].mean()))
    agrees = _near(own, others, most)
    found = Agreement(what, float(own.mean()), float(others.mean()), agrees)
    if agrees or several:
        return found
    for mode in possible:
        if mode not in modes and _near(*shares(mode)):
            because = f"batch-norm mode; it does with bn={mode}, the attack has bn={bn}"
            return dataclasses.replace(found, because=because)
    because = _normalisation_hint(
        lambda change: any(_near(*shares(mode, change)) for mode in modes)
    )
    return dataclasses.replace(found, because=because)


def _passes(observation: Observation, batches: Sequence[Batch], mode: str) -> bool:
    """Whether models take the batches in a batch-norm mode."""
    try:
        for victim, (_, images, _) in zip(victims_of(observation), batches, strict=True):
            count, shape = len(images), observation.image_shape
            check_batch(victim.model, mode, count, shape, observation.num_classes)
    except IncompatibleError:
        return False
    return True


def _batches(
    observation: Observation, group: TargetGroup, labels: Tensor | None
) -> list[Batch] | None:
    """Each upload with the images that made it and their classes; None without these."""
    truth, size = group.truth, observation.images_per_target
    out = []
    for number, upload in enumerate(observation.targets):
        samples = truth.mixture.support(number * size)
        if len(samples) > MOST:
            return None
        if labels is not None:
            told = labels[samples]
        elif len(samples) == 1:
            seen = dataclasses.replace(observation, targets=(upload,), images_per_target=1)
            told = batch_labels(seen, victims_of(seen), "idlg")[0]
        else:
            return None
        out.append((upload, truth.images[samples], told))
    return out
