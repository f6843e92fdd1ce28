"""What does a federated-learning protocol leak through its uploads, and at what price?

`train`, `attack`, `audit` and `benchmark` are the commands as functions; `attack_module` attacks a
module of your own, without a run, and `load_images` reads images for it; `verify` checks that a
run's folder is what was recorded; `view` writes one page of all results; `claim`, `repeat` and
`leaderboard` publish results that others can repeat. They are loaded when first asked for, so that
importing the package stays light.
"""

from functools import cache
from importlib import import_module
from typing import Any

from .core.moved_modules import install as _let_old_paths_be_imported

__version__ = "0.1.0"
__all__ = [
    "__version__",
    "attack",
    "attack_module",
    "audit",
    "benchmark",
    "claim",
    "leaderboard",
    "load_images",
    "membership",
    "repeat",
    "train",
    "verify",
    "view",
]

_let_old_paths_be_imported()


def __getattr__(name: str) -> Any:
    if name in __all__:
        return _called(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def _called(name: str) -> Any:
    """One of the functions, which says clearly what the system refuses."""
    api = import_module(".api", __name__)
    return api.with_clear_errors(getattr(api, name))


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
