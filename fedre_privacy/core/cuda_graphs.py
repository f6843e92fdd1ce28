"""One step of a search or of a training, captured once and replayed.

A step on a GPU is hundreds of small kernels, and launching them from Python can take longer than
running them. A captured step is launched as a whole. It works on fixed buffers: whatever changes
between steps (learning rate, clock) must live in a tensor that the step reads, and nothing may wait
for the device. What cannot be captured runs as before.

Reference: PyTorch notes, CUDA semantics, CUDA Graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor

Step = Callable[[], None]

WARM_UP = 3
"""Steps on a side stream before capture, in which libraries choose kernels and workspaces."""
CHECKED = 2
"""Steps of which replay and plain execution must agree; the second shows that the first moved."""
TOLERANCE = 1e-3
"""Relative to the matches, summed over rows: a single row near a kink proves nothing."""


class GraphCapture(Protocol):
    """A way to capture a step."""

    def capture(self, step: Step) -> Step:
        """Return what does the same as `step` on the same buffers; `step` may run meanwhile.

        Raises:
            RuntimeError: it cannot be captured.
        """
        ...


@dataclass(frozen=True)
class CudaGraphCapture:
    """Captures CUDA graphs.

    Args:
        stream: on which steps are warmed up and captured; None: the one of `side_stream`. Graphs
            that are replayed at the same time need a stream each, since libraries keep one
            workspace for each stream.
        pool: of memory (`torch.cuda.graph_pool_handle`) that graphs share which are never replayed
            at the same time; None: each has its own.
    """

    device: torch.device
    stream: torch.cuda.Stream | None = None
    pool: Any = None

    def capture(self, step: Step) -> Step:
        with torch.cuda.device(self.device):
            side = self.stream or side_stream(self.device)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARM_UP):
                    step()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self.pool, stream=side):
                step()
            replay: Step = graph.replay
            return replay


@cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    """The one stream of a device on which steps are warmed up and captured.

    Libraries keep a workspace for every stream they ever met, tens of MiB each, for good.
    """
    return torch.cuda.Stream(device)


def capture_for(device: torch.device) -> GraphCapture | None:
    """How steps are captured on a device; None where they are not."""
    return CudaGraphCapture(device) if device.type == "cuda" else None


def capture_step(
    step: Step,
    capturer: GraphCapture,
    *,
    state: Sequence[Tensor],
    match: Tensor,
    note: Callable[[str], None],
) -> Step | None:
    """Capture a step that has run at least once, and check the copy against it.

    Args:
        state: every tensor that the step changes and reads again, put back before this returns.
        match: the step's result (n,), one of them.
        note: told why when the step cannot be captured.

    Returns:
        The replay; None where capture failed or does something else than the step.
    """
    before = [one.detach().clone() for one in state]
    draws = generator_state(match.device)

    def trial(run: Step) -> Tensor:
        put_back(state, before)
        set_generator(match.device, draws)
        seen = []
        for _ in range(CHECKED):
            run()
            seen.append(match.detach().clone())
        return torch.stack(seen).nan_to_num(posinf=0)

    wanted = trial(step)
    try:
        replay = capturer.capture(step)
        gap = (trial(replay) - wanted).abs().sum(1)
        if bool((gap <= TOLERANCE * wanted.abs().sum(1)).all()):
            return replay
        why = "its replay gives other numbers"
    except RuntimeError as error:
        why = (str(error).splitlines() or ["no reason given"])[0]
    finally:
        put_back(state, before)
        set_generator(match.device, draws)
    note(f"steps run one by one, since they could not be captured: {why}")
    return None


def put_back(state: Sequence[Tensor], before: Sequence[Tensor]) -> None:
    """Copy values kept earlier into the same buffers."""
    with torch.no_grad():
        for now, then in zip(state, before, strict=True):
            now.copy_(then)


def generator_state(device: torch.device) -> Tensor:
    """The state of a device's own generator, which steps with dropout draw from."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def set_generator(device: torch.device, state: Tensor) -> None:
    """Give a device's own generator a state that `generator_state` has returned."""
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)
