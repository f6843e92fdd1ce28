"""What the metrics say was sent, the published formulas, and what lies in the files."""

import math

import pytest
from safetensors import safe_open

from fedre_privacy.federation import loop
from fedre_privacy.protocols.base import protocols

C, D = 4, 6


def _upload_formulas(name, setting, chosen):
    """Numbers of each sort that the chosen clients send: (vectors, classes or mixes)."""
    samples = sum(sum(setting.class_counts[k]) for k in chosen)
    pairs = sum(sum(1 for n in setting.class_counts[k] if n) for k in chosen)
    return {
        "fedre": (len(chosen) * D, len(chosen) * C),
        "fedgh": (pairs * D, pairs),
        "fedallrep": (samples * D, samples),
        "local": (0, 0),
    }[name]


def _in_file(path, direction):
    """(scalars, bytes) that a file holds in one direction, without headers."""
    scalars = size = 0
    with safe_open(path, framework="pt") as handle:
        for key in handle.keys():  # noqa: SIM118
            if key.startswith(f"{direction}/"):
                tensor = handle.get_tensor(key)
                scalars += tensor.numel()
                size += tensor.numel() * tensor.element_size()
    return scalars, size


@pytest.mark.parametrize("join_ratio", [1.0, 0.67])
@pytest.mark.parametrize("name", ["fedre", "fedgh", "fedallrep", "local"])
def test_the_ledger_equals_the_formulas_and_the_files(federation, name, join_ratio):
    fed = federation(protocols.get(name)(), join_ratio=join_ratio)
    for round, row in enumerate(fed.run(), start=1):
        chosen = loop.select(fed.training, round)
        assert len(chosen) == math.floor(3 * join_ratio)
        vectors, extras = _upload_formulas(name, fed.setting, chosen)
        assert row["up_scalars"] == vectors + extras
        assert row["up_scalars_paper"] == vectors
        extra_size = 4 if name == "fedre" else 8  # mixes are float32, labels int64
        assert row["up_bytes"] == 4 * vectors + extra_size * extras
        down = 0 if name == "local" else len(chosen) * C * (D + 1)
        assert row["down_scalars"] == row["down_scalars_paper"] == down
        assert row["down_bytes"] == 4 * down

        path = fed.folder / "uploads" / f"r{round:04d}.safetensors"
        assert _in_file(path, "upload") == (row["up_scalars"], row["up_bytes"])
        once = _in_file(path, "broadcast")
        assert [n * len(chosen) for n in once] == [row["down_scalars"], row["down_bytes"]]
