"""The evaluator's side of an attack on one's own module: true images and public ones."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from fedre_privacy.core.artifacts import Prototypes
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.types import Mixture, Truth, Upload
from fedre_privacy.core.units import plural
from fedre_privacy.eval import PublicImages

from .checks import Labels, as_labels
from .given import truth_of


def public_for(
    images: Tensor, labels: Labels | None, by_class: bool, truth: Tensor | None
) -> PublicImages:
    """Public images in an order whose halves are every other image.

    Args:
        by_class: whether the classes of the true images are known as well.
        truth: the true images, none of which may be among them.

    Raises:
        IncompatibleError: one is, or there are too few, or labels do not fit.
    """
    if truth is not None:
        known = {image.numpy().tobytes() for image in truth}
        shared = sum(image.numpy().tobytes() in known for image in images)
        if shared:
            raise IncompatibleError(
                f"{shared} of {plural(len(images), 'public image')} are true images as well: "
                "floors made of them would know the answer.",
                next_step="Give other images.",
            )
        if len(images) < 2:
            raise IncompatibleError(
                "One public image was given; floors and the attacker get half of them each.",
                next_step="Give at least 2, better some hundreds.",
            )
    order = torch.cat([torch.arange(0, len(images), 2), torch.arange(1, len(images), 2)])
    classes = torch.zeros(len(images), dtype=torch.int64)
    if labels is not None:
        found = as_labels(labels, "public_labels")
        if len(found) != len(images):
            raise IncompatibleError(
                f"{len(found)} public_labels were given for {len(images)} public images."
            )
        classes = found if by_class or truth is None else classes
    return PublicImages(images[order], classes[order])


def truth_for(
    images: Tensor,
    labels: Tensor | None,
    by_class: bool,
    number: int,
    targets: tuple[Upload, ...],
) -> Truth:
    """The true images of the targets; each row stands for itself, a gradient's images together.

    Args:
        by_class: whether the classes of public images are known as well; floors by class need both.
        number: images behind the gradient, 0 where targets are rows.
    """
    if labels is not None and len(labels) != len(images):
        raise IncompatibleError(f"{len(labels)} truth_labels were given for {len(images)} images.")
    classes = torch.zeros(len(images), dtype=torch.int64)
    if labels is not None and by_class:
        classes = labels
    if number:
        everyone = torch.arange(number)
        pairs = Mixture(
            everyone.repeat_interleave(number),
            everyone.repeat(number),
            torch.full((number * number,), 1 / number),
            number,
        )
        nobody = torch.zeros(number, dtype=torch.int64)
        return Truth(images, classes, nobody, pairs, nobody, torch.full((number,), -1))
    (artifact,) = targets[0].artifacts
    rows = None
    if isinstance(artifact, Prototypes) and labels is not None:
        fits = labels[:, None] == artifact.labels[None]
        rows = torch.where(fits.any(1), fits.int().argmax(1), len(artifact.labels))
    elif (artifact.rows() is not None) and len(images) != len(artifact.tensors()["labels"]):
        raise IncompatibleError(
            f"{plural(len(images), 'true image')} for {len(artifact.tensors()['labels'])} "
            f"{artifact.kind}.",
            next_step="Give one image for each"
            + (", or truth_labels=." if isinstance(artifact, Prototypes) else "."),
        )
    found = truth_of(targets, images, classes, rows, what="truth")
    own = torch.arange(found.mixture.num_rows)
    unknown = torch.full_like(found.target_labels, -1)
    return dataclasses.replace(
        found, target_clients=own, target_labels=found.target_labels if by_class else unknown
    )
