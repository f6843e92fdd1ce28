"""Low-rank messages: enough energy, never larger than dense, never empty."""

import pytest
import torch

from fedre_privacy.core.artifacts import LowRankModel
from fedre_privacy.protocols.fedkd import pack


def _shapes(state):
    return {name: tensor.shape for name, tensor in state.items()}


def _state():
    rng = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=rng)

    return {
        "low": draw(40, 3) @ draw(3, 30) + 0.01 * draw(40, 30),
        "full": draw(20, 20),
        "conv": draw(16, 2) @ draw(2, 75),
        "one": draw(12, 1),
        "bias": draw(9),
        "zero": torch.zeros(30, 30),
    } | {"conv4": (draw(16, 2) @ draw(2, 75)).reshape(16, 3, 5, 5)}


@pytest.mark.parametrize("energy", [0.5, 0.95, 0.98, 1.0])
def test_energy_rank_and_size(energy):
    state = _state()
    packed = pack(state, energy)
    back = LowRankModel(packed).parameters(_shapes(state))
    for name, tensor in state.items():
        sent = [v for k, v in packed.items() if k.rsplit(".", 1)[0] == name]
        assert sum(v.numel() for v in sent) <= tensor.numel()
        assert back[name].shape == tensor.shape
        lost = float((back[name] - tensor).square().sum())
        assert lost <= (1 - energy + 1e-5) * float(tensor.square().sum())
        if f"{name}.s" in packed:
            u, s, v = (packed[f"{name}.{part}"] for part in "UsV")
            rank = len(s)
            assert rank >= 1 and u.shape[1] == rank == v.shape[0]
            values = torch.linalg.svdvals(tensor.flatten(1)).square()
            if rank > 1:  # the smallest that is enough
                assert values[: rank - 1].sum() < energy * values.sum()


def test_what_is_factored_and_what_is_not():
    packed = pack(_state(), 0.98)
    assert {k for k in packed if k.endswith(".dense")} == {"full.dense", "one.dense", "bias.dense"}
    assert packed["low.s"].shape == (3,) and packed["conv4.U"].shape == (16, 2)
    assert packed["conv4.V"].shape == (2, 75)
    assert all(tensor.is_contiguous() for tensor in packed.values())


def test_a_matrix_that_needs_full_rank_is_not_lost():
    state = {"eye": torch.eye(10)}
    torch.testing.assert_close(LowRankModel(pack(state, 0.999)).parameters(_shapes(state)), state)
