"""Local training of all clients by captured steps, each on a stream of its own.

A step of a small model on a GPU takes as long as its launches, whatever it computes. Each client's
step (batch, loss, gradient, update) is therefore captured once in a run and replayed for every
batch of every round, with one launch. Clients' replays run beside each other, so a round is as long
as its longest chain of steps. What cannot be captured is trained as on a CPU, which the log says
once.

A captured step repeats operations on fixed buffers. So the sample numbers of a round, the step
sizes, and what the loss reads of `Client.tensors` are copied into buffers before a round, and what
the loss leaves there is carried from step to step. A loss that reads its message, or a value on the
host, is not captured.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedre_privacy.core.cuda_graphs import (
    CudaGraphCapture,
    GraphCapture,
    Step,
    capture_step,
    generator_state,
)
from fedre_privacy.core.optimisers import groups_of
from fedre_privacy.core.rng import seeded_generators
from fedre_privacy.defenses.apply import trainer_of
from fedre_privacy.defenses.base import Defense
from fedre_privacy.defenses.learnt import learns
from fedre_privacy.protocols.base import Protocol
from fedre_privacy.protocols.blocks.augment import augment_batch
from fedre_privacy.protocols.blocks.state import Client, Setting, Task

from .steps import local_loss, on_device, order_of_batches

log = logging.getLogger("fedre_privacy")

STREAMS = 16
"""Streams at most. Libraries keep a workspace of some 32 MiB for each."""
AHEAD = 16
"""Steps of one client that are launched before those of the next."""
ROWS = 8
"""Rows of sample numbers at least: capture and its check take so many steps."""
CAPTURES, WORTH = 3, 24
"""How often a client whose buffers have changed is captured anew, and the steps of a round from
which it is captured more often."""

Captures = Callable[[int], GraphCapture]
"""A client's number to what captures its step."""


class ReadMessageError(RuntimeError):
    """The loss reads its message, whose values differ from round to round."""


class UnreadMessage(tuple[Any, ...]):
    """A message that refuses to be read."""

    def __getitem__(self, key: Any) -> Any:
        raise ReadMessageError("its loss reads the message of the round")

    def __len__(self) -> int:
        raise ReadMessageError("its loss reads the message of the round")

    def __iter__(self) -> Iterator[Any]:
        raise ReadMessageError("its loss reads the message of the round")


