"""What every partition and every data set promises; a new one is tested by being registered."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedre_privacy.core.config import build_plugin, knobs, plain_plugin
from fedre_privacy.core.errors import ConfigError, MissingInputError
from fedre_privacy.data.base import datasets
from fedre_privacy.partition.base import partitions, split

LABELS = np.random.RandomState(0).permutation(np.repeat(np.arange(10), 150)).astype(np.int64)


@pytest.mark.parametrize("name", partitions.names())
def test_a_partition_shares_every_class_out_and_nothing_twice(name):
    made = partitions.get(name)()
    assert made.name == name and type(made).__doc__
    assert made.shorthand in ("", *(knob.name for knob in knobs(type(made))))
    problems: list[str] = []
    assert build_plugin(partitions, plain_plugin(made), at="partition", problems=problems) == made
    for clients in (5, 10):
        one, again, other = (split(made, LABELS, clients, seed) for seed in (1, 1, 2))
        assert (one.sha256_train, one.sha256_test) == (again.sha256_train, again.sha256_test)
        assert len(one.train) == len(one.test) == clients
        whole = np.concatenate([*one.train, *one.test])
        assert len(np.unique(whole)) == len(whole) and whole.min() >= 0
        assert whole.max() < len(LABELS) and all(len(own) for own in one.train)
        assert set(LABELS[whole]) == set(range(10))
        assert one.class_counts(LABELS, 10).sum() == sum(len(own) for own in one.train)
        assert {len(own) for own in other.train} and len(other.train) == clients


@pytest.mark.parametrize("registry", [datasets, partitions], ids=lambda registry: registry.what)
def test_other_words_of_the_field_lead_to_one_name(registry):
    words = [word for name in registry.names() for word in registry.get(name).also]
    assert words and len(set(words)) == len(words) and not set(words) & set(registry.names())
    for word, name in registry.other_words().items():
        with pytest.raises(ConfigError, match=f"Did you mean '{name}'"):
            registry.get(word.upper())


@pytest.mark.parametrize("name", datasets.names())
def test_a_data_set_loads_the_same_bytes_every_time(name):
    try:
        made = datasets.get(name)(per_class=4)
        data = made.load()
    except (MissingInputError, ConfigError) as error:
        assert str(error)  # it says which file is needed
        pytest.skip(f"{name} needs files")
    assert data.name == name and data.images.dtype == torch.uint8
    assert data.sha256 == datasets.get(name)(per_class=4).load().sha256
    parts = (data.labels[: data.num_train], data.labels[data.num_train :])
    for labels in parts:
        assert int(torch.bincount(labels, minlength=1).max()) <= 4
    assert all(path.exists() for path in made.sources())
