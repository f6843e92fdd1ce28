"""The benchmark of heads reports on nothing that `head` was chosen on."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch


@pytest.fixture(scope="module")
def heads(repo):
    sys.path.insert(0, str(repo / "benchmarks"))
    try:
        yield importlib.import_module("heads")
    finally:
        sys.path.remove(str(repo / "benchmarks"))
        for name in ("heads", "gradients"):
            sys.modules.pop(name, None)


@pytest.mark.parametrize("kind", ["digits", "cifar"])
def test_the_two_parts_share_no_image_and_no_seed(heads, kind):
    labels = torch.arange(10).repeat(400)
    tuning, report = (heads.rows_of(part, kind, labels) for part in ("tuning", "report"))
    assert len(tuning) >= 600 and len(report) >= 600
    assert not torch.isin(tuning, report).any()
    if kind == "cifar":
        assert torch.bincount(labels[report]).tolist() == [heads.PER_CLASS] * 10
        assert int(report.min()) >= heads.TUNED_HEAD  # what the part `head` of gradients.py omits
    heads.check_seeds("report", [0, 1, 2])
    heads.check_seeds("tuning", [heads.TUNED_SEEDS])
    for part, seed in (("report", heads.TUNED_SEEDS), ("tuning", 0)):
        with pytest.raises(ValueError, match="not of part"):
            heads.check_seeds(part, [seed])