class CapturedStep:
    """One client's local step on fixed buffers, and its replay.

    Args:
        rows: batches of a round at most. size: samples of a batch.

    Attributes:
        replay: launches a step; None where it could not be captured.
        draws: whether a step draws from the device's own generator.
    """

    def __init__(
        self, protocol: Protocol, client: Client, setting: Setting, rows: int, size: int
    ) -> None:
        training, device = setting.training, setting.device
        self.protocol, self.client, self.setting = protocol, client, setting
        self.modules = tuple(protocol.modules(client))
        self.groups = groups_of(self.modules, protocol.learning_rates(client, training.lr))
        self.params = [p for group in self.groups for p in group["params"]]
        self.order = torch.zeros(max(rows, ROWS), size, dtype=torch.int64, device=device)
        self.number = torch.zeros(1, dtype=torch.int64, device=device)
        self.total = torch.zeros(1, device=device)
        self.rates = [torch.zeros((), device=device) for _ in self.groups]
        self.velocity = [torch.zeros_like(p) for p in self.params if training.momentum]
        self.images: Tensor | None = None
        self.tensors = {
            name: value.detach().to(device, copy=True) for name, value in client.tensors.items()
        }
        self.drawn = {
            name: value.to(device) for name, value in protocol.step_draws(client, size).items()
        }
        self.tensors |= self.drawn
        self.gradients: list[Tensor | None] = []
        self._kept: list[str] = []
        self.replay: Step | None = None
        self.draws = False
        self.signature = signature_of(client)

    def capture(self, capturer: GraphCapture, note: Callable[[str], None]) -> bool:
        """Capture the step after one plain step; the client is left as it was."""
        own = dict(self.client.tensors)
        buffers = [
            buffer
            for module in (self.client.model, *self.client.memory.values())
            for buffer in module.buffers()
        ]
        state = [
            *self.params, *buffers, *self.velocity, *self.tensors.values(), self.number, self.total,
        ]  # fmt: skip
        before = [one.detach().clone() for one in state]
        unused = generator_state(self.total.device)
        try:
            self._step()
            used = not torch.equal(generator_state(self.total.device), unused)
            self.draws = used or bool(self.drawn)
            with torch.no_grad():
                for now, then in zip(state, before, strict=True):
                    now.copy_(then)
            self.replay = capture_step(
                self._step, capturer, state=state, match=self.total, note=note
            )
        except RuntimeError as error:
            note(str(error).partition("\n")[0] or "no reason given")
        finally:
            self.client.tensors.clear()
            self.client.tensors.update(own)
            with torch.no_grad():
                for now, then in zip(state, before, strict=True):
                    now.copy_(then)
        return self.replay is not None

    def fits(self, orders: Tensor) -> bool:
        """Whether a round's batches and the client's tensors are where and what they were."""
        steps, size = orders.shape
        rows, width = self.order.shape
        return steps <= rows and size == width and self.signature == signature_of(self.client)

    def begin(self, orders: Tensor, round: int) -> None:
        """Fill the buffers for a round.

        Args:
            orders: (steps, size) int64 on the CPU, sample numbers of each of the round's batches.
        """
        self.order[: len(orders)] = orders.to(self.order.device)
        for buffer in (self.number, self.total, *self.velocity):
            buffer.zero_()
        decay = self.setting.training.decay(round)
        for rate, group in zip(self.rates, self.groups, strict=True):
            rate.fill_(group["lr"] * decay)
        for name in self.tensors.keys() - self.drawn.keys():
            self.tensors[name].copy_(self.client.tensors[name])

    def change(self, row: int, augment: Callable[[Tensor], Tensor]) -> None:
        """Put changed images of one of the round's batches where the next step reads them.

        So are those that are kept off the device, changed or not.
        """
        images, _ = self.client.train.batch(self.order[row])
        assert self.images is not None
        self.images.copy_(augment(images))

    def draw(self) -> None:
        """Draw on the host what the loss of the next step needs."""
        if self.drawn:
            fresh = self.protocol.step_draws(self.client, self.order.shape[1])
            for name, buffer in self.drawn.items():
                buffer.copy_(fresh[name])

    def end(self) -> None:
        """Leave the client as plain training leaves it: gradients, and what its loss has kept."""
        for parameter, gradient in zip(self.params, self.gradients, strict=True):
            parameter.grad = gradient
        for name in self._kept:
            place = self.client.tensors[name].device
            self.client.tensors[name] = self.tensors[name].detach().to(place, copy=True)

    def _step(self) -> None:
        training = self.setting.training
        index = self.order.index_select(0, self.number)[0]
        self.number.add_(1)
        images, labels = self.client.train.batch(index)
        if self.images is not None:
            images = self.images
        self.client.tensors.update(self.tensors)
        value = local_loss(self.protocol, self.client, training, UnreadMessage((0,)))(
            images, labels
        )
        found = torch.autograd.grad(value, self.params, allow_unused=True)
        with torch.no_grad():
            self._keep_tensors()
            self.gradients = self._clipped(found)
            self._move(training.momentum, training.weight_decay)
            self.total.add_(value.detach())

    def _keep_tensors(self) -> None:
        """Carry what the loss has put in `Client.tensors` to the next step."""
        self._kept = []
        for name, value in list(self.client.tensors.items()):
            if name not in self.tensors:
                raise RuntimeError(f"its loss keeps a new tensor, '{name}'")
            if value is not self.tensors[name]:
                self.tensors[name].copy_(value)
                self.client.tensors[name] = self.tensors[name]
                self._kept.append(name)

    def _clipped(self, found: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Gradients, those of each module shortened together to the protocol's norm."""
        most, start, out = self.protocol.clip_norm, 0, list(found)
        for group in self.groups if most is not None else ():
            end = start + len(group["params"])
            own = [gradient for gradient in found[start:end] if gradient is not None]
            if own:
                norm = torch.linalg.vector_norm(torch.stack(list(torch._foreach_norm(own))))
                share = (most / (norm + 1e-6)).clamp(max=1.0)
                short = iter(torch._foreach_mul(own, share))
                out[start:end] = [None if one is None else next(short) for one in found[start:end]]
            start = end
        return out

    def _move(self, momentum: float, weight_decay: float) -> None:
        """SGD, as `torch.optim.SGD` does it."""
        start = 0
        for group, rate in zip(self.groups, self.rates, strict=True):
            places = [
                i
                for i in range(start, start + len(group["params"]))
                if self.gradients[i] is not None
            ]
            start += len(group["params"])
            if not places:
                continue
            params = [self.params[i].detach() for i in places]
            slopes = [gradient for i in places if (gradient := self.gradients[i]) is not None]
            if weight_decay:
                slopes = list(torch._foreach_add(slopes, params, alpha=weight_decay))
            if momentum:
                velocity = [self.velocity[i] for i in places]
                torch._foreach_mul_(velocity, momentum)
                torch._foreach_add_(velocity, slopes)
                slopes = velocity
            torch._foreach_sub_(params, torch._foreach_mul(slopes, rate))


@dataclass
class ClientRound:
    """A client's steps of one round."""

    step: CapturedStep
    orders: Tensor
    seeds: Callable[[], Any]
    augment: Callable[[Tensor], Tensor] | None = None
    done: int = 0

    def advance(self, count: int) -> None:
        """Launch the next steps, at most so many."""
        replay, end = self.step.replay, min(self.done + count, len(self.orders))
        assert replay is not None
        for row in range(self.done, end):
            if self.augment is not None:
                self.step.change(row, self.augment)
            self.step.draw()
            replay()
        self.done = end


class CapturedTraining:
    """Local training of a federation by captured steps, on a GPU; elsewhere nothing is captured."""

    def __init__(
        self,
        protocol: Protocol,
        setting: Setting,
        defenses: Sequence[Defense] = (),
    ) -> None:
        self.protocol, self.setting, self.defenses = protocol, setting, defenses
        self._streams: list[torch.cuda.Stream] = []
        self._captures = self._cuda()
        self._steps: dict[int, CapturedStep] = {}
        self._captured: Counter[int] = Counter()
        self._plain: dict[int, str] = {}
        if self._captures is None and setting.training.together == "always":
            log.warning("train.together=always: steps are captured on a GPU only")

    def train(
        self, clients: Sequence[Client], chosen: Sequence[int], round: int
    ) -> dict[int, float]:
        """Train those of a round's clients whose steps can be captured.

        Each goes through the batches that it would see in plain training, from the same random
        streams, and ends at the same model up to rounding.

        Returns:
            The mean training loss of every client trained here, by its id.
        """
        if self._captures is None or not self._applies():
            return {}
        work: dict[int, ClientRound] = {}
        for k in chosen:
            if k not in self._plain and self._is_on_device(clients[k]):
                with on_device(clients[k], self.setting):
                    found = self._work(clients[k], round)
                work |= {} if found is None else {k: found}
        for one in work.values():
            one.step.begin(one.orders, round)
        self._launch(work)
        if not work:
            return {}
        totals = torch.cat([one.step.total for one in work.values()]).tolist()
        for one in work.values():
            one.step.end()
            for module in one.step.modules:
                module.eval()
        return {
            k: total / len(one.orders) for (k, one), total in zip(work.items(), totals, strict=True)
        }

    def _cuda(self) -> Captures | None:
        device = self.setting.device
        if device.type != "cuda" or self.setting.training.together == "never":
            return None

        return lambda client: CudaGraphCapture(device, self._stream(client))

    def _applies(self) -> bool:
        """Whether local training is the package's own and not a defence's."""
        learnt = [one.name for one in self.defenses if learns(one)]
        if learnt and -1 not in self._plain:
            self._note(-1, f"defence '{learnt[0]}' takes part in local training")
        return trainer_of(self.defenses) is None and not learnt

    def _work(self, client: Client, round: int) -> ClientRound | None:
        """A client's steps, captured; None where it has to be trained as on a CPU."""
        task, training = Task(self.setting, round, client.id), self.setting.training
        orders = self._orders(client, task)
        if not len(orders):
            return None
        change = partial(augment_batch, training.augment, rng=task.rng("augment"))
        elsewhere = client.train.pool.device.type != self.setting.device.type
        augment = change if elsewhere or training.augment != "none" else None
        seeds = partial(seeded_generators, training.seed, "client", client=client.id, round=round)
        step = self._steps.get(client.id)
        if step is None or not step.fits(orders):
            self._captured[client.id] += 1
            if self._captured[client.id] > CAPTURES and len(orders) < WORTH:
                return None
            self._steps.pop(client.id, None)
            with seeds():
                step = CapturedStep(self.protocol, client, self.setting, *orders.shape)
            if not step.params:
                return None
            step.begin(orders, round)
            if augment is not None:
                step.images, _ = client.train.batch(step.order[0])
            for module in step.modules:
                module.train()
            assert self._captures is not None
            with seeds():
                taken = step.capture(self._captures(client.id), partial(self._note, client.id))
            if not taken:
                return None
            self._steps[client.id] = step
        return ClientRound(step, orders, seeds, augment)

    def _orders(self, client: Client, task: Task) -> Tensor:
        """Sample numbers (steps, size) among a client's training samples, of its batches."""
        index = [*order_of_batches(self.protocol, client, task)]
        numbers = torch.stack(index) if index else torch.zeros(0, 0, dtype=torch.int64)
        return numbers if client.held is None else client.fitted_index[numbers]

    def _note(self, client: int, why: str) -> None:
        if why not in self._plain.values():
            log.info("clients are trained step by step: %s", why)
        self._plain[client] = why

    def _is_on_device(self, client: Client) -> bool:
        device = self.setting.device
        kept = [client.model, *client.memory.values()]
        places = {p.device.type for module in kept for p in module.parameters()}
        return places <= {device.type} and client.train.labels.device.type == device.type

    def _launch(self, work: Mapping[int, ClientRound]) -> None:
        """Launch all steps: some of each client in turn, those that draw one client at a time."""
        drawing = {k: one for k, one in work.items() if one.step.draws}
        others = {k: one for k, one in work.items() if not one.step.draws}
        for stream in self._streams:
            stream.wait_stream(torch.cuda.current_stream(self.setting.device))
        while others:
            for k, one in list(others.items()):
                with self._on_stream(k):
                    one.advance(AHEAD)
                if one.done == len(one.orders):
                    del others[k]
        before = None
        for k, one in drawing.items():
            with one.seeds(), self._on_stream(k):
                if before is not None and self._streams:
                    self._stream(k).wait_stream(before)
                one.advance(len(one.orders))
                before = self._stream(k) if self._streams else None
        for stream in self._streams:
            torch.cuda.current_stream(self.setting.device).wait_stream(stream)

    def _stream(self, client: int) -> torch.cuda.Stream:
        """The stream on which a client's step is captured and replayed."""
        while len(self._streams) <= client % STREAMS:
            self._streams.append(torch.cuda.Stream(self.setting.device))
        return self._streams[client % STREAMS]

    def _on_stream(self, client: int) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._stream(client)) if self._streams else nullcontext()


def signature_of(client: Client) -> tuple[object, ...]:
    """What a captured step relies on: where a client's tensors lie, and their forms."""
    samples = client.train
    parts: list[object] = [
        None if tensor is None else tensor.data_ptr()
        for tensor in (samples.pool, samples.rows, samples.labels)
    ]
    for module in (client.model, *client.memory.values()):
        for value in (*module.parameters(), *module.buffers()):
            parts.append((value.data_ptr(), value.shape, value.dtype, value.requires_grad))
    for name, value in sorted(client.tensors.items()):
        parts.append((name, value.shape, value.dtype))
    return tuple(parts)
