"""Data sets and partitions are found under other words of the field too."""

from __future__ import annotations

import pytest

from fedre_privacy.core.errors import ConfigError
from fedre_privacy.data.base import datasets
from fedre_privacy.partition.base import partitions


@pytest.mark.parametrize("registry", [datasets, partitions], ids=lambda registry: registry.what)
def test_other_words_of_the_field_lead_to_one_name(registry):
    words = [word for name in registry.names() for word in registry.get(name).also]
    assert words and len(set(words)) == len(words) and not set(words) & set(registry.names())
    for word, name in registry.other_words().items():
        with pytest.raises(ConfigError, match=f"Did you mean '{name}'"):
            registry.get(word.upper())
