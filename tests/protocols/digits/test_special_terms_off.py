"""A protocol whose special term is switched off is the simpler protocol that it extends."""

import pytest
import torch

from fedre_privacy.core.artifacts import SmallModelState

CASES = {
    "fedproto without pull": ("fedproto", {"weight": 0.0}, "local"),
    "fedtgp without pull": ("fedtgp", {"weight": 0.0}, "local"),
    "fd without distillation": ("fd", {"weight": 0.0}, "local"),
    "fml without teaching": ("fml", {"private_share": 1.0, "meme_share": 1.0}, "local"),
    "fedral without matrix": ("fedral", {"init": 0.0, "train_matrix": False}, "local"),
    "fedavgdbe without both": ("fedavgdbe", {"kappa": 0.0, "shift": False}, "fedavg"),
    "fedala that keeps W = 1": ("fedala", {"eta": 1e-12}, "fedavg"),
    "fedgen without generator": ("fedgen", {"weight": 0.0}, "lg-fedavg"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_equals_the_simpler_protocol(world, case):
    name, options, simpler = CASES[case]
    train = {"rounds": 3, "join_ratio": 0.67}
    one, other = world(name, train=train, **options), world(simpler, train=train)
    start = one.parameters()
    one.run()
    other.run()
    torch.testing.assert_close(one.parameters(), other.parameters(), rtol=0, atol=1e-6)
    assert all(not torch.equal(v, start[k]) for k, v in one.parameters().items() if k[0] == "0")


@pytest.mark.parametrize("name", ["fedproto", "fedtgp", "fpl", "fd"])
def test_before_anything_was_shared_a_round_is_local(world, name):
    one, other = world(name, train={"rounds": 2}), world("local", train={"rounds": 2})
    one.run()
    other.run()

    def after(fed, round):
        return {k: dict(c.model.named_parameters()) for k, c in enumerate(fed.kept[round])}

    torch.testing.assert_close(after(one, 1), after(other, 1), rtol=0, atol=0)
    head, same = (after(fed, 2)[0]["extractor.backbone.0.weight"] for fed in (one, other))
    assert not torch.equal(head, same)  # from the second round on it is not


def test_fedala_begins_as_fedavg(world):
    one, other = (world(name, train={"rounds": 1}) for name in ("fedala", "fedavg"))
    one.run()
    other.run()
    mine, theirs = (fed.server.modules["model"].state_dict() for fed in (one, other))
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


def test_fedkd_at_full_energy_averages_students(world):
    fed = world("fedkd", energy_start=1.0, energy_end=1.0, train={"rounds": 2})
    fed.run()
    students = [dict(c.memory["small"].named_parameters()) for c in fed.kept[2]]
    for name, value in fed.server.modules["small"].named_parameters():
        mean = sum(s[name] for s in students) / 3
        torch.testing.assert_close(value, mean, rtol=1e-4, atol=1e-5)


def test_fedmrl_without_own_loss_leaves_the_own_head(world):
    fed = world("fedmrl", own_weight=0.0, train={"rounds": 1})
    before = fed.parameters()
    fed.run()
    after = fed.parameters()
    assert torch.equal(before["0/head.weight"], after["0/head.weight"])
    assert not torch.equal(
        before["0/extractor.backbone.0.weight"], after["0/extractor.backbone.0.weight"]
    )
    coarse = world("fedmrl", small_weight=0.0, train={"rounds": 1})
    coarse.run()
    (start,), (end,) = coarse.sent(1, 0), coarse.sent(2, 0)
    assert isinstance(start, SmallModelState)
    assert torch.equal(start.params["head.weight"], end.params["head.weight"])
    assert not torch.equal(
        start.params["extractor.backbone.0.weight"], end.params["extractor.backbone.0.weight"]
    )


def test_fedapen_that_does_not_relearn_keeps_its_weight(world):
    fed = world("fedapen", lambda_epochs=0, train={"rounds": 2})
    fed.run()
    assert [float(c.tensors["lambda"]) for c in fed.clients] == [0.5] * 3
