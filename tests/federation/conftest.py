"""The small federations of tests/protocols serve here too."""

import runpy
from pathlib import Path

_protocols = Path(__file__).parent.parent / "protocols"
federation = runpy.run_path(str(_protocols / "conftest.py"))["federation"]
world = runpy.run_path(str(_protocols / "digits" / "conftest.py"))["world"]
