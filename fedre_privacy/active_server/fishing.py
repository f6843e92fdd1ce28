"""Heads under which one sample of a batch has nearly all of its gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedre_privacy.core.artifact_schema import Holds
from fedre_privacy.core.artifacts import Artifact, ModelState
from fedre_privacy.core.config import knob
from fedre_privacy.core.types import Knowledge, Upload
from fedre_privacy.models.split import SplitModel, load_parameters

from .base import Message, ServerView, Steering, steerings
from .imprint import MOST, principal


@steerings.register("fishing")
@dataclass(frozen=True, kw_only=True)
class Fishing(Steering):
    """Send a head of one row, so that one sample has nearly all of the extractor's gradient.

    The row of class c is a direction in the representations, all other rows are zero. A sample of
    another class then pulls on the extractor by its output for c, which grows exponentially along
    the direction: of a batch without class c the sample that lies furthest along it has nearly all
    of the gradient (feature fishing). A single sample of class c, which pulls by one minus that
    output, has all of it (class fishing); several cannot be told apart. So the class that the
    client's newest upload shows least of is taken, unless `label` says which. The attack `fishing`
    inverts what arrives as the gradient of one image.

    Alters:     ModelState: the head
    Seen as:    single samples with most of a batch's gradient (`d-snr`), a head of one row
    Reference:  Wen et al., Fishing for user data in large-batch federated learning, ICML 2022.
    Deviations: features are fished by the class that is absent, in one round; the paper fishes them
                among samples of one class. The direction is the first principal component of the
                representations of public images, not a coordinate.
    """

    when_to_use = "FedSGD with large batches: one image shall dominate the gradient"
    alters = (ModelState,)
    needs = frozenset({Knowledge.AUX_DATA, Knowledge.ARCHITECTURE})
    apart = True

    label: int | None = knob(
        None, help="class whose row is left; none: the one least seen in the newest upload", ge=0
    )
    sharpness: float = knob(
        15.0, help="length of the row, over the spread of public images along it", gt=0
    )

    def lacks(self, model: nn.Module) -> str:
        if not isinstance(model, SplitModel):
            return "is no extractor with a head"
        if self.label is not None and self.label >= model.num_classes:
            return f"has {model.num_classes} classes; 'steering.label' {self.label} is none of them"
        return ""

    def steer(
        self, view: ServerView, round: int, client: int, honest: Message, rng: torch.Generator
    ) -> Message:
        return tuple(
            type(artifact)(self._fished_parameters(view, client, artifact.params))
            if isinstance(artifact, ModelState)
            else artifact
            for artifact in honest
        )

    def _fished_parameters(
        self, view: ServerView, client: int, params: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        if view.held.aux is None or view.held.blank is None:
            raise ValueError("it is shown what it declares to need")
        model = view.held.blank(client)
        if not isinstance(model, SplitModel):
            raise ValueError(f"the model {self.lacks(model)}")
        load_parameters(model, {name: params[name] for name, _ in model.named_parameters()})
        with torch.no_grad():
            reps = model.eval().extractor(view.held.aux[:MOST]).double()
        if not bool(reps.isfinite().all()):  # what is shipped has diverged already
            return dict(params)
        (direction,) = principal(reps, 1)
        along = reps @ direction
        if bool(((along - along.mean()) ** 3).sum() < 0):  # its longer tail holds single samples
            direction, along = -direction, -along
        spread = along.std()
        if not float(spread) > 1e-9 * float(reps.norm(dim=1).mean()):
            return dict(params)  # public images are all alike, so that no sample stands out
        row = self.sharpness / spread * direction
        label = self.label if self.label is not None else least_seen(view, client)
        weight = torch.zeros_like(params["head.weight"])
        bias = torch.zeros_like(params["head.bias"])
        weight[label] = row.to(weight)
        bias[label] = -float((reps @ row).max())
        made = {"head.weight": weight, "head.bias": bias}
        return {name: made.get(name, value).clone() for name, value in params.items()}


def least_seen(view: ServerView, client: int) -> int:
    """The class that a client's newest upload shows least of; 0 before there is one.

    A bias of the head rises by what the model gave a class and falls by the class's samples.
    """
    newest = view.newest(client)
    found = None if newest is None else _bias_gradient(view, newest)
    return 0 if found is None else int(found.argmax())


def _bias_gradient(view: ServerView, upload: Upload) -> Tensor | None:
    """How a client's head's biases wanted to fall, (C,), up to a factor."""
    sent = next(
        (b for b in view.broadcasts if b.round == upload.round and upload.client in b.recipients),
        None,
    )
    for artifact in upload.artifacts:
        bias = _bias(artifact)
        if bias is not None and artifact.holds is Holds.GRADIENT:
            return bias
        if bias is not None and sent is not None:
            before = [b for a in sent.artifacts if (b := _bias(a)) is not None]
            return before[0] - bias if before else None
    return None


def _bias(artifact: Artifact) -> Tensor | None:
    return artifact.tensors().get("params/head.bias")
