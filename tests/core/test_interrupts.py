"""One Ctrl-C ends a command, wherever it falls."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

from fedre_privacy.cli.command import exit_code_of
from fedre_privacy.cli.output import Output
from fedre_privacy.core import files, interrupts
from fedre_privacy.core.events import Event

SIGNALS = [signal.SIGINT, signal.SIGTERM]
lost = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Loses:
    """Python drops what is raised in a destructor."""

    def __init__(self, number: signal.Signals) -> None:
        self.number = number

    def __del__(self) -> None:
        signal.raise_signal(self.number)


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    """A traceback is logged in the working directory."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def interruptible():
    """Ctrl-C is heard, also where a shell started the tests in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def command(body) -> int:
    output = Output(as_json=False, quiet=True)
    try:
        with interrupts.stoppable():
            return body(output)
    except BaseException as error:
        return exit_code_of(error, output, lambda: Path("log.txt"))


@lost
@pytest.mark.parametrize("number", SIGNALS)
def test_a_lost_signal_ends_a_command_at_its_next_file(number, tmp_path, capsys):
    def body(output: Output) -> int:
        one = Loses(number)
        del one
        files.write_text(tmp_path / "after", "x")
        raise AssertionError("it went on")

    assert command(body) == 130 and not (tmp_path / "after").exists()
    assert capsys.readouterr().err.startswith("Interrupted.")


@lost
@pytest.mark.parametrize("number", SIGNALS)
def test_at_its_next_event(number):
    def body(output: Output) -> int:
        one = Loses(number)
        del one
        output(Event("note", {"text": "next"}))
        raise AssertionError("it went on")

    assert command(body) == 130


@lost
def test_and_at_its_end():
    def body(output: Output) -> int:
        one = Loses(signal.SIGINT)
        del one
        return 0

    assert command(body) == 130
    assert command(lambda output: 0) == 0  # the next command knows nothing of it


def test_what_is_put_away_on_the_way_out_is_written(tmp_path):
    def body(output: Output) -> int:
        try:
            signal.raise_signal(signal.SIGINT)
        except BaseException:
            files.write_text(tmp_path / "record", "partial")
            raise
        finally:
            files.write_text(tmp_path / "more", "x")
        return 0

    assert command(body) == 130
    assert {path.name for path in tmp_path.iterdir()} == {"record", "more"}


def test_handlers_are_put_back_and_those_of_others_stay():
    before = [signal.getsignal(number) for number in SIGNALS]
    with interrupts.stoppable():
        assert signal.getsignal(signal.SIGINT) is not before[0]
    assert [signal.getsignal(number) for number in SIGNALS] == before
    own = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts.stoppable():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, own)


def test_in_another_thread_nothing_is_installed():
    found: list[bool] = []

    def work() -> None:
        with interrupts.stoppable():
            interrupts.check()
            found.append(signal.getsignal(signal.SIGINT) is signal.default_int_handler)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [True]
