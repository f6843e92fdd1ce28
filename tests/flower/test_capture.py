"""A Flower app of somebody else is recorded as its server sees it; the recording is attacked."""

from __future__ import annotations

import importlib.util
import json
import random
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedre_privacy.cli import attack
from fedre_privacy.core.artifacts import GradientState
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.federation.recorder import read_messages
from fedre_privacy.federation.training_info import read_training_info
from fedre_privacy.flower.capture import capture
from fedre_privacy.flower.commands import flwr
from fedre_privacy.flower.local_federation import NAME, Loopback

FLOWER = importlib.util.find_spec("flwr") is not None
if FLOWER:
    from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.common import Code, FitRes, Status, ndarrays_to_parameters
    from flwr.compat.common.recorddict_compat import fitres_to_recorddict
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import FedAvg
else:
    Grid = object  # type: ignore[misc, assignment]

pytestmark = pytest.mark.skipif(not FLOWER, reason="Flower is not installed: extra 'flower'")

NODES = (7_000_000_001, 42, 9_001)
APP = Path(__file__).with_name("stock_app")
"""A PyTorch app as Flower's template makes them, but for one line of its server."""


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Sigmoid(), nn.Linear(16, 4))


class Answering(Grid):
    """A grid whose nodes answer at once: they add their number to all that they receive."""

    def __init__(self, lost: int = 0) -> None:
        self.waiting: dict[str, Message] = {}
        self.lost = lost

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        return SimpleNamespace(run_id=1)

    def create_message(self, *args: Any, **kwargs: Any) -> Any: ...

    def get_node_ids(self) -> Iterable[int]:
        return list(NODES)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        numbers = []
        for message in messages:
            message.metadata._message_id = f"m{len(self.waiting)}"  # type: ignore[attr-defined]
            self.waiting[message.metadata.message_id] = message
            numbers.append(message.metadata.message_id)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        out = []
        for number in message_ids:
            message = self.waiting[number]
            node = message.metadata.dst_node_id
            if node == self.lost:
                continue
            count = NODES.index(node) + 1
            content = RecordDict({"metrics": MetricRecord({"num-examples": count, "loss": 0.5})})
            if "fitins.parameters" in message.content:
                moved = [a.numpy() + count for a in message.content["fitins.parameters"].values()]
                parts = ndarrays_to_parameters(moved)
                answer = FitRes(Status(Code.OK, ""), parts, count, {})
                content = fitres_to_recorddict(answer, False)
            elif message.metadata.message_type == "train":
                state = message.content["arrays"].to_torch_state_dict()
                moved = {name: value + NODES.index(node) for name, value in state.items()}
                content["arrays"] = ArrayRecord(moved)
            out.append(Message(content, reply_to=message))
        return out

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))


@pytest.fixture(autouse=True)
def identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Flower sets in the process of a ServerApp, and its messages carry."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(f"flwr.supercore.task_identity.TaskIdentity.{name}", 1)


def started(grid: Any, rounds: int = 2) -> Any:
    random.seed(0)  # a strategy draws the order of nodes
    return FedAvg().start(
        grid=grid,
        initial_arrays=ArrayRecord(network().state_dict()),
        num_rounds=rounds,
        train_config=ConfigRecord({"lr": 0.05, "local-epochs": 2}),
    )


def test_a_strategy_ends_as_without_and_all_that_it_saw_is_recorded(tmp_path: Path) -> None:
    plain, seen = started(Answering()), started(capture(Answering(), tmp_path / "up"))
    for name, value in plain.arrays.to_torch_state_dict().items():
        assert torch.equal(value, seen.arrays.to_torch_state_dict()[name])
    uploads, broadcasts = read_messages(tmp_path / "up")
    assert [(u.round, u.client) for u in uploads] == [(r, k) for r in (1, 2) for k in range(3)]
    assert [(b.round, b.recipients) for b in broadcasts] == [(1, (0, 1, 2)), (2, (0, 1, 2))]
    first = network().state_dict()
    for k, node in enumerate(sorted(NODES)):
        params = uploads[k].artifacts[0].params  # type: ignore[attr-defined]
        assert params.keys() == first.keys()
        for name, value in params.items():
            assert torch.equal(value, first[name] + NODES.index(node))
    told = read_training_info(tmp_path / "up")
    assert told["lr"] == 0.05 and told["epochs"] == 2 and "batch_size" not in told
    assert told["nodes"] == {str(k): str(node) for k, node in enumerate(sorted(NODES))}
    assert told["sizes"] == {str(k): NODES.index(n) + 1 for k, n in enumerate(sorted(NODES))}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_strategy_of_the_older_interface_sends_lists_without_names(tmp_path: Path) -> None:
    """One exchange for each client, in threads; all of a round are one round."""
    from flwr.server import ServerConfig
    from flwr.server.compat import start_grid
    from flwr.server.strategy import FedAvg as Older

    first = [value.numpy() for value in network().state_dict().values()]
    start_grid(
        grid=capture(Answering(), tmp_path / "up"),
        config=ServerConfig(num_rounds=2),
        strategy=Older(
            initial_parameters=ndarrays_to_parameters(first),
            fraction_evaluate=0.0,
            on_fit_config_fn=lambda round: {"lr": 0.05, "batch_size": 4},
        ),
    )
    uploads, broadcasts = read_messages(tmp_path / "up")
    assert [(u.round, u.client) for u in uploads] == [(r, k) for r in (1, 2) for k in range(3)]
    assert [(b.round, b.recipients) for b in broadcasts] == [(1, (0, 1, 2)), (2, (0, 1, 2))]
    params = broadcasts[0].artifacts[0].params  # type: ignore[attr-defined]
    assert list(params) == ["0", "1", "2", "3"]
    for place, value in enumerate(first):
        assert torch.equal(params[str(place)], torch.from_numpy(value))
    assert (
        read_training_info(tmp_path / "up")["lr"],
        read_training_info(tmp_path / "up")["batch_size"],
    ) == (0.05, 4)


