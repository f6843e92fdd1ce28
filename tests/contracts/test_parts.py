"""Every registered part keeps what every part of its kind promises; see `fedre_privacy.testing`."""

from __future__ import annotations

import pytest

from fedre_privacy.testing import SUITES, NotApplicable, checks


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, id=f"{kind}-{name}-{title}")
        for kind, suite in SUITES.items()
        for name in suite.registry.names()
        for title, check in checks(kind, name)
    ],
)
def test_a_part_keeps_its_promise(check):
    try:
        check()
    except NotApplicable as error:
        pytest.skip(str(error))
