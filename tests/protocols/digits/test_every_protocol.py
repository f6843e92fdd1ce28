"""What holds for every registered protocol: storage, repetition, resumption, learning, traffic."""

import itertools

import pytest
import torch

from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.federation import loop
from fedre_privacy.models.families import ModelSettings
from fedre_privacy.models.split import num_parameters
from fedre_privacy.protocols.base import protocols

NAMES = protocols.names()
OFTEN = ("fedavg", "fedgen", "fedkd", "fedre", "fedtgp")
"""Interrupted in every test run; the others in the slow ones."""


def _bytes(fed):
    return {path.name: path.read_bytes() for path in (fed.folder / "uploads").iterdir()}


@pytest.mark.parametrize(
    "name", [n if n in OFTEN else pytest.param(n, marks=pytest.mark.slow) for n in NAMES]
)
def test_interrupted_or_not_the_same_bytes(world, monkeypatch, name):
    """Also: the same seed twice gives the same uploads, broadcasts and state."""
    train = {"rounds": 3, "join_ratio": 0.67}
    whole = world(name, train=train)
    rows = whole.run()
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0)
    stopped = world(name, train=train)

    def stop(event):
        if event.data["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped.run(report=stop)
    torch.rand(5)
    resumed = world(name, train=train, folder=stopped.folder)
    again = resumed.run(resume=True)
    assert _bytes(resumed) == _bytes(whole)
    assert [{**r, "wall_s": 0} for r in again] == [{**r, "wall_s": 0} for r in rows]
    one, two = whole.state(), resumed.state()
    assert one.keys() == two.keys()
    assert [key for key in one if not torch.equal(one[key], two[key])] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_another_seed_is_another_run(world, name):
    one, two = (world(name, train={"rounds": 1, "seed": s}) for s in (0, 1))
    one.run()
    two.run()
    assert not torch.equal(one.parameters()["0/head.weight"], two.parameters()["0/head.weight"])


@pytest.mark.parametrize("name", NAMES)
def test_nobody_shares_storage(world, name):
    fed = world(name, train={"rounds": 2, "join_ratio": 0.67})
    for moment in ("before", "after"):
        places = {
            owner: {t.untyped_storage().data_ptr() for _, t in held if t.numel()}
            for owner, held in fed.held().items()
        }
        assert set(places) == {"server", "0", "1", "2"}
        for (a, one), (b, two) in itertools.combinations(places.items(), 2):
            assert not one & two, (moment, a, b)
        if moment == "before":
            fed.run()


HEADLINE = {  # the moment that protocols.md names
    **dict.fromkeys(NAMES, "post_broadcast"),
    **dict.fromkeys(["local", "fpl", "fedkd", "fedmrl", "fml", "fd", "fedral"], "post_local"),
}


SIZES = {
    "fedtgp": {"server_epochs": 100},
    "fedral": {"blocks": (1, 2)},
    "fedgen": {"hidden": 64, "steps": 20},
    **dict.fromkeys(["fedmrl", "fml", "fedapen", "fedkd"], {"small": ModelSettings(dim=128)}),
    "fedpft": {"local": "trained"},  # else nothing is
    "fedcgs": {"ridge": 0.01},  # of 512 values and fewer images the covariance is singular
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name != "fedsgd"])
def test_learns(world, name):
    """Six rounds on digits, three clients: at the headline moment well above chance (0.1)."""
    train = {"rounds": 6, "eval_every": 6, "batch_size": 8, "lr": 0.1, "epochs": 2}
    fed = world(name, per_class=40, dim=512, train=train, **SIZES.get(name, {}))
    assert fed.protocol.headline == HEADLINE[name]
    accuracy = fed.run()[-1][f"acc_{HEADLINE[name]}"]
    assert accuracy > 0.5, accuracy


D, C, H = 16, 10, 10 * 17


