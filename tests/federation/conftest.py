"""The small federation of tests/protocols serves here too."""

import runpy
from pathlib import Path

_shared = Path(__file__).parent.parent / "protocols" / "conftest.py"
federation = runpy.run_path(str(_shared))["federation"]
