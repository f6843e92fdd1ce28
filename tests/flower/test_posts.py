"""Messages that a SuperLink does not take are handed over again, and not for ever."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: extra 'flower'")

from flwr.app import ConfigRecord, RecordDict

from fedre_privacy.flower import app


class Grid:
    """One node that answers with its order turned round; the first pushes fail."""

    def __init__(self, failures):
        self.failures, self.taken = failures, {}

    def get_nodes(self):
        return [SimpleNamespace(node_id=7, status="online", name="client0", last_activated_at="1")]

    def push_messages(self, messages):
        if self.failures:
            self.failures -= 1
            raise RuntimeError("the push session may have expired")
        (message,) = messages
        self.taken["m1"] = message.content["fedre"]["bytes"]
        return ["m1"]

    def pull_messages(self, numbers):
        for number in numbers:
            content = RecordDict({"fedre": ConfigRecord({"bytes": self.taken[number][::-1]})})
            yield SimpleNamespace(
                metadata=SimpleNamespace(reply_to_message_id=number),
                content=content, has_content=lambda: True, has_error=lambda: False,
            )  # fmt: skip


@pytest.fixture(autouse=True)
def outside_of_a_run(monkeypatch):
    """Flower makes messages inside of a run alone; and nobody waits."""
    monkeypatch.setattr(app, "Message", lambda content, *_: SimpleNamespace(content=content))
    monkeypatch.setattr(app, "POLL_SECONDS", 0)


@pytest.mark.parametrize("failures", range(app.TRIES))
def test_a_message_that_was_not_taken_is_handed_over_again(failures):
    assert app.Posts(Grid(failures), 60)({0: b"abc"}) == {0: b"cba"}


def test_a_superlink_that_takes_nothing_is_given_up():
    grid = Grid(app.TRIES)
    with pytest.raises(RuntimeError, match="may have expired"):
        app.Posts(grid, 60)({0: b"abc"})
    assert grid.failures == 0
