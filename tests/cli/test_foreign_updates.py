"""Updates and gradients of another system: recorded as its server saw them, attacked, refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedre_privacy.core.artifacts import Counts, GradientState, ModelState, SmallModelState
from fedre_privacy.core.types import Broadcast, Upload
from fedre_privacy.federation.recorder import Recorder

SHAPE, CLASSES, LR = (1, 8, 8), 4, 0.1
MODULE = """
from torch import nn

def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.Sigmoid(), nn.Linear(24, 4))

def extractor():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24))

def wide():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 25), nn.Sigmoid(), nn.Linear(25, 4))
"""


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.Sigmoid(), nn.Linear(24, CLASSES))


@pytest.fixture
def pictures(digits: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """60 real digits of 8x8 of the classes 0 to 3, and their labels."""
    keep = digits.labels < CLASSES
    small = nn.functional.avg_pool2d(digits.images[keep].float() / 255, 2)
    return small, digits.labels[keep]


def record(
    folder: Path, pictures: tuple[torch.Tensor, torch.Tensor], kind: str, numbered: bool = False
) -> None:
    """Two clients of one image each, round 1, as another system's server would see them."""
    images, labels = pictures
    uploads = []
    for client in (0, 1):
        model = network()
        own = slice(client, client + 1)
        loss = nn.functional.cross_entropy(model(images[own]), labels[own])
        grads = torch.autograd.grad(loss, list(model.parameters()))
        named = dict(zip(dict(model.named_parameters()), grads, strict=True))
        if kind == "gradient":
            artifact: Any = GradientState(named)
        else:
            held = {n: (p - LR * named[n]).detach() for n, p in model.named_parameters()}
            if numbered:
                held = {str(place): value for place, value in enumerate(held.values())}
            artifact = SmallModelState(held) if kind == "small-model" else ModelState(held)
        uploads.append(Upload(client, 1, (artifact, Counts(torch.tensor([1])))))
    state = {name: p.detach() for name, p in network().named_parameters()}
    if numbered:
        state = {str(place): value for place, value in enumerate(state.values())}
    recorder = Recorder(folder)
    recorder.write(1, uploads, [Broadcast(1, (0, 1), (ModelState(state),))])
    recorder.save()
    told = {"schema": 1, "lr": LR, "epochs": 1, "batch_size": 1, "sizes": {"0": 1, "1": 1}}
    (folder / "training.json").write_text(json.dumps(told))


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pictures: Any) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("mine_net.py").write_text(MODULE)
    images, labels = (one.numpy() for one in pictures)
    np.savez("truth.npz", images=images[:2], labels=labels[:2], row=np.arange(2))
    np.savez("public.npz", images=images[4:], labels=labels[4:])
    yield pictures
    sys.modules.pop("mine_net", None)


GIVEN = ("--uploads", "up", "--network", "mine_net:make", "--image-shape", "1x8x8")


