"""Ctrl-C and SIGTERM: one is enough, wherever it falls.

An exception that a signal raises inside a destructor or a callback of another package is lost. So
the signal is remembered too, and work asks for it whenever it reports or writes a file.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_came = threading.Event()


def check() -> None:
    """End the work if a signal came whose exception was lost.

    Raises:
        KeyboardInterrupt: one came, this is the main thread, and none is being handled.
    """
    if not _came.is_set() or threading.current_thread() is not threading.main_thread():
        return
    if not isinstance(sys.exception(), KeyboardInterrupt):
        raise KeyboardInterrupt


@contextmanager
def stoppable() -> Iterator[None]:
    """End a block on Ctrl-C and SIGTERM, so that what it holds is put away.

    Raises:
        KeyboardInterrupt: at the end of the block at the latest.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        _came.set()
        raise KeyboardInterrupt

    _came.clear()
    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, stop)}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else somebody wants it so
        before[signal.SIGINT] = signal.signal(signal.SIGINT, stop)
    try:
        yield
        check()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _came.clear()
