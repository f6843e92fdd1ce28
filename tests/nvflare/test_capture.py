"""An NVFLARE job of somebody else is recorded as its server sees it; the recording is attacked."""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedre_privacy.cli import attack
from fedre_privacy.core.artifacts import GradientState
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.federation.recorder import INDEX, read_messages
from fedre_privacy.federation.training_info import read_training_info

NVFLARE = importlib.util.find_spec("nvflare") is not None
if NVFLARE:
    from nvflare.apis.dxo import DXO, DataKind
    from nvflare.apis.event_type import EventType
    from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReturnCode
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import ReservedHeaderKey, Shareable
    from nvflare.app_common.app_constant import AppConstants
    from nvflare.job_config.api import FedJob
    from nvflare.job_config.defs import FilterType

    from fedre_privacy.nvflare.capture import Capture

pytestmark = pytest.mark.skipif(not NVFLARE, reason="NVFLARE is not installed: extra 'nvflare'")

JOB = Path(__file__).with_name("stock_job")
"""A job as NVFLARE's examples make them, but for one line."""

Arrays = dict[str, Any]


class Wire:
    """A server's two chains, each with the filter that NVFLARE makes for it.

    Args:
        sites: all clients, if the server knows them.
    """

    def __init__(self, folder: Path, sites: tuple[str, ...] = (), **words: Any) -> None:
        self.out, self.back = Capture(str(folder), **words), Capture(str(folder), **words)
        self.clients = [SimpleNamespace(name=name) for name in sites]
        self.tasks = 0

    def send(self, site: str, arrays: Arrays, *, round: int | None = None, **said: Any) -> str:
        """Send a model to a site; return the task's number."""
        self.tasks += 1
        task = f"t{self.tasks}"
        self._pass(self.out, FilterKey.OUT, site, task, DataKind.WEIGHTS, arrays, round, **said)
        return task

    def answer(
        self,
        site: str,
        task: str,
        arrays: Arrays,
        *,
        sort: str | None = None,
        round: int | None = None,
        **said: Any,
    ) -> None:
        """Hand in what a site answers, full parameters unless `sort` says otherwise."""
        sort = sort or DataKind.WEIGHTS
        self._pass(self.back, FilterKey.IN, site, task, sort, arrays, round, **said)

    def end(self) -> None:
        """What NVFLARE tells its components when a job is over."""
        for part in (self.out, self.back):
            part.handle_event(EventType.END_RUN, FLContext())

    def _pass(
        self,
        part: Any,
        way: str,
        site: str,
        task: str,
        sort: str,
        arrays: Arrays,
        round: int | None,
        name: str = "train",
        code: str | None = None,
        meta: dict[str, Any] | None = None,
    ) -> None:
        message = DXO(sort, data=arrays, meta=dict(meta or {})).to_shareable()
        message.set_header(ReservedHeaderKey.TASK_NAME, name)
        message.set_header(ReservedHeaderKey.TASK_ID, task)
        if round is not None:
            message.set_header(AppConstants.CURRENT_ROUND, round)
        if code is not None:
            message.set_return_code(code)
        before = copy.deepcopy(message)
        assert part.process(message, self._context(way, site)) is message
        assert same(message, before)

    def _context(self, way: str, site: str) -> Any:
        context, peer = FLContext(), FLContext()
        peer.set_prop("__identity_name__", site, private=False, sticky=False)
        context.set_peer_context(peer)
        context.set_prop(FLContextKey.FILTER_DIRECTION, way, private=True, sticky=False)
        if self.clients:
            engine = SimpleNamespace(get_clients=lambda: self.clients)
            context.set_prop("__engine__", engine, private=True, sticky=False)
        return context


