"""Everything runs on a device that is not the host, where no GPU is to be had.

Tensors of host and device never mix, results are those of a CPU, and the host does not wait for the
device inside a loop. What a GPU has of its own (graphs, streams, memory, generators) is not shown.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).parent / "cases.py"


def problems(kind: str, folder: Path, least: int) -> dict[str, str]:
    """Run the cases of a kind in a process of their own."""
    done = subprocess.run(
        [sys.executable, str(CASES), kind, str(folder)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = dict(json.loads(line) for line in done.stdout.splitlines())
    assert len(found) >= least
    return {name: problem for name, problem in found.items() if problem}


@pytest.mark.slow
def test_every_protocol_trains_as_on_a_cpu(tmp_path):
    assert problems("trainings", tmp_path, 25) == {}


@pytest.mark.slow
def test_every_attack_answers_as_on_a_cpu(tmp_path):
    assert problems("attacks", tmp_path, 15) == {}


@pytest.mark.slow
def test_more_steps_make_the_host_wait_no_more_often(tmp_path):
    assert problems("waits", tmp_path, 8) == {}


@pytest.mark.slow
def test_the_host_waits_as_often_for_many_clients_as_for_few():
    """Beside the loss of each, which captured steps bring all at once."""
    found = []
    for clients in (2, 5):
        done = subprocess.run(
            [sys.executable, "benchmarks/waits.py", "--clients", str(clients)],
            cwd=CASES.parents[2],
            capture_output=True,
            text=True,
            check=True,
        )
        rows = [line.split() for line in done.stdout.splitlines()[1:]]
        assert {name: int(losses) for name, _, losses, _ in rows} == {
            "fedgh": clients, "fedre": clients, "fedavg": clients,
        }  # fmt: skip
        found.append({name: int(rest) for name, _, _, rest in rows})
    assert found[0] == found[1] and max(found[0].values()) <= 2


@pytest.mark.slow
def test_what_a_gpu_refuses_is_refused():
    """The stand-in itself: mixing is refused, and what waits is counted."""
    script = """
import stand_in
device = stand_in.install()
import torch
here = torch.arange(6.0, device=device).reshape(2, 3)
for mixed in (lambda: here + torch.ones(2, 3), lambda: here @ torch.ones(3, 1)):
    try:
        mixed()
    except RuntimeError as error:
        assert "same device" in str(error)
    else:
        raise SystemExit("mixed")
assert not stand_in.reads
assert float(here.sum()) == 15 and here.cpu().sum() == 15 and len(here.nonzero()) == 5
assert bool((here[torch.tensor([1])] * 2.0 == torch.tensor([6.0, 8.0, 10.0]).to(device)).all())
assert sum(stand_in.reads.values()) == 4, stand_in.reads
weight = torch.ones(3, 2, device=device, requires_grad=True)
(here @ weight).square().sum().backward()
assert weight.grad.device == device
stand_in.leave()
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=CASES.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
