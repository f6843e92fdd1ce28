"""What the benchmarks share: options, waiting for a GPU, and processes of their own."""

from __future__ import annotations

import argparse
import csv
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import torch

Found = TypeVar("Found")


def options(text: str | None) -> argparse.ArgumentParser:
    """An empty parser whose help is a benchmark's docstring, line by line."""
    return argparse.ArgumentParser(
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


@dataclass(frozen=True)
class RowsFile:
    """A CSV file of finished measurements, with which a benchmark goes on after it was stopped.

    Args:
        fields: its columns. key: those that name a measurement.
    """

    path: Path
    fields: Sequence[str]
    key: Sequence[str]

    def done(self) -> set[tuple[str, ...]]:
        """Keys of the measurements that it holds."""
        if not self.path.exists():
            return set()
        with self.path.open(newline="") as file:
            return {tuple(row[name] for name in self.key) for row in csv.DictReader(file)}

    def add(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Append the rows of a measurement, all at once."""
        fresh = not self.path.exists() or not self.path.stat().st_size
        with self.path.open("a", newline="") as file:
            writer = csv.DictWriter(file, self.fields)
            if fresh:
                writer.writeheader()
            writer.writerows(rows)


def noise_like(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Noise of the mean and spread of values: of each column of two or more rows, or of all."""
    rows = values if values.dim() > 1 and len(values) > 1 else values.flatten()[:, None]
    noise = torch.randn(rows.shape, generator=generator)
    return (rows.mean(0) + rows.std(0, unbiased=False) * noise).reshape(values.shape)


def wait(device: torch.device) -> None:
    """Wait for a GPU; a CPU is never behind."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def device_name(device: torch.device) -> str:
    """The GPU's name, or cpu."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def apart(work: Callable[..., Found], *given: Any) -> Found:
    """What `work` of `given` returns in a new process, so that its peak of memory is its own.

    Raises:
        EOFError: the process ended before it had an answer.
    """
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(send, work, given))
    process.start()
    send.close()
    try:
        found: Found = receive.recv()
        return found
    finally:
        process.join()


def _answer(send: Connection, work: Callable[..., Any], given: tuple[Any, ...]) -> None:
    send.send(work(*given))


def dataset_of(text: str, per_class: int | None = None) -> dict[str, Any]:
    """The ``data`` section of settings, of a name or ``name:PATH``."""
    name, _, path = text.partition(":")
    given = {"path": path and str(Path(path).expanduser().resolve()), "per_class": per_class}
    return {"name": name, **{key: value for key, value in given.items() if value}}
