"""What `invert` refuses before it spends a step."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedre_privacy.attacks.dip import DeepImagePrior
from fedre_privacy.core.errors import ConfigError, IncompatibleError


def test_an_absent_extractor_is_named(observe, rotation):
    seen = replace(observe([torch.ones(2, 256)], {(0, 1): rotation()}), extractors={})
    with pytest.raises(IncompatibleError, match="No extractor of client 0 in round 1"):
        DeepImagePrior(steps=1)(seen)


def test_a_target_of_another_length_is_refused_with_both(observe, rotation):
    seen = observe([torch.ones(2, 7)], {(0, 1): rotation()})
    with pytest.raises(IncompatibleError, match="returns 256 values; its upload holds 7"):
        DeepImagePrior(steps=1)(seen)


def test_no_row_is_refused(observe, rotation):
    with pytest.raises(IncompatibleError, match="nothing to attack"):
        DeepImagePrior(steps=1)(observe([torch.ones(0, 256)], {(0, 1): rotation()}))


def test_no_scale_is_refused():
    with pytest.raises(ConfigError, match="at least one scale"):
        DeepImagePrior(channels=())


def test_the_extractor_is_left_on_its_own(observe, rotation):
    net = nn.Sequential(rotation(), nn.Identity()).train()
    DeepImagePrior(steps=1)(observe([torch.ones(1, 256)], {(0, 1): net}))
    assert net.training
