"""FedALA: adaptive local aggregation of the top layers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from fedre_privacy.core.artifacts import Counts, ModelState
from fedre_privacy.core.config import knob
from fedre_privacy.models.split import parameters_of
from fedre_privacy.protocols.blocks import whole_model
from fedre_privacy.protocols.blocks.averaging import load_state
from fedre_privacy.protocols.blocks.state import Client, Message, Task, only_artifact
from fedre_privacy.protocols.blocks.traffic import Exchange, Sizes, averaged_parameters

from .base import Protocol, protocols


@protocols.register("fedala")
@dataclass(frozen=True, kw_only=True)
class FedALA(Protocol):
    """FedAvg in which a client mixes the global model into its own, element by element, at the top.

    Lower layers are overwritten. Of the top tensors the client learns weights W in [0, 1]:
    own + (global - own) * W, by W <- clip(W - eta * gradient * (global - own)) on a random slice of
    its data, drawn anew each round; the first time until the loss settles, then in one pass. W
    never leaves.

    Uploads:    ModelState: all parameters; the number of samples once
    Reference:  Zhang et al., FedALA, AAAI 2023.
    Deviations: the first broadcast that a client gets is taken whole, and the first learning phase
                has a cap. The top is the last parameter tensors, as in the public library. The loss
                that must settle is the mean of a pass, its spread the unbiased standard deviation,
                and the model is in eval mode; in the library it is the last batch's, the biased
                one, and train mode, which matters for BatchNorm alone.
    """

    when_to_use = "personal models in FedAvg; the server sees the same whole models"
    uploads = (ModelState, Counts)
    broadcasts = (ModelState,)
    sums = "samples"
    headline = "post_broadcast"

    top: int = knob(2, help="parameter tensors whose mixing is learnt", ge=1)
    share: float = knob(0.8, help="share of the training data used to learn it", gt=0, le=1)
    eta: float = knob(1.0, help="step size of the mixing weights", gt=0)
    first_passes: int = knob(30, help="passes of the first learning phase at most", ge=1)
    settled: float = knob(0.1, help="spread of the last ten losses that ends it", gt=0)
    buffers: bool = knob(False, help="average and send BatchNorm's running statistics as well")

    check = whole_model.check
    sends_buffers = whole_model.sends_buffers
    start_server = whole_model.start_server
    setup_upload = whole_model.setup_upload
    setup_aggregate = whole_model.setup_aggregate
    broadcast = whole_model.broadcast
    upload = whole_model.upload
    aggregate = whole_model.aggregate

    def traffic(self, sizes: Sizes) -> Exchange:
        return averaged_parameters(sizes, sizes.model)

    def receive(self, client: Client, message: Message, task: Task) -> None:
        sent = only_artifact(message, ModelState).params
        device = task.setting.device
        theta = {name: value.to(device) for name, value in sent.items()}
        own = parameters_of(client.model)
        if "joined" not in client.tensors:
            load_state(client.model, theta)
            client.tensors["joined"] = torch.tensor(task.round)
            return
        if all(torch.equal(own[name], theta[name]) for name in own):
            return
        top = list(own)[-self.top :]
        first = not any(name.startswith("mix/") for name in client.tensors)
        mix = {n: client.tensors.get(f"mix/{n}", torch.ones_like(own[n])) for n in top}
        gap = {n: theta[n] - own[n] for n in top}
        lower = {n: v for n, v in theta.items() if n not in top}
        client.model.eval()
        losses: list[float] = []
        chosen = self._slice(len(client.train), task)
        for _ in range(self.first_passes if first else 1):
            losses.append(self._one_pass(client, chosen, lower, own, gap, mix, task))
            if len(losses) > 10 and torch.tensor(losses[-10:]).std() < self.settled:
                break
        load_state(client.model, lower | {n: own[n] + gap[n] * mix[n] for n in top})
        client.tensors |= {f"mix/{name}": value for name, value in mix.items()}

    def _slice(self, count: int, task: Task) -> Tensor:
        """Numbers of the samples that a round's mixing is learnt on, contiguous."""
        size = max(1, int(self.share * count))
        first = int(torch.randint(count - size + 1, (1,), generator=task.rng("ala")))
        return torch.arange(first, first + size)

    def _one_pass(
        self,
        client: Client,
        chosen: Tensor,
        lower: dict[str, Tensor],
        own: dict[str, Tensor],
        gap: dict[str, Tensor],
        mix: dict[str, Tensor],
        task: Task,
    ) -> float:
        """One pass over the chosen samples; updates `mix` in place, returns the mean loss."""
        samples = client.train
        total = torch.zeros((), device=samples.labels.device)
        batches = chosen.split(task.setting.training.batch_size)
        for index in batches:
            images, labels = samples.batch(index.to(samples.labels.device))
            mixed = {n: (own[n] + gap[n] * mix[n]).requires_grad_() for n in mix}
            loss = F.cross_entropy(functional_call(client.model, lower | mixed, (images,)), labels)
            slopes = torch.autograd.grad(loss, list(mixed.values()))
            for name, slope in zip(mixed, slopes, strict=True):
                mix[name] = (mix[name] - self.eta * slope * gap[name]).clamp(0, 1)
            total += loss.detach()
        return float(total) / len(batches)