@pytest.mark.parametrize(
    ("kind", "attack", "numbered"),
    [("model", "update-inversion", False), ("model", "update-inversion", True),
     ("gradient", "inverting-gradients", False)],
)  # fmt: skip
def test_images_come_back_from_what_another_system_sent(
    cli: Any, system: Any, kind: str, attack: str, numbered: bool
) -> None:
    record(Path("up"), system, kind, numbered)
    done = cli.attack(
        *GIVEN, "--attack", attack, "--set", "attack.steps=150",
        "--truth", "npz:truth.npz", "--aux", "npz:public.npz", "--metrics", "psnr", "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    folder = Path(done.events[-1]["folder"])
    measures = json.loads((folder / "record.json").read_text())["measures"]
    measure = next(m for m in measures if m["key"] == "psnr")
    assert measure["n"] == 2 and measure["value"] > measure["floor"] + 3, measure
    share = next(m for m in measures if m["key"] == "explained")
    assert share["value"] > 0.9 and share["over"] > 0
    said = json.loads((folder / "record.json").read_text())["trial"]["Truth"]
    assert said.startswith("the module makes the gradient from the true images: ")


@pytest.mark.parametrize("kind", ["model", "gradient"])
def test_true_images_of_other_uploads_are_told(cli: Any, system: Any, kind: str) -> None:
    record(Path("up"), system, kind, False)
    images, labels = (one.numpy() for one in system)
    np.savez("truth.npz", images=images[2:4], labels=labels[2:4], row=np.arange(2))
    done = cli.attack(
        *GIVEN, "--attack", "update-inversion" if kind == "model" else "inverting-gradients",
        "--set", "attack.steps=2", "--truth", "npz:truth.npz", "--aux", "npz:public.npz",
        "--metrics", "psnr",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "does not make the" in done.out and "from the true images" in done.out


@pytest.mark.parametrize(
    ("kind", "attack"),
    [(kind, attack) for kind, named in {
        "model": ("update-inversion", "labels"),
        "small-model": ("update-inversion", "labels"),
        "gradient": (
            "inverting-gradients", "dlg", "idlg", "analytic", "spear", "head-features",
            "labels",
        ),
    }.items() for attack in named],
)  # fmt: skip
def test_every_attack_that_the_page_names_fits(
    cli: Any, system: Any, kind: str, attack: str
) -> None:
    record(Path("up"), system, kind)
    done = cli.attack(*GIVEN, "--attack", attack, "--dry-run")
    assert done.code == 0 and "everything fits" in done.out, done.err


def test_what_nobody_said_is_assumed_and_told(cli: Any, system: Any) -> None:
    record(Path("up"), system, "model")
    Path("up/training.json").write_text('{"schema": 1, "batch_size": 1}')
    done = cli.attack(*GIVEN, "--attack", "update-inversion", "--set", "attack.steps=3")
    assert done.code == 0, done.err
    assert "does not say it: lr 0.01, epochs 1, one batch of images at 2" in done.line("Attacker")
    Path("up/training.json").unlink()
    done = cli.attack(*GIVEN, "--attack", "labels")
    assert done.code == 0, done.err
    assert "batch size 32" in done.line("Attacker")


REFUSED: dict[str, tuple[tuple[str, ...], int, str]] = {
    "another network": (("--network", "mine_net:wide"), 3, "does not fit --network mine_net:wide"),
    "no function": (("--network", "mine_net:none"), 2, "has no function 'none'"),
    "no logits": (("--network", "mine_net:extractor"), 3, "does not fit --network"),
    "an extractor too": (("--extractor", "mine_net:extractor"), 2, "got --extractor, --network"),
    "an attack on rows": (("--attack", "dip"), 3, "Attack 'dip'"),
    "membership": (("--attack", "loss-membership"), 3, "which needs a recorded run"),
    "no round": (("--round", "7"), 4, "Round 7 was not recorded"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_before_any_step(cli: Any, system: Any, name: str) -> None:
    record(Path("up"), system, "model")
    more, code, text = REFUSED[name]
    done = cli.attack(*GIVEN, "--attack", "update-inversion", *more)
    assert (done.code, text in done.err) == (code, True), done.err


@pytest.mark.parametrize("row", [2, 2**31 - 1])
def test_truth_of_other_uploads_is_refused(cli: Any, system: Any, row: int) -> None:
    record(Path("up"), system, "model")
    np.savez("other.npz", images=system[0][:2].numpy(), row=np.full(2, row))
    truth = ("--truth", "npz:other.npz", "--aux", "npz:public.npz")
    done = cli.attack(*GIVEN, "--attack", "update-inversion", *truth)
    assert done.code == 3 and "no image went into one of the 2 uploads" in done.err


def test_what_clients_started_from_has_to_be_recorded(cli: Any, system: Any) -> None:
    record(Path("up"), system, "model")
    index = json.loads(Path("up/index.json").read_text())
    index["messages"] = [m for m in index["messages"] if m["direction"] == "upload"]
    Path("up/index.json").write_text(json.dumps(index))
    done = cli.attack(*GIVEN, "--attack", "update-inversion")
    assert done.code == 4 and "client 0 started round 1 from was not recorded" in done.err


@pytest.mark.parametrize(
    "text", ['{"lr": -1}', '{"epochs": 0}', '{"sizes": {"one": 3}}', '{"schema": 2}', "[]"]
)
def test_a_wrong_training_file_is_refused(cli: Any, system: Any, text: str) -> None:
    record(Path("up"), system, "model")
    Path("up/training.json").write_text(text)
    done = cli.attack(*GIVEN, "--attack", "update-inversion")
    assert done.code == 4 and "up/training.json" in done.err, done.err


VIEWING = """
import torch
from torch import nn

class Viewing(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 6, 3, 2, 1), nn.BatchNorm2d(6)
        self.fc = nn.Linear(96, 4)

    def forward(self, x):
        x = torch.sigmoid(self.norm(self.conv(x.sub_(0.5))))
        return self.fc(x.view(-1, 96))

def make():
    torch.manual_seed(0)
    return Viewing()
"""


@pytest.mark.parametrize("mode", ["eval", "batch"])
def test_a_network_of_the_fields_usual_form_is_attacked_as_its_clients_normalised(
    cli: Any, system: Any, mode: str
) -> None:
    """It reads its maps in place of flattening them, writes into its images, and has BatchNorm."""
    images, labels = system
    Path("viewing_net.py").write_text(VIEWING)
    namespace: dict[str, Any] = {}
    exec(VIEWING, namespace)
    net = namespace["make"]()
    net(images[4:].clone())  # moves the running statistics
    state = {name: value.clone() for name, value in net.state_dict().items()}
    net.train(mode == "batch")
    loss = nn.functional.cross_entropy(net(images[:2].clone()), labels[:2])
    slopes = torch.autograd.grad(loss, list(net.parameters()))
    named = dict(zip(dict(net.named_parameters()), slopes, strict=True))
    recorder = Recorder(Path("up"))
    recorder.write(
        1, [Upload(0, 1, (GradientState(named),))], [Broadcast(1, (0,), (ModelState(state),))]
    )
    recorder.save()
    done = cli.attack(
        "--uploads", "up", "--network", "viewing_net:make", "--image-shape", "1x8x8", "--attack",
        "inverting-gradients", "--set", "attack.steps=3", "--set", "eval.per_update=2",
        "--json",
    )  # fmt: skip
    sys.modules.pop("viewing_net", None)
    assert done.code == 0, done.err
    record = json.loads((Path(done.events[-1]["folder"]) / "record.json").read_text())
    assert ("by running statistics" in json.dumps(record)) == (mode == "eval")
