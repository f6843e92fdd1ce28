"""Uploads of another system that are not what their kind says: attacked, told, or left out."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fedre_privacy.core.artifacts import (
    Artifact,
    GradientState,
    HeadState,
    ModelChange,
    ModelState,
    Prototypes,
    Representations,
)
from fedre_privacy.core.types import Broadcast, Upload
from fedre_privacy.federation.recorder import Recorder

State = Mapping[str, Tensor]
MODULE = """
import torch
from torch import nn

def made():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Sigmoid(), nn.Flatten(),
        nn.Linear(256, 4),
    )

def make():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return made()

def other():
    return made()

def wrapped():
    return nn.DataParallel(make())

def extractor():
    return make()[:4]
"""
HEAD = ("4.weight", "4.bias")
GIVEN = ("--uploads", "up", "--network", "net_kinds:make", "--image-shape", "1x8x8", "--dry-run")


@pytest.fixture(autouse=True)
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("net_kinds.py").write_text(MODULE)
    import net_kinds  # type: ignore[import-not-found]

    yield net_kinds
    sys.modules.pop("net_kinds", None)


def images(count: int = 4) -> Tensor:
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def gradient(model: nn.Module, client: int) -> dict[str, Tensor]:
    """Of one image of class `client`, in evaluation mode, for parameters that take one."""
    named = {name: value for name, value in model.named_parameters() if value.requires_grad}
    loss = nn.functional.cross_entropy(model.eval()(images()[client, None]), torch.tensor([client]))
    return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))


def state(model: nn.Module, lr: float = 0.0, client: int = 0) -> dict[str, Tensor]:
    """Its state after one step; with `lr` 0 as it is."""
    moved = gradient(model, client) if lr else {}
    return {
        name: value.detach() - lr * moved[name] if name in moved else value.detach().clone()
        for name, value in model.state_dict().items()
    }


def record(sent: State, *uploads: Artifact | tuple[Artifact, ...], **told: Any) -> None:
    """Round 1: what the server sent to all, and what each client uploaded."""
    recorder = Recorder(Path("up"))
    clients = [
        Upload(client, 1, one if isinstance(one, tuple) else (one,))
        for client, one in enumerate(uploads)
    ]
    everyone = tuple(range(len(clients)))
    recorder.write(1, clients, [Broadcast(1, everyone, (ModelState(sent),))])
    recorder.save()
    sizes = {str(client): 1 for client in everyone}
    told = {"schema": 1, "lr": 0.1, "epochs": 1, "batch_size": 1, "sizes": sizes, **told}
    Path("up/training.json").write_text(json.dumps(told))


def attacker(cli: Any, *more: str, attack: str = "update-inversion") -> str:
    done = cli.attack(*GIVEN, "--attack", attack, *more)
    assert done.code == 0, done.err
    return str(done.line("Attacker"))


# --- uploads that are not what their kind says ---------------------------------------------------


def spoiled(good: State, name: str, value: Tensor) -> State:
    return {**good, name: value}


def wrongs(model: nn.Module) -> dict[str, tuple[State, str]]:
    """An upload of client 1 that costs client 1, and what is said of it."""
    good, sent = state(model, 0.1, 1), state(model)
    numbers = {n: (40 * v).round() for n, v in good.items()}
    return {
        "not a number": (
            spoiled(good, "4.bias", torch.full((4,), torch.nan)),
            "not finite",
        ),
        "another shape": (spoiled(good, "4.bias", torch.zeros(5)), "'4.bias' is (5,), not (4,)"),
        "another name": ({**good, "5.weight": torch.zeros(3)}, "'5.weight' is not of the network"),
        "a straggler": (sent, "equals what it was sent, bit for bit"),
        "codes": (numbers, "whole numbers only"),
        "a sum": ({n: 7 * v for n, v in good.items()}, "a sum or a share"),
    }


@pytest.mark.parametrize(
    "case", ["not a number", "another shape", "another name", "a straggler", "codes", "a sum"]
)
def test_a_bad_upload_costs_its_client_and_no_other(cli: Any, net: Any, case: str) -> None:
    model = net.make()
    bad, word = wrongs(model)[case]
    record(state(model), *(ModelState(one) for one in (state(model, 0.1, 0), bad,
                                                      state(model, 0.1, 2))))  # fmt: skip
    said = attacker(cli, "--set", "eval.targets=3")
    assert "left out: client 1: " in said and word in said
    assert "client 0" not in said and "client 2" not in said


@pytest.mark.parametrize("case", ["not a number", "a straggler", "codes", "a sum"])
def test_a_round_of_bad_uploads_is_one_error(cli: Any, net: Any, case: str) -> None:
    model = net.make()
    bad, word = wrongs(model)[case]
    record(state(model), ModelState(bad), ModelState(bad))
    done = cli.attack(*GIVEN, "--attack", "update-inversion")
    assert done.code in (3, 4) and "Clients 0, 1: " in done.err and word in done.err, done.err


@pytest.mark.slow
def test_the_truth_of_others_stays_where_it_was(cli: Any, net: Any) -> None:
    """Rows of the truth are counted over all uploads, those that were left out too."""
    model = net.make()
    bad = spoiled(state(model, 0.1, 0), "4.bias", torch.full((4,), torch.inf))
    record(state(model), ModelState(bad), *(ModelState(state(model, 0.1, k)) for k in (1, 2)))
    np.savez("truth.npz", images=images(3).numpy(), row=np.arange(3))
    np.savez("public.npz", images=torch.rand(8, 1, 8, 8).numpy())
    given = [word for word in GIVEN if word != "--dry-run"]
    done = cli.attack(
        *given, "--attack", "update-inversion", "--set", "attack.steps=120", "--set",
        "attack.bn=eval", "--truth", "npz:truth.npz", "--aux", "npz:public.npz", "--metrics",
        "psnr", "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    folder = Path(done.events[-1]["folder"])
    rows = np.genfromtxt(folder / "scores.csv", delimiter=",", names=True)
    assert rows["client"].tolist() == [1, 2] and rows["psnr"].min() > 15, rows["psnr"]


def test_a_difference_recorded_as_a_model_is_read_as_one(cli: Any, net: Any) -> None:
    model = net.make()
    before, after = state(model), state(model, 0.1)
    change = {name: after[name] - before[name] for name, _ in model.named_parameters()}
    record(before, ModelState(change), ModelChange(change))
    said = attacker(cli)
    assert "client 0: its model is" in said and "read as a difference (kind change)" in said
    assert "client 1" not in said


@pytest.mark.slow
def test_a_change_is_answered_as_the_model_that_it_leads_to(cli: Any, net: Any) -> None:
    model = net.make()
    before, after = state(model), state(model, 0.1)
    change = {name: after[name] - before[name] for name, _ in model.named_parameters()}
    given = [word for word in GIVEN if word != "--dry-run"]
    folders = []
    for artifact in (ModelState(after), ModelChange(change)):
        record(before, artifact)
        done = cli.attack(
            *given, "--attack", "update-inversion", "--set", "attack.steps=30", "--set",
            "attack.bn=eval", "--json",
        )  # fmt: skip
        assert done.code == 0, done.err
        folders.append(Path(done.events[-1]["folder"]))
    one, other = (np.genfromtxt(f / "scores.csv", delimiter=",", names=True) for f in folders)
    assert folders[0] != folders[1] and np.allclose(one["fit"], other["fit"], atol=1e-3)


def test_a_sum_over_images_is_divided_by_their_number(cli: Any, net: Any) -> None:
    model = net.make()
    summed = {name: 12 * value for name, value in state(model, 0.1).items()}
    record(state(model), ModelState(summed), sizes={"0": 12}, batch_size=12)
    assert "client 0: its model is a sum, divided by its 12 images" in attacker(cli)


def masks(kept: float) -> Callable[[Tensor], Tensor]:
    rng = torch.Generator().manual_seed(2)
    return lambda value: value * (torch.rand(value.shape, generator=rng) < kept)


def test_masked_uploads_are_told_and_their_zeros_not_compared(cli: Any, net: Any) -> None:
    model, cut = net.make(), masks(0.2)
    sparse = {name: cut(value) for name, value in gradient(model, 0).items()}
    record(state(model), GradientState(sparse))
    said = attacker(cli, attack="inverting-gradients")
    assert "taken as masked" in said and "adaptive to masked uploads" in said
    record(state(model), GradientState(gradient(model, 0)))
    assert "masked" not in attacker(cli, attack="inverting-gradients")


def test_a_model_of_which_most_is_zero_keeps_what_was_sent_there(cli: Any, net: Any) -> None:
    model, cut = net.make(), masks(0.5)
    sparse = {name: cut(value) for name, value in state(model, 0.1).items()}
    record(state(model), ModelState(sparse))
    said = attacker(cli)
    assert "of its model is zero: taken as masked, and as not sent" in said
    assert "adaptive to masked uploads" in said


def test_signs_and_codes_of_gradients_are_told(cli: Any, net: Any) -> None:
    model = net.make()
    signs = {name: value.sign() for name, value in gradient(model, 0).items()}
    codes = {name: (1e3 * value).round().to(torch.int32) for name, value in
             gradient(model, 1).items()}  # fmt: skip
    record(state(model), GradientState(signs), GradientState(codes))
    said = attacker(cli, attack="inverting-gradients")
    assert "client 0: holds signs only (-1 to 1)" in said
    assert "client 1: holds whole numbers only" in said


# --- parts of models -----------------------------------------------------------------------------


def test_a_frozen_stem_sent_as_a_whole_state_leaves_the_match(cli: Any, net: Any) -> None:
    model = net.make()
    model[0].requires_grad_(False)
    record(state(model), ModelState(state(model, 0.1)))
    said = attacker(cli)
    assert "client 0: 0.weight, 0.bias as it was sent, left out of the match" in said


PARTS: dict[str, tuple[Callable[[State], State], Callable[[State], State], str]] = {
    "head alone": (
        lambda sent: sent,
        lambda new: {name: new[name] for name in HEAD},
        "0.weight, 0.bias, 1.weight, 1.bias not in the upload",
    ),
    "head alone, both ways": (
        lambda sent: {name: sent[name] for name in HEAD},
        lambda new: {name: new[name] for name in HEAD},
        "not sent, taken as --network makes them",
    ),
    "head under its own names": (
        lambda sent: sent,
        lambda new: {name[2:]: new[name] for name in HEAD},
        "names taken as those of '4'",
    ),
    "DataParallel": (
        lambda sent: {f"module.{name}": value for name, value in sent.items()},
        lambda new: {f"module.{name}": value for name, value in new.items()},
        "names taken without what wrappers put in",
    ),
    "torch.compile of DataParallel, one way": (
        lambda sent: sent,
        lambda new: {f"_orig_mod.module.{name}": value for name, value in new.items()},
        "names taken without what wrappers put in",
    ),
    "a second record": (
        lambda sent: {f"arrays.{name}": value for name, value in sent.items()},
        lambda new: {**{f"arrays.{name}": value for name, value in new.items()},
                     "control.4.bias": new["4.bias"]},
        "control.4.bias left out",
    ),
    "no buffers": (
        lambda sent: {name: v for name, v in sent.items() if "running" not in name},
        lambda new: new,
        "1.running_mean, 1.running_var not given",
    ),
    "a count of one number": (
        lambda sent: {**sent, "1.num_batches_tracked": torch.tensor([3])},
        lambda new: {**new, "1.num_batches_tracked": torch.tensor([4])},
        "",
    ),
    "a list of parameters": (
        lambda sent: {str(i): v for i, v in enumerate(v for n, v in sent.items()
                                                      if "running" not in n and "num" not in n)},
        lambda new: {str(i): v for i, v in enumerate(v for n, v in new.items()
                                                     if "running" not in n and "num" not in n)},
        "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PARTS)
def test_parts_of_models_and_other_names_are_attacked(cli: Any, net: Any, case: str) -> None:
    sending, receiving, word = PARTS[case]
    model = net.make()
    record(sending(state(model)), ModelState(receiving(state(model, 0.1))))
    assert word in attacker(cli)
    assert cli.attack(*GIVEN, "--attack", "labels").code == 0


def test_a_wrapped_network_takes_bare_names(cli: Any, net: Any) -> None:
    model = net.make()
    record(state(model), ModelState(state(model, 0.1)))
    done = cli.attack(*GIVEN, "--network", "net_kinds:wrapped", "--attack", "update-inversion")
    assert done.code == 0, done.err


def test_a_head_recorded_as_one_is_attacked_as_part_of_the_model(cli: Any, net: Any) -> None:
    model = net.make()
    new = state(model, 0.1)
    record(state(model), HeadState({name[2:]: new[name] for name in HEAD}))
    assert "names taken as those of '4'" in attacker(cli)


def test_a_second_artifact_that_fits_nothing_costs_nothing(cli: Any, net: Any) -> None:
    model = net.make()
    beside = ModelState({"generator.weight": torch.rand(3, 3)})
    record(state(model), (beside, ModelState(state(model, 0.1))))
    assert "left out beside it: its model does not fit the network" in attacker(cli)


def test_a_list_of_gradients_is_in_the_order_of_parameters(cli: Any, net: Any) -> None:
    model = net.make()
    listed = {str(place): value for place, value in enumerate(gradient(model, 0).values())}
    record(state(model), GradientState(listed))
    said = attacker(cli, attack="inverting-gradients")
    assert "left out" not in said


def test_parameters_that_nobody_sent_must_be_the_same_each_time(cli: Any, net: Any) -> None:
    model = net.make()
    part = {name: value for name, value in state(model).items() if name in HEAD}
    new = state(model, 0.1)
    record(part, ModelState({name: new[name] for name in HEAD}))
    done = cli.attack(*GIVEN, "--network", "net_kinds:other", "--attack", "update-inversion")
    assert done.code == 3 and "makes other values each time" in done.err


@pytest.mark.slow
@pytest.mark.parametrize("kind", [GradientState, ModelState])
def test_adapters_alone_are_attacked(cli: Any, net: Any, kind: type[Artifact]) -> None:
    """Without the head, labels are those whose simulated gradients explain the rest."""
    model = net.make()
    sent = [gradient(model, k) if kind is GradientState else state(model, 0.1, k) for k in range(3)]
    record(state(model), *(kind({n: v for n, v in one.items() if n not in HEAD}) for one in sent))
    given = [word for word in GIVEN if word != "--dry-run"]
    attack = "inverting-gradients" if kind is GradientState else "update-inversion"
    more = ("--set", "attack.steps=2", "--set", "eval.targets=3", "--json")
    done = cli.attack(*given, "--attack", attack, *more)
    assert done.code == 0, done.err
    folder = Path(done.events[-1]["folder"])
    rows = np.genfromtxt(folder / "scores.csv", delimiter=",", names=True)
    assert rows["label"].tolist() == [0, 1, 2]


def test_what_reads_one_layer_says_that_it_was_not_sent(cli: Any, net: Any) -> None:
    net.make = lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 4))
    model = net.make()
    part = {n: v for n, v in gradient(model, 0).items() if n.startswith("3.")}
    record(state(model), GradientState(part))
    given = [word for word in GIVEN if word != "--dry-run"]
    done = cli.attack(*given, "--attack", "analytic", "--isolation", "same-process")
    assert done.code == 3 and "holds nothing of 1.weight and 1.bias" in done.err, done.err


# --- vectors -------------------------------------------------------------------------------------


def record_rows(*artifacts: Artifact) -> None:
    recorder = Recorder(Path("up"))
    recorder.write(1, [Upload(client, 1, (one,)) for client, one in enumerate(artifacts)], [])
    recorder.save()


def rows_said(cli: Any, *more: str) -> str:
    done = cli.attack(
        "--uploads", "up", "--extractor", "net_kinds:extractor", "--weights", "w.safetensors",
        "--image-shape", "1x8x8", "--attack", "dip", "--dry-run", *more,
    )  # fmt: skip
    assert done.code == 0, done.err
    return str(done.line("Attacker"))


@torch.no_grad()
def vectors(net: Any) -> Tensor:
    found: Tensor = net.extractor().eval()(images())
    return found


def test_vectors_are_held_against_what_the_extractor_returns(cli: Any, net: Any) -> None:
    made, labels = vectors(net), torch.arange(4)
    save_file(net.extractor().state_dict(), "w.safetensors")
    kept = made.topk(64, dim=1).indices
    sparse = torch.zeros_like(made).scatter(1, kept, made.gather(1, kept))
    record_rows(
        Prototypes(made, labels),
        Prototypes(20 * made, labels),
        Prototypes((100 * made).round(), labels),
        Prototypes(sparse, labels),
    )
    said = rows_said(cli, "--set", "eval.targets=16")
    assert "client 0" not in said
    assert re.search(r"client 1: prototypes are \d+ times as long .* sums in place of means", said)
    assert re.search(r"client 2: prototypes are whole numbers \(\d+ to \d+\)", said)
    assert "client 3: 75% of prototypes are zero" in said
    assert "adaptive to masked vectors" in said


@pytest.mark.parametrize("bad", [torch.full((2, 256), torch.nan), torch.zeros(2, 9)])
def test_bad_vectors_cost_their_client(cli: Any, net: Any, bad: Tensor) -> None:
    made = vectors(net)
    save_file(net.extractor().state_dict(), "w.safetensors")
    record_rows(Representations(bad, torch.arange(2)), Representations(made, torch.arange(4)))
    np.savez("truth.npz", images=torch.cat([torch.zeros(2, 1, 8, 8), images()]).numpy())
    np.savez("public.npz", images=torch.rand(8, 1, 8, 8).numpy())
    truth = ("--truth", "npz:truth.npz", "--aux", "npz:public.npz", "--metrics", "psnr")
    assert "left out: client 0: " in rows_said(cli, *truth)


CHECKPOINTS: dict[str, tuple[Callable[[State], State], str]] = {
    "with a head": (
        lambda own: {**own, "4.weight": torch.zeros(4, 256)},
        "4.weight left out, which the module does not have",
    ),
    "of DataParallel": (
        lambda own: {f"module.{name}": v for name, v in own.items()},
        "without what wrappers put in",
    ),
    "inside a larger model": (
        lambda own: {**{f"backbone.{n}": v for n, v in own.items()}, "fc.bias": torch.zeros(4)},
        "names taken without 'backbone.'",
    ),
    "without buffers": (
        lambda own: {
            name: v for name, v in own.items() if name.split(".")[1] in ("weight", "bias")
        },
        "taken as a new module has them",
    ),
    "with a count of one number": (
        lambda own: {**own, "1.num_batches_tracked": torch.tensor([3])},
        "",
    ),
}


@pytest.mark.parametrize("case", CHECKPOINTS)
def test_checkpoints_as_people_have_them(cli: Any, net: Any, case: str) -> None:
    changed, word = CHECKPOINTS[case]
    save_file(changed(net.extractor().state_dict()), "w.safetensors")
    record_rows(Representations(vectors(net), torch.arange(4)))
    assert word in rows_said(cli)