def test_what_is_given_counts_more_than_what_the_server_says(tmp_path: Path) -> None:
    started(capture(Answering(), tmp_path / "up", lr=0.5, batch_size=8), rounds=1)
    told = read_training_info(tmp_path / "up")
    assert (told["lr"], told["epochs"], told["batch_size"]) == (0.5, 2, 8)


def test_a_loop_of_ones_own_is_recorded_round_by_round_and_a_lost_answer_is_left_out(
    tmp_path: Path,
) -> None:
    grid = capture(Answering(lost=42), tmp_path / "up", kind=GradientState)
    content = RecordDict({"arrays": ArrayRecord(network().state_dict())})
    for _ in range(2):
        sent = [Message(content, node, "train") for node in grid.get_node_ids()]
        numbers = list(grid.push_messages(sent))
        for number in numbers:  # answers come one by one
            grid.pull_messages([number])
        grid.push_messages([Message(RecordDict(), NODES[0], "query")])
    uploads, broadcasts = read_messages(tmp_path / "up")
    assert [(u.round, u.client) for u in uploads] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert {type(a) for u in uploads for a in u.artifacts} == {GradientState}
    assert [b.recipients for b in broadcasts] == [(0, 1, 2)] * 2


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "up").mkdir()
    (tmp_path / "up" / "index.json").write_text("{}")
    with pytest.raises(ConfigError, match="holds something already"):
        capture(Answering(), tmp_path / "up")


@pytest.mark.slow
def test_a_stock_app_is_captured_over_real_processes_and_attacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SuperLink, two SuperNodes, TLS; then its clients' images from the first round's updates."""
    app = shutil.copytree(APP, tmp_path / "app")
    project = app / "pyproject.toml"
    project.write_text(project.read_text().replace("CAPTURED", str(tmp_path / "up")))
    with Loopback(tmp_path / "fed", 2, torch.device("cpu")) as federation:
        flwr([["run", str(app), NAME, "--stream"]], federation.home, seconds=300)
    assert json.loads((tmp_path / "up" / "training.json").read_text())["lr"] == 0.1
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(app)
    monkeypatch.delitem(sys.modules, "stock_task", raising=False)  # a notebook has one too
    stock: Any = importlib.import_module("stock_task")
    images = torch.cat([stock.images_of(part)[0] for part in (0, 1)]).numpy()
    np.savez("truth.npz", images=images, row=np.repeat(senders(tmp_path / "up", stock), 2))
    np.savez("public.npz", images=stock.public().numpy())
    words = [
        "--uploads", "up", "--network", "stock_task:network", "--image-shape", "1x8x8",
        "--round", "1", "--attack", "update-inversion", "--set", "attack.steps=300",
        "--truth", "npz:truth.npz", "--aux", "npz:public.npz", "--metrics", "psnr",
        "--device", "cpu", "--runs-dir", "out",
    ]  # fmt: skip
    assert attack.main(words) == 0
    (record,) = (tmp_path / "out").glob("*/record.json")
    measures = json.loads(record.read_text())["measures"]
    psnr, found = (next(m for m in measures if m["key"] == key) for key in ("psnr", "hit1"))
    assert psnr["value"] > psnr["floor"] + 20 and found["value"] == 1, (psnr, found)


def senders(folder: Path, app: Any) -> list[int]:
    """Which client of the capture holds each part: the one that sent what its step makes."""
    uploads, broadcasts = read_messages(folder, [1])
    found = []
    for part in (0, 1):
        model = app.network()
        model.load_state_dict(broadcasts[0].artifacts[0].params)  # type: ignore[attr-defined]
        images, labels = app.images_of(part)
        nn.functional.cross_entropy(model(images), labels).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        (own,) = [
            upload.client
            for upload in uploads
            if all(
                torch.allclose(value, model.state_dict()[name], atol=1e-7)
                for name, value in upload.artifacts[0].params.items()  # type: ignore[attr-defined]
            )
        ]
        found.append(own)
    return found
