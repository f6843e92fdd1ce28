"""Does it pay to train clients of one architecture together?

One local step of every client (forward, backward, SGD), done in two ways that take turns in one
process, from the same parameters on the same batches:

one by one  each client's own step, as the package trains them (channels last on a CPU)
together    parameters and running statistics stacked, one step for all under torch.func.vmap

In float64 both must end a step at the same parameters and statistics, or nothing is printed (in
float32 sums in another order show in deep networks). The ratio is the median of paired ratios, one
by one over together; memory is what two steps add at their peak to a process that holds the models,
each way in a process of its own.

Usage: python benchmarks/together.py [--architectures cnn4,resnet8] [--clients 10] [--device cuda]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import tools
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap
from torch.nn import functional as F

from fedre_privacy.core.memory import peak_bytes
from fedre_privacy.core.rng import seeded_generators, stream
from fedre_privacy.core.units import human_bytes
from fedre_privacy.models.families import ModelSettings, build_model

SHAPE, CLASSES, LR = (3, 32, 32), 10, 0.01

State = dict[str, Tensor]


class OneByOne:
    """A model and an optimiser for each client."""

    def __init__(self, models: Sequence[nn.Module], images: Tensor, labels: Tensor) -> None:
        layout = torch.channels_last if images.device.type == "cpu" else torch.preserve_format
        self.models = [model.to(memory_format=layout) for model in models]
        self.optimisers = [torch.optim.SGD(model.parameters(), lr=LR) for model in models]
        self.images, self.labels = images, labels

    def step(self) -> None:
        """Train every client on its batch."""
        for model, optimiser, x, y in zip(
            self.models, self.optimisers, self.images, self.labels, strict=True
        ):
            F.cross_entropy(model(x), y).backward()
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

    def state(self) -> State:
        """Parameters and buffers, a row for each client."""
        parameters, buffers = stack_module_state(list(self.models))
        return {name: value.detach() for name, value in (parameters | buffers).items()}


class Together:
    """One program for all clients."""

    def __init__(self, models: Sequence[nn.Module], images: Tensor, labels: Tensor) -> None:
        self.params, self.buffers = stack_module_state(list(models))
        self.params = {name: value.detach() for name, value in self.params.items()}
        self.images, self.labels = images, labels
        module = models[0]

        def loss(params: State, buffers: State, x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(functional_call(module, (params, buffers), (x,)), y)

        self.slopes = vmap(grad_and_value(loss))

    def step(self) -> None:
        """Train all clients on their batches."""
        slopes, _ = self.slopes(self.params, self.buffers, self.images, self.labels)
        values = list(self.params.values())
        torch._foreach_add_(values, [slopes[name] for name in self.params], alpha=-LR)

    def state(self) -> State:
        """Parameters and buffers, a row for each client."""
        return self.params | self.buffers


WAYS: dict[str, Callable[[Sequence[nn.Module], Tensor, Tensor], OneByOne | Together]] = {
    "one by one": OneByOne,
    "together": Together,
}


def build(
    way: str,
    architecture: str,
    clients: int,
    batch: int,
    device: torch.device,
    *,
    dtype: torch.dtype = torch.float32,
) -> OneByOne | Together:
    """Clients that begin from parameters of their own, ready for a step."""
    models: list[nn.Module] = []
    for client in range(clients):
        with seeded_generators(0, "model", client=client):
            model = build_model(ModelSettings(name=architecture), client, SHAPE, CLASSES)
        models.append(model.to(device, dtype).train())
    rng = stream(0, "benchmark data")
    images = torch.rand(clients, batch, *SHAPE, generator=rng).to(device, dtype)
    labels = torch.randint(CLASSES, (clients, batch), generator=rng).to(device)
    return WAYS[way](models, images, labels)


def must_agree(architecture: str, clients: int, batch: int, device: torch.device) -> None:
    """Compare the ways after one step in float64.

    Raises:
        AssertionError: they differ, with the name of the tensor and by how much.
    """
    states = []
    for way in WAYS:
        work = build(way, architecture, clients, batch, device, dtype=torch.float64)
        work.step()
        states.append(work.state())
    torch.testing.assert_close(*states, rtol=1e-6, atol=1e-9)


def seconds(step: Callable[[], None], device: torch.device) -> float:
    """Time of one call."""
    tools.wait(device)
    started = time.perf_counter()
    step()
    tools.wait(device)
    return time.perf_counter() - started


def memory(threads: int, *what: Any) -> int:
    """What two steps of one way add to the peak of a process of its own (bytes)."""
    torch.set_num_threads(threads)
    work = build(*what)
    before = peak_bytes(what[-1])
    for _ in range(2):
        work.step()
    return peak_bytes(what[-1]) - before


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = tools.options(__doc__)
    options.add_argument("--architectures", default="cnn4")
    options.add_argument("--clients", type=int, default=10)
    options.add_argument("--batch", type=int, default=32)
    options.add_argument("--repeats", type=int, default=10)
    options.add_argument("--threads", type=int, default=None)
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print one row for each architecture."""
    chosen = parser().parse_args(arguments)
    if chosen.threads is not None:
        torch.set_num_threads(chosen.threads)
    threads, device = torch.get_num_threads(), torch.device(chosen.device)
    print(
        f"torch {torch.__version__} on {tools.device_name(device)}, {threads} threads, "
        f"batch {chosen.batch}, 32 px, {chosen.repeats} repeats"
    )
    print(
        f"{'model':<10}{'clients':>8}{'one by one':>13}{'together':>11}{'ratio':>8}"
        f"{'memory: one by one':>21}{'together':>12}"
    )
    for architecture in chosen.architectures.split(","):
        size = (architecture, chosen.clients, chosen.batch, device)
        must_agree(*size)
        alone, joint = (build(way, *size) for way in WAYS)
        alone.step()
        joint.step()
        pairs = []
        for turn in range(chosen.repeats):
            order = (alone, joint) if turn % 2 else (joint, alone)
            taken = {id(one): seconds(one.step, device) for one in order}
            pairs.append((taken[id(alone)], taken[id(joint)]))
        ratio = statistics.median(a / b for a, b in pairs)
        first, second = (statistics.median(column) * 1e3 for column in zip(*pairs, strict=True))
        del alone, joint
        peaks = [human_bytes(tools.apart(memory, threads, way, *size)) for way in WAYS]
        print(
            f"{architecture:<10}{chosen.clients:>8}{first:>10.0f} ms{second:>8.0f} ms{ratio:>8.2f}"
            f"{peaks[0]:>21}{peaks[1]:>12}",
            flush=True,
        )


if __name__ == "__main__":
    main()
