"""Clients spread over cores: the same bytes as one after another, whatever happens to a copy."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fedre_privacy.core import threads as cores
from fedre_privacy.core.errors import DivergedError
from fedre_privacy.core.registry import allow_module_paths
from fedre_privacy.federation import forked_clients as copies
from fedre_privacy.federation import loop
from fedre_privacy.protocols.base import protocols
from fedre_privacy.protocols.fedre import FedRE
from fedre_privacy.runs.resolution import resolve_training
from fedre_privacy.runs.training import train

pytestmark = pytest.mark.skipif(not cores.can_copy(), reason="this system copies no process")

PRIVATE = "dp-sgd:noise=1,clip=1"
NAMES = protocols.names()


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tiny rounds are spread too; the number of threads is as before in the end."""
    monkeypatch.setattr(loop, "WORTH_COPIES_S", 0.0)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def trained(folder: Path, threads: int, protocol: str, **sections: object) -> dict[str, bytes]:
    """The bytes of all uploads, models and provenance, and the rows of metrics."""
    torch.set_num_threads(threads)
    problems: list[str] = []
    values = {
        "data": {"name": "digits", "size": 16, "per_class": 12},
        "partition": {"name": "pra", "alpha": 0.5},
        "model": {"name": "cnn4", "dim": 32},
        "train": {"clients": 4, "rounds": 2, "batch_size": 8},
        "record": {"keep_every": 1},
        "protocol": protocol,
        **sections,
    }
    settings = resolve_training(values, {}, problems)
    assert settings is not None, problems
    run = train(settings, runs=folder / str(threads))
    found = {p.name: p.read_bytes() for p in sorted(run.folder.rglob("*.safetensors"))}
    lines = (run.folder / "metrics.csv").read_text().splitlines()
    column = lines[0].split(",").index("wall_s")
    rows = [[v for n, v in enumerate(line.split(",")) if n != column] for line in lines]
    assert found and len(rows) == 3
    return found | {"metrics": repr(rows).encode(), "clients": _clients(run.folder)}


def _clients(folder: Path) -> bytes:
    return (folder / "clients.csv").read_bytes()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes that were made."""
    found: list[int] = []
    fork = os.fork

    def remembered() -> int:
        copy = fork()
        found.append(copy)
        return copy

    monkeypatch.setattr(os, "fork", remembered)
    return found


@pytest.mark.parametrize("threads", [2, 3])
def test_the_number_of_cores_changes_nothing(tmp_path, threads, monkeypatch):
    alone = trained(tmp_path, 1, "fedre")
    used: list[int] = []
    spread = cores.spread

    def noted(*given: Any, copies: int) -> list[int]:
        used.append(copies)
        return spread(*given, copies=copies)

    monkeypatch.setattr(cores, "spread", noted)
    assert trained(tmp_path, threads, "fedre") == alone
    assert set(used) == {threads}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_nor_for_any_protocol(tmp_path, name):
    model = {"model": {"name": "cnn4", "dim": 128}}  # of which fedmrl nests a part
    assert trained(tmp_path, 2, name, **model) == trained(tmp_path, 1, name, **model)


@pytest.mark.slow
def test_nor_under_private_training(tmp_path):
    chosen = {"defense": PRIVATE, "train": {"clients": 3, "rounds": 2, "batch_size": 8}}
    assert trained(tmp_path, 2, "fedavg", **chosen) == trained(tmp_path, 1, "fedavg", **chosen)


@pytest.mark.slow
def test_nor_under_learnt_defences(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "defenses")
    allow_module_paths("planted:Rival", "planted:Gate")
    chosen = {"protocol": "fedgh", "defense": ["planted:Rival", "planted:Gate:noise=0.1"]}
    assert trained(tmp_path, 2, **chosen) == trained(tmp_path, 1, **chosen)


def test_a_client_that_diverges_is_named_as_ever(tmp_path):
    with pytest.raises(DivergedError, match="client 0 in round 2"):
        trained(tmp_path, 2, "fedavg", train={"clients": 4, "rounds": 2, "lr": 1e30})


def test_work_of_a_copy_that_died_or_failed_is_left():
    def work(item: int) -> bytes:
        if item == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        if item == 5:
            raise ValueError("no")
        return bytes([item])

    found: dict[int, bytes] = {}
    left = cores.spread(work, [7, 3, 6, 5, 1], found.__setitem__, copies=1)
    assert left == [3, 6, 5, 1] and found == {7: b"\7"}
    found.clear()
    left = cores.spread(work, [7, 5, 6], found.__setitem__, copies=2)
    assert left == [5] and found == {7: b"\7", 6: b"\6"}


def test_long_answers_of_many_come_whole_and_no_copy_is_left(made):
    found: dict[int, bytes] = {}
    items = list(range(5000, 0, -1))
    left = cores.spread(lambda n: bytes([n % 251]) * n, items, found.__setitem__, copies=3)
    assert not left and found == {n: bytes([n % 251]) * n for n in items}
    assert made
    for copy in made:
        with pytest.raises(ChildProcessError):
            os.waitpid(copy, os.WNOHANG)


def test_an_interruption_ends_the_copies(made):
    def take(item: int, data: bytes) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cores.spread(lambda n: b"x" * 100_000, list(range(50)), take, copies=2)
    assert made
    for copy in made:
        with pytest.raises(ChildProcessError):
            os.waitpid(copy, os.WNOHANG)


def test_those_with_most_to_do_come_first(federation):
    fed = federation(FedRE())
    order = copies.busiest_first(fed.clients, [0, 1, 2])
    sizes = [len(fed.clients[k].train) for k in order]
    assert sizes == sorted(sizes, reverse=True)