def same(one: Any, other: Any) -> bool:
    """Whether two messages hold the same, to the bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, torch.Tensor | np.ndarray):
        return bool((one == other).all()) and one.dtype == other.dtype
    return bool(one == other)


def model(seed: int = 0) -> Arrays:
    draw = np.random.default_rng(seed)
    return {
        "weight": draw.normal(size=(3, 2)).astype(np.float32),
        "steps": np.array(seed),  # as batch norm counts its batches
    }


def params(message: Any) -> dict[str, torch.Tensor]:
    return dict(message.artifacts[0].params)


def equal(found: dict[str, torch.Tensor], arrays: Arrays) -> bool:
    return found.keys() == arrays.keys() and all(
        torch.equal(found[name], torch.as_tensor(value)) for name, value in arrays.items()
    )


def test_both_chains_write_one_recording_with_rounds_from_one_and_names(tmp_path: Path) -> None:
    sites = ("site-10", "site-2", "site-1")
    wire = Wire(tmp_path / "up", sites, lr=0.1, batch_size=8, size_key="images")
    for round in (0, 1):
        tasks = {site: wire.send(site, model(round), round=round) for site in sites}
        for place, (site, task) in enumerate(tasks.items()):
            assert not (tmp_path / "up" / f"r{round + 1:04d}.safetensors").exists()
            meta = {"images": 5 + place, "NUM_STEPS_CURRENT_ROUND": 99}
            wire.answer(site, task, model(10 + round + place), meta=meta)
        assert (tmp_path / "up" / f"r{round + 1:04d}.safetensors").exists()
    uploads, broadcasts = read_messages(tmp_path / "up")
    assert [(u.round, u.client) for u in uploads] == [(r, k) for r in (1, 2) for k in range(3)]
    assert [(b.round, b.recipients) for b in broadcasts] == [(1, (0, 1, 2)), (2, (0, 1, 2))]
    for round in (0, 1):
        assert equal(params(broadcasts[round]), model(round))
    for upload in uploads:  # site-1 comes last of the sites, and first of the numbers
        assert equal(params(upload), model(10 + upload.round - 1 + 2 - upload.client))
    told = read_training_info(tmp_path / "up")
    assert told["nodes"] == {"0": "site-1", "1": "site-2", "2": "site-10"}
    assert told["sizes"] == {"0": 7, "1": 6, "2": 5}
    assert (told["lr"], told["batch_size"], "epochs" in told) == (0.1, 8, False)


def test_a_difference_becomes_the_parameters_that_it_leads_to(tmp_path: Path) -> None:
    wire = Wire(tmp_path / "up")
    first, change = model(0), {"weight": np.full((3, 2), 0.125, np.float32)}
    task = wire.send("a", first, round=0)
    wire.answer("a", task, change, sort=DataKind.WEIGHT_DIFF)
    uploads, _ = read_messages(tmp_path / "up")
    assert equal(params(uploads[0]), {"weight": first["weight"] + change["weight"]})


def test_gradients_are_recorded_as_they_are_and_tensors_as_arrays(tmp_path: Path) -> None:
    wire = Wire(tmp_path / "up", kind="gradient")
    first = {"w": torch.rand(2, 3, dtype=torch.bfloat16), "b": torch.tensor(0.5)}
    task = wire.send("a", first, round=3)
    first["b"] += 1  # the server goes on with its own memory
    change = {"w": torch.rand(3, 2).T, "b": torch.tensor(1.0)}
    wire.answer("a", task, change, sort=DataKind.WEIGHT_DIFF)
    uploads, broadcasts = read_messages(tmp_path / "up")
    assert type(uploads[0].artifacts[0]) is GradientState and equal(params(uploads[0]), change)
    assert equal(params(broadcasts[0]), {"w": first["w"], "b": torch.tensor(0.5)})


def test_rounds_without_a_number_are_told_apart(tmp_path: Path) -> None:
    """Also where the same parameters are sent again, or to others than before."""
    wire = Wire(tmp_path / "up")
    for sites, seed in ((("a", "b"), 0), (("c",), 1), (("a", "c"), 1)):
        for site in sites:
            wire.answer(site, wire.send(site, model(seed)), model(9))
    wire.end()
    uploads, broadcasts = read_messages(tmp_path / "up")
    assert [(b.round, b.recipients) for b in broadcasts] == [(1, (0, 1)), (2, (0, 2)), (3, (2,))]
    assert [(u.round, u.client) for u in uploads] == [(1, 0), (1, 1), (2, 0), (2, 2), (3, 2)]


def test_who_is_silent_is_left_out_and_the_end_of_the_job_writes_the_rest(tmp_path: Path) -> None:
    wire = Wire(tmp_path / "up", ("a", "b"))
    task = wire.send("a", model(), round=0)
    failed = wire.send("b", model(), round=0)
    wire.answer("a", task, model(1))
    wire.answer("b", failed, model(2), code=ReturnCode.EXECUTION_EXCEPTION)
    wire.send("a", model(), name="validate", round=0)
    assert not (tmp_path / "up").exists()
    wire.end()
    uploads, broadcasts = read_messages(tmp_path / "up")
    assert [u.client for u in uploads] == [0]
    assert [b.recipients for b in broadcasts] == [(0, 1)]
    with pytest.raises(ConfigError, match="holds something already"):
        Wire(tmp_path / "up")


def test_what_cannot_be_recorded_is_logged_and_passes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wire = Wire(tmp_path / "up")
    wire.answer("a", "unknown", model(), round=0)
    task = wire.send("a", model(), round=0)
    wire.answer("a", task, {"other": np.zeros(2)}, sort=DataKind.WEIGHT_DIFF)
    wire.answer("a", task, {"weight": b"encrypted"})
    for said in ("not among the task-data filters", "not all from what", "no plain arrays"):
        assert said in caplog.text
    other = wire.send("a", model(), round=1)
    again = wire.send("a", model(), round=0)  # as a second workflow does
    wire.answer("a", again, model(5))
    wire.answer("a", other, {"weight": b"encrypted"})
    assert "Round 1 comes after round 2" in caplog.text
    plain = Shareable()
    assert wire.back.process(plain, FLContext()) is plain
    wire.end()
    assert read_messages(tmp_path / "up")[0] == []


def test_a_folder_that_holds_something_and_an_unknown_kind_are_refused(tmp_path: Path) -> None:
    (tmp_path / "up").mkdir()
    (tmp_path / "up" / INDEX).write_text("{}")
    with pytest.raises(ConfigError, match="holds something already") as refused:
        Capture(str(tmp_path / "up"))
    assert refused.value.next_step
    with pytest.raises(ConfigError, match="Unknown kind 'weights'"):
        Capture(str(tmp_path / "other"), kind="weights")


@pytest.mark.parametrize("recipe", [False, True])
def test_a_job_gets_both_chains_with_an_absolute_folder_and_no_copy_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: bool
) -> None:
    from nvflare.app_common.workflows.fedavg import FedAvg

    monkeypatch.chdir(tmp_path)
    job = FedJob(name="made")
    job.to_server(FedAvg(num_clients=1, num_rounds=1))
    seen = Capture("up", epochs=2, task="fit")
    if recipe:  # as its add_server_output_filter and add_server_input_filter do
        job.to_server(seen, filter_type=FilterType.TASK_DATA, tasks=None)
        job.to_server(seen, filter_type=FilterType.TASK_RESULT, tasks=None)
    else:
        job.to_server(seen)
    job.export_job(str(tmp_path / "jobs"))
    (config,) = (tmp_path / "jobs").rglob("config_fed_server.json")
    said = json.loads(config.read_text())
    args = {"folder": str(tmp_path / "up"), "epochs": 2, "task": "fit"}
    for chain in ("task_data_filters", "task_result_filters"):
        (entry,) = said[chain]
        assert entry["tasks"] == ["fit"]
        assert entry["filters"] == [{"path": "fedre_privacy.nvflare.capture.Capture", "args": args}]
    assert not list((tmp_path / "jobs").rglob("*.py"))
    with pytest.raises(ValueError, match="can only be assigned"):
        FedJob(name="other").to(Capture("up"), "site-1")


@pytest.mark.slow
def test_a_stock_job_is_captured_in_the_simulator_and_attacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same end as without; what sites sent and received; then their images."""
    up, ends = tmp_path / "up", []
    for uploads in ("", str(up)):
        place = tmp_path / ("seen" if uploads else "plain")
        (place / "diary").mkdir(parents=True)
        words = [str(place / "work"), str(place / "diary"), *filter(None, [uploads])]
        simulate(words)
        (end,) = (place / "work").rglob("FL_global_model.pt")
        ends.append(torch.load(end, weights_only=True)["model"])
    assert equal({k: torch.as_tensor(v) for k, v in ends[0].items()}, ends[1])

    uploads, broadcasts = read_messages(up)
    assert [(u.round, u.client) for u in uploads] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert [(b.round, b.recipients) for b in broadcasts] == [(1, (0, 1)), (2, (0, 1))]
    told = read_training_info(up)
    assert told["nodes"] == {"0": "site-1", "1": "site-2"} and told["sizes"] == {"0": 2, "1": 2}
    for upload in uploads:
        site = told["nodes"][str(upload.client)]
        own = tmp_path / "seen" / "diary" / f"{site}-{upload.round - 1}"
        assert equal(params(upload), load_file(f"{own}-sent.safetensors"))
        received = load_file(f"{own}-received.safetensors")
        assert equal(params(broadcasts[upload.round - 1]), received)

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(JOB)
    stock: Any = importlib.import_module("stock_net")
    images = torch.cat([stock.images_of(site)[0] for site in ("site-1", "site-2")]).numpy()
    np.savez("truth.npz", images=images, row=np.repeat([0, 1], 2))
    np.savez("public.npz", images=stock.public().numpy())
    words = [
        "--uploads", "up", "--network", "stock_net:Net", "--image-shape", "1x8x8",
        "--round", "1", "--attack", "update-inversion", "--set", "attack.steps=300",
        "--truth", "npz:truth.npz", "--aux", "npz:public.npz", "--metrics", "psnr",
        "--device", "cpu", "--runs-dir", "out",
    ]  # fmt: skip
    assert attack.main(words) == 0
    (record,) = (tmp_path / "out").glob("*/record.json")
    measures = json.loads(record.read_text())["measures"]
    psnr, found = (next(m for m in measures if m["key"] == key) for key in ("psnr", "hit1"))
    assert psnr["value"] > psnr["floor"] + 20 and found["value"] == 1, (psnr, found)


def simulate(words: list[str]) -> None:
    """Run the stock job in a process of its own, as its author does."""
    done = subprocess.run(
        [sys.executable, str(JOB / "stock_job.py"), *words],
        cwd=JOB, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
