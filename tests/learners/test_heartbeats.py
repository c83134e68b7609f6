"""Heartbeats: processes that end, hang or leave in order, and connections of strangers."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuvec.errors import ProcessesError
from gpuvec.learners.shards import heartbeats
from gpuvec.learners.shards.heartbeats import HeartbeatMonitor, connect_heartbeats
from gpuvec.learners.shards.torchrun import Launch


@pytest.fixture(autouse=True)
def quick_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the times, and keeps the process of the tests alive after a loss."""
    monkeypatch.setattr(heartbeats, "INTERVAL", 0.05)
    monkeypatch.setattr(heartbeats, "SECONDS_TO_LEAVE", 1000.0)


def wait_until(condition: Any) -> None:
    """Waits for a condition that another thread makes true."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


class Store:
    """A store of one process."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, name: str, text: str) -> None:
        self.values[name] = text.encode()

    def get(self, name: str) -> bytes:
        wait_until(lambda: name in self.values)
        return self.values[name]


@contextmanager
def monitors(size: int) -> Iterator[list[HeartbeatMonitor]]:
    """The monitors of so many processes, all in this one."""
    store, connections = Store(), [dict[int, socket.socket]() for _ in range(size)]

    def connect(rank: int) -> None:
        connections[rank] = connect_heartbeats(Launch(rank, size, rank, "127.0.0.1", 0), store, 60.0)

    threads = [threading.Thread(target=connect, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with ExitStack() as stack:
        result = [HeartbeatMonitor(rank, connections[rank], lambda: None) for rank in range(size)]
        for monitor in result:
            stack.callback(monitor.close)
        yield result


def test_all_learn_which_process_ended_and_one_of_them_reports_it() -> None:
    with monitors(4) as (first, second, third, fourth):
        third.close()
        wait_until(lambda: first.loss and second.loss and fourth.loss)
        assert first.loss == "another process of the training is lost: process 2 ended."
        assert second.loss == "another process of the training is lost: process 2 ended or has not answered."
        assert [monitor.is_first_alive for monitor in (first, second, fourth)] == [True, False, False]


def test_the_second_process_reports_the_end_of_the_first() -> None:
    with monitors(3) as (first, second, third):
        first.close()
        wait_until(lambda: second.loss and third.loss)
        assert "process 0 ended" in third.loss
        assert (second.is_first_alive, third.is_first_alive) == (True, False)


def test_a_silent_process_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats, "MAX_SILENT_INTERVALS", 4)
    own, other = socket.socketpair()
    lost: list[str] = []
    monitor = HeartbeatMonitor(0, {1: own}, lambda: lost.append(monitor.loss))
    wait_until(lambda: lost)
    assert lost == ["another process of the training is lost: process 1 has not answered for 0 s."]
    assert other.recv(1000).endswith(b"alive\nlost 1\n")
    monitor.close()
    other.close()


def test_processes_that_send_or_leave_in_order_are_not_lost() -> None:
    with monitors(3) as (first, second, third):
        third.say_goodbye()
        third.close()
        time.sleep(3 * heartbeats.INTERVAL)
        assert (first.loss, second.loss) == ("", "")


def test_processes_that_leave_one_after_the_other_do_not_lose_each_other() -> None:
    with monitors(2) as (first, second):
        first.say_goodbye()
        first.close()
        time.sleep(2 * heartbeats.INTERVAL)
        second.close()  # an error may end it without a goodbye, when the first one has left
        assert (first.loss, second.loss) == ("", "")


def test_the_end_of_the_process_that_started_this_one_is_a_loss() -> None:
    monitor = HeartbeatMonitor(0, {}, lambda: None, parent=os.getpid())  # which is not the parent
    wait_until(lambda: monitor.loss)
    assert monitor.loss.endswith("the process that started this one ended.")
    monitor.close()


def test_connections_without_the_token_are_closed() -> None:
    store, result = Store(), dict[int, socket.socket]()
    thread = threading.Thread(target=lambda: result.update(connect_heartbeats(Launch(0, 2, 0, "127.0.0.1", 0), store, 60.0)))
    thread.start()
    port = int(store.get("heartbeats").split()[0])
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(bytes(heartbeats.TOKEN_BYTES + heartbeats.RANK_BYTES))
        assert stranger.recv(1) == b"", "it is closed"
    assert not result
    own = connect_heartbeats(Launch(1, 2, 1, "127.0.0.1", 0), store, 60.0)
    thread.join()
    assert result.keys() == {1}
    for connection in (own[0], result[1]):
        connection.close()


def test_a_missing_connection_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProcessesError, match=r"process 1, 2 does not connect to process 0 within 0 s"):
        connect_heartbeats(Launch(0, 3, 0, "127.0.0.1", 0), Store(), 0.05)
    store = Store()
    store.set("heartbeats", "1 00")
    with pytest.raises(ProcessesError, match=r"process 1 does not reach process 0 at 127.0.0.1:1"):
        connect_heartbeats(Launch(1, 3, 1, "127.0.0.1", 0), store, 1.0)
