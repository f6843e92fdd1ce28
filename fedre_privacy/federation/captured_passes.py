"""Passes over a client's images by captured steps: what it uploads is made of, and its accuracy.

On a GPU a pass of a small model takes as long as its launches, as a step of training does
(`captured_steps`). A client's images stay the same from round to round. So the pass of one batch is
captured once in a run, at its `CAPTURED_AT`-th use, and then launched as a whole. All batches have
the same number of images, the last one filled up with copies of the last image, whose outputs are
dropped. Counts of all clients are brought to the host at once.

What cannot be captured runs batch by batch, which the log says once: protocols that predict by more
than the client's model, defences, images that are kept off the device, and samples drawn anew.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fedre_privacy.core.cuda_graphs import (
    CudaGraphCapture,
    GraphCapture,
    Step,
    capture_step,
    generator_state,
    set_generator,
)
from fedre_privacy.defenses.base import Defense
from fedre_privacy.protocols.base import Protocol
from fedre_privacy.protocols.blocks.local import EVAL_BATCH, passes_by
from fedre_privacy.protocols.blocks.state import Client, Samples, Setting

from .accuracy import Count
from .steps import on_device

log = logging.getLogger("fedre_privacy")

CAPTURED_AT = 3
"""Which use of a pass captures it, since capture costs as much as nine batches. The shared test
set, which most runs pass twice, is passed as it is."""
CAPTURES = 3
"""How often a pass whose buffers have moved is captured at most."""


class CapturedPass:
    """A module's outputs for fixed samples, one batch a launch.

    Args:
        module: in eval mode. samples: one or more, on the module's device.

    Attributes:
        replay: launches a batch; None where it could not be captured.
    """

    def __init__(self, module: nn.Module, samples: Samples) -> None:
        self.module, self.samples, count = module, samples, len(samples)
        size = min(EVAL_BATCH, count)
        self.rows = -(-count // size)
        device = samples.labels.device
        numbers = torch.arange(self.rows * size, device=device).clamp_(max=count - 1)
        self.order = numbers.view(self.rows, size)
        self.number = torch.zeros(1, dtype=torch.int64, device=device)
        self.outputs = torch.zeros(0, device=device)
        self.signature = signature_of(module, samples)
        self.replay: Step | None = None

    @torch.no_grad()
    def capture(self, capturer: GraphCapture, note: Callable[[str], None]) -> bool:
        """Capture the pass of a batch after one plain pass; whether that was possible."""
        unused = generator_state(self.number.device)
        try:
            images, _ = self.samples.batch(self.order[0])
            first = self.module(images)
            if not torch.equal(generator_state(self.number.device), unused):
                set_generator(self.number.device, unused)
                raise RuntimeError("it draws random numbers")
            self.outputs = first.new_zeros(self.rows, *first.shape)
            flat = self.outputs.view(-1)
            self.replay = capture_step(
                self._step, capturer, state=[flat, self.number], match=flat, note=note
            )
        except RuntimeError as error:
            note(str(error).partition("\n")[0] or "no reason given")
        return self.replay is not None

    def run(self) -> Tensor:
        """Outputs (n, d) of all samples, in order."""
        assert self.replay is not None
        self.number.zero_()
        for _ in range(self.rows):
            self.replay()
        return self.outputs.flatten(0, 1)[: len(self.samples)].clone()

    @torch.no_grad()
    def _step(self) -> None:
        index = self.order.index_select(0, self.number)[0]
        images, _ = self.samples.batch(index)
        self.outputs.index_copy_(0, self.number, self.module(images)[None])
        self.number.add_(1).remainder_(self.rows)


class CapturedPasses:
    """The passes of a federation by captured steps, on a GPU; elsewhere nothing is captured."""

    def __init__(
        self, protocol: Protocol, setting: Setting, defenses: Sequence[Defense] = ()
    ) -> None:
        self.protocol, self.setting = protocol, setting
        self._capturer = None if defenses else self._cuda()
        self._only_model = type(protocol).logits is Protocol.logits
        self._passes: dict[tuple[int, int, int], CapturedPass] = {}
        self._met: Counter[tuple[int, int, int]] = Counter()
        self._captured: Counter[tuple[int, int, int]] = Counter()
        self._said = ""

    @contextmanager
    def of(self, client: Client) -> Iterator[None]:
        """Let a client's `represent` pass by captured steps in a block, where that can be."""
        if self._capturer is None:
            yield
            return
        with passes_by(lambda module, samples: self._outputs(client, module, samples)):
            yield

    def count_correct(
        self, clients: Sequence[Client], chosen: Sequence[int], tests: Sequence[Samples]
    ) -> Mapping[int, Count]:
        """Count how many samples each of some clients gets right.

        Args:
            chosen: numbers of clients. tests: the samples of every client.

        Returns:
            By client; those that cannot be passed here are left out.
        """
        if self._capturer is None or not self._only_model:
            return {}
        found: dict[int, Tensor] = {}
        for k in chosen:
            clients[k].model.eval()
            with on_device(clients[k], self.setting):
                outputs = self._outputs(clients[k], clients[k].model, tests[k])
            if outputs is not None:
                found[k] = (outputs.argmax(1) == tests[k].labels).sum()
        if not found:
            return {}
        counts = torch.stack(list(found.values())).tolist()
        return {k: Count(count, len(tests[k])) for k, count in zip(found, counts, strict=True)}

    def _cuda(self) -> GraphCapture | None:
        device = self.setting.device
        if device.type != "cuda" or self.setting.training.together == "never":
            return None
        # passes run one after another, so that they can share the memory of what lies between
        return CudaGraphCapture(device, pool=torch.cuda.graph_pool_handle())

    def _outputs(self, client: Client, module: nn.Module, samples: Samples) -> Tensor | None:
        """Outputs (n, d) by a captured pass; None where it has to be made batch by batch."""
        own = [client.train, client.test, client.shared]
        place = next((i for i, one in enumerate(own) if one is samples), None)
        if place is None or not len(samples) or not self._is_on_device(module, samples):
            return None
        key = (client.id, place, id(module))
        self._met[key] += 1
        made = self._passes.get(key)
        if made is None or made.signature != signature_of(module, samples):
            if self._met[key] < CAPTURED_AT or self._captured[key] >= CAPTURES:
                return None
            self._captured[key] += 1
            made = self._passes[key] = CapturedPass(module, samples)
            assert self._capturer is not None
            if not made.capture(self._capturer, self._note):
                self._captured[key] = CAPTURES
        return None if made.replay is None else made.run()

    def _is_on_device(self, module: nn.Module, samples: Samples) -> bool:
        values = [*module.parameters(), *module.buffers(), samples.pool, samples.labels]
        return {value.device.type for value in values} == {self.setting.device.type}

    def _note(self, why: str) -> None:
        if why != self._said:
            log.info("images are passed batch by batch: %s", why)
        self._said = why


def signature_of(module: nn.Module, samples: Samples) -> tuple[object, ...]:
    """What a captured pass relies on: where its tensors lie, and their forms."""
    held = [samples.pool, samples.labels, *([] if samples.rows is None else [samples.rows])]
    values = [*held, *module.parameters(), *module.buffers()]
    return tuple((value.data_ptr(), value.shape, value.dtype) for value in values)
