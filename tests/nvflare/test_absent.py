"""Without NVFLARE its recorder says what to install."""

import importlib
import sys

import pytest

from fedre_privacy.core.errors import MissingExtraError


def test_the_recorder_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "fedre_privacy.nvflare.capture"
    for module in [one for one in sys.modules if one.partition(".")[0] == "nvflare"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "nvflare", None)
    with pytest.raises(MissingExtraError) as caught:
        importlib.import_module(name)
    assert "needs NVIDIA FLARE" in str(caught.value)
    assert "pip install 'fedre-privacy[nvflare]'" in str(caught.value)
