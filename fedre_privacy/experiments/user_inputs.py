"""What is handed over with a module of one's own: images, a gradient, its mode, and the truth."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedre_privacy.core.artifacts import Artifact, GradientState, Prototypes
from fedre_privacy.core.errors import ConfigError, IncompatibleError
from fedre_privacy.core.types import Truth, Upload
from fedre_privacy.core.units import plural
from fedre_privacy.data.arrays import Pixels, read_pixels
from fedre_privacy.eval import PublicImages
from fedre_privacy.models.probe import is_random

from .external_checks import checked_part
from .external_names import Layout
from .external_training import truth_of_updates
from .external_uploads import truth_of
from .user_checks import Labels, Shape, as_finite, as_labels


def read_images(
    truth: Any, public: Any, image_shape: Sequence[int] | None
) -> tuple[Tensor | None, Tensor | None, tuple[str, ...]]:
    """True and public images (n, C, H, W) in [0, 1], all of one shape, and what was decided."""
    shape = None if image_shape is None else shape_of(image_shape)
    found: dict[str, Pixels] = {}
    for name, given in (("public", public), ("truth", truth)):  # one may settle the other's axes
        if given is not None:
            made = read_pixels(given, name, shape=shape, option="image_shape=(C, H, W)")
            channels, height, width = made.values.shape[1:]
            found[name], shape = made, (channels, height, width)
    true, others = (found[name].floats() if name in found else None for name in ("truth", "public"))
    return true, others, tuple(note for made in found.values() for note in made.notes)


def read_gradient(
    given: Mapping[str, Tensor | None] | Sequence[Tensor | None], layout: Layout
) -> tuple[Artifact, list[str], bool]:
    """The gradient by parameter name, what was assumed of it, and whether it is masked."""
    if not isinstance(given, Mapping):
        orders = (layout.parameters, layout.trained)
        order = next((own for own in orders if len(own) == len(given)), None)
        if order is None:
            raise IncompatibleError(
                f"The gradient has {len(given)} tensors; the module has "
                f"{len(layout.parameters)} parameters, of which {len(layout.trained)} take one.",
                next_step="Give torch.autograd.grad(loss, module.parameters()), or name each.",
            )
        given = dict(zip(order, given, strict=True))
    named = {name: value for name, value in given.items() if value is not None}
    finite = {name: as_finite(value, f"gradient '{name}'") for name, value in named.items()}
    try:
        return checked_part(GradientState(finite), layout.state, layout, None)
    except IncompatibleError as error:
        raise IncompatibleError(
            *(f"The gradient cannot be attacked: {problem}." for problem in error.problems),
            next_step="Give the gradient of this very module, or of some of its parameters.",
        ) from None


def statistics_of(module: nn.Module) -> str:
    """By which statistics a module's BatchNorm normalises in the mode that it is in."""
    norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if not norms:
        return ""
    return "batch" if any(norm.training for norm in norms) else "eval"


def notes_of(module: nn.Module, twin: nn.Module, shape: Shape, what: str) -> tuple[str, ...]:
    """What was done to a module in training mode, where it matters, and what its mode decided."""
    kinds = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)
    notes, used = [], statistics_of(module) if what == "gradient" else ""
    if any(part.training and isinstance(part, kinds) for part in module.modules()):
        norm = "as said by bn" if what == "gradient" else "by its running statistics"
        notes.append(
            "The module is in training mode; a copy in evaluation mode was attacked (BatchNorm "
            f"{norm}, no dropout)."
        )
    if used:
        mode, by = ("evaluation", "running") if used == "eval" else ("training", "batch")
        notes.append(
            f"BatchNorm is taken to have normalised by {by} statistics, since the module is in "
            f"{mode} mode; an attack's setting bn says otherwise."
        )
    if is_random(twin, shape):
        notes.append(
            "The module returns other numbers for the same image, even in evaluation mode: no two "
            "attacks on it are equal."
        )
    return tuple(notes)


def shape_of(given: Sequence[int] | None, *images: Tensor | None) -> Shape:
    """(C, H, W) as given, or that of the first images."""
    shapes = [tuple(given)] if given is not None else []
    shapes += [tuple(some.shape[1:]) for some in images if some is not None]
    if not shapes:
        raise ConfigError(
            "The size of the images sought is not known.",
            next_step="Give image_shape=(C, H, W), for example (3, 32, 32).",
        )
    first = shapes[0]
    if len(first) != 3 or not all(isinstance(side, int) and side > 0 for side in first):
        raise ConfigError(f"image_shape is (C, H, W), three whole numbers; got {first}.")
    return first[0], first[1], first[2]


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
        return truth_of_updates(images, classes, None, number, targets)
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
