"""What every kind of artifact declares."""

from __future__ import annotations

import pytest

from fedre_privacy.core.artifact_schema import Holds, Role, Sum
from fedre_privacy.core.artifacts import Artifact


@pytest.mark.parametrize("kind", [kind for kind in Artifact.kinds.values() if kind.kind])
def test_kinds_declare_what_fits_together(kind):
    assert kind.roles <= set(Role) and kind.summed in Sum and kind.holds in (None, *Holds)
    assert all(issubclass(other, Artifact) and other is not kind for other in kind.like)
    assert not {Role.VECTORS, Role.TRAINED} <= kind.roles
    if Role.COLLECTED in kind.roles:
        assert Role.VECTORS in kind.roles and kind.rows is not Artifact.rows
    if kind.holds is not None:
        assert kind.updates
