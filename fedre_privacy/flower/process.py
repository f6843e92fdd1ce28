"""The process of one client: ``python -m fedre_privacy.flower.process --client 0 ...``.

It holds the client and starts the SuperNode that brings the server's messages; the two end
together, and a SuperNode that died is started again.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

from fedre_privacy.core.errors import FedreError, InUseError
from fedre_privacy.core.lock import held
from fedre_privacy.core.registry import import_plugins

from .client import Worker
from .commands import executable, variables
from .relay_line import read

RESTARTS = 5
"""SuperNodes that may die within `QUIET_SECONDS` of their start, one after another."""
QUIET_SECONDS = 60.0


def end_with_parent() -> None:
    """Let the system end this process with the one that started it (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
