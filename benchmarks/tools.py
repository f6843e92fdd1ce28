"""What the benchmarks share: options, waiting for a GPU, and processes of their own."""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Callable
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