def expected_traffic(name, fed, round):
    """Scalars of one round: paper up, complete up, paper down, complete down (section 3)."""
    chosen = [u.client for u in fed.uploads(round)]
    s, model = len(chosen), num_parameters(fed.clients[0].model)
    present = {c.id: len(c.train.labels.unique()) for c in fed.clients}
    p = sum(present[k] for k in chosen)
    seen = len(set().union(*(set(fed.clients[k].train.labels.tolist()) for k in chosen)))
    small = fed.clients[0].memory.get("small")
    n = sum(len(fed.clients[k].train) for k in chosen)
    h = 12
    generator = (h + C) * h + h + 2 * h + h * D + D
    first = round == 1
    several = sum(
        int((fed.clients[k].train.labels.bincount() > 1).sum()) for k in chosen
    )  # a class of one image has no covariance
    full = D + D * (D + 1) // 2
    return {
        "local": (0, 0, 0, 0),
        "fedavg": (s * model, s * model, s * model, s * model),
        "fedsgd": (s * model, s * model, s * model, s * model),
        "fedala": (s * model, s * model, s * model, s * model),
        "fedavgdbe": (s * model, s * model, s * model, s * model),
        "lg-fedavg": (s * H, s * H, s * H, s * H),
        "fedproto": (p * D, p * D + p, *((0, 0) if first else (s * seen * D, s * seen * (D + 1)))),
        "fedtgp": (p * D, p * D + p, *((0, 0) if first else (s * C * D, s * C * (D + 1)))),
        "fpl": (p * D, p * D + p, *((0, 0) if first else (None, None))),
        "fedgh": (p * D, p * D + p, s * H, s * H),
        "fedgen": (s * H, s * H, s * H, s * (H + generator)),
        "fedkd": (None, None, None, None),
        **dict.fromkeys(
            ("fedmrl", "fml", "fedapen"), (s * num_parameters(small),) * 4 if small else None
        ),
        "fd": (p * C, p * (C + 1), *((0, 0) if first else (s * seen * C, s * seen * (C + 3)))),
        "fedral": (s * D * D // 4, s * D * D // 4, *((s * D * D // (1 if first else 4),) * 2)),
        "fedallrep": (n * D, n * (D + 1), s * H, s * H),
        "fedre": (s * D, s * (D + C), s * H, s * H),
        "fedcgs": (p * D + s * D * D, p * (D + 2) + s * D * D, s * H, s * H),
        "fedpft": (several * full, several * (full + 2), s * H, s * H),
    }[name]


ONCE = {  # scalars of the first exchange, up and down over three clients
    **dict.fromkeys(["fedavg", "fedsgd", "fedala", "lg-fedavg", "fedmrl", "fedral"], (3, 0)),
    "fedavgdbe": (3 + 3 * D, 3 * D),
    "fedgen": (3 * C, 3 * C),
}


@pytest.mark.parametrize("name", NAMES)
def test_traffic_follows_the_formulas(world, name):
    fed = world(name, train={"rounds": 2})
    rows = fed.run()
    for row in rows:
        round = row["round"]
        keys = ("up_scalars_paper", "up_scalars", "down_scalars_paper", "down_scalars")
        got = tuple(row[key] for key in keys)
        expected = expected_traffic(name, fed, round)
        for key, one, other in zip(keys, got, expected, strict=True):
            assert other is None or one == other, (round, key)
        assert bool(got[1]) == (name != "local")
        if name == "fpl" and round == 2:
            q = len(fed.sent(2, 0)[0].labels)
            assert got[2:] == (3 * q * D, 3 * q * (D + 1))
            assert 10 <= q <= 15  # three prototypes make at most one cluster a class
        if name == "fedkd":
            dense = num_parameters(fed.clients[0].memory["small"])
            assert got[0] == got[1] <= 3 * dense
            assert got[2] == got[3] == 3 * dense if round == 1 else got[3] <= 3 * dense
    if name in ONCE:
        up = sum(
            a.scalars()[key] for u in fed.uploads(0) for a in u.artifacts for key in a.scalars()
        )
        down = sum(
            len(b.recipients) * sum(a.scalars().values())
            for b in fed.broadcasts(0)
            for a in b.artifacts
        )
        assert (up, down) == ONCE[name]
    else:
        assert not (fed.folder / "uploads" / "r0000.safetensors").exists()


AVERAGED = ["fedavg", "fedsgd", "fedala", "fedavgdbe"]


@pytest.mark.parametrize("name", AVERAGED)
def test_different_architectures_cannot_be_averaged(world, name):
    with pytest.raises(IncompatibleError) as refused:
        world(name, models="cnn4,resnet4")
    for part in (f"'{name}' averages whole models", "client 1: resnet4", "--models cnn4"):
        assert part in str(refused.value)


@pytest.mark.parametrize("name", [n for n in NAMES if n not in AVERAGED])
def test_different_architectures_are_fine_elsewhere(world, name):
    fed = world(name, models="cnn4,resnet4", train={"rounds": 1})
    (row,) = fed.run()
    trains = bool(fed.protocol.modules(fed.clients[0]))
    assert 0 < row["loss"] < 100 if trains else row["loss"] == 0


@pytest.mark.parametrize(
    "name", ["lg-fedavg", "fedproto", "fedtgp", "fpl", "fedgen", "fedral", "fedgh", "fedre"]
)
def test_different_lengths_are_refused(world, name):
    import dataclasses

    fed = world(name)
    assert fed.protocol.check(fed.setting) == []
    uneven = dataclasses.replace(fed.setting, dims=(16, 32, 16))
    problems = fed.protocol.check(uneven)
    assert len(problems) == 1
    assert f"'{name}'" in problems[0] and "32" in problems[0] and "model.dim" in problems[0]


def test_fedral_needs_blocks_that_divide(world):
    with pytest.raises(IncompatibleError) as refused:
        world("fedral", blocks=(4, 3, 7))
    text = str(refused.value)
    assert "into 3 equal" in text and "into 7 equal" in text and "into 4 equal" not in text
    assert "Nearest that does: 2." in text and "Nearest that does: 8." in text


@pytest.mark.parametrize("small", [ModelSettings(dim=17), ModelSettings(), None])
def test_fedmrl_refuses_a_small_model_longer_than_the_own(world, small):
    given = {} if small is None else {"small": small}
    if small is None:
        protocol = protocols.get("fedmrl")()
        assert protocol.check(world("fedmrl").setting)  # the default of 128 exceeds 16
        return
    with pytest.raises(IncompatibleError, match=r"exceeds 16. Set protocol.small.dim lower"):
        world("fedmrl", **given)
