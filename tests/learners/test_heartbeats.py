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

    def check(self, names: list[str]) -> bool:
        return set(names) <= self.values.keys()

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


@contextmanager
def first_process(size: int, *addresses: str) -> Iterator[tuple[Store, dict[int, socket.socket]]]:
    """Process 0 while it waits for others, which know its machine by these addresses; yields its store and its connections."""
    store, result = Store(), dict[int, socket.socket]()
    for rank, address in enumerate(addresses, 1):
        store.set(f"addresses/{rank}", address)
    thread = threading.Thread(target=lambda: result.update(connect_heartbeats(Launch(0, size, 0, "host", 0), store, 60.0)))
    thread.start()
    yield store, result
    thread.join()
    for connection in result.values():
        connection.close()


def test_connections_without_the_token_are_closed() -> None:
    with first_process(2, "127.0.0.1") as (store, result):
        port = int(store.get("heartbeats/1").split()[1])
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(bytes(heartbeats.TOKEN_BYTES + heartbeats.RANK_BYTES))
            assert stranger.recv(1) == b"", "it is closed"
        assert not result
        own = connect_heartbeats(Launch(1, 2, 1, "127.0.0.1", 0), store, 60.0)
    assert result.keys() == {1}
    own[0].close()


def test_the_first_process_listens_only_at_the_addresses_that_the_others_know() -> None:
    """Linux has all addresses 127.x.x.x, of which each stands for a network here."""
    with first_process(4, "192.0.2.1 127.0.0.3", "127.0.0.4", "127.0.0.4") as (store, result):
        places = [store.get(f"heartbeats/{rank}").decode().split() for rank in (1, 2, 3)]
        assert [address for address, _, _ in places] == ["127.0.0.3", "127.0.0.4", "127.0.0.4"]
        assert places[1] == places[2]
        for address, port, _ in places:
            for other in {"127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"} - {address}:
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection((other, int(port)))
        own = [connect_heartbeats(Launch(rank, 4, rank, "localhost", 0), store, 60.0)[0] for rank in (1, 2, 3)]
    assert result.keys() == {1, 2, 3}
    for connection in own:
        connection.close()


@pytest.mark.parametrize("unreachable", [0, 1])
def test_a_process_tries_all_addresses_of_the_first_one(unreachable: int) -> None:
    """Another machine may reach only one of the addresses by which it knows the first one."""
    with first_process(2, "127.0.0.3 127.0.0.4") as (store, result):
        first, first_port, second, second_port, token = store.get("heartbeats/1").decode().split()
        assert (first, second) == ("127.0.0.3", "127.0.0.4")
        places = [f"{first} {first_port}", f"{second} {second_port}"]
        places[unreachable] = f"127.0.0.{5 + unreachable} {first_port}"
        other = Store()
        other.set("heartbeats/1", " ".join((*places, token)))
        own = connect_heartbeats(Launch(1, 2, 1, "localhost", 0), other, 60.0)
    assert result.keys() == {1}
    own[0].close()


def test_an_address_that_the_machine_does_not_have_is_named() -> None:
    store = Store()
    store.set("addresses/1", "192.0.2.1")  # of a network for documentation
    with pytest.raises(
        ProcessesError, match=r"process 1 knows MASTER_ADDR host as 192.0.2.1, and it cannot listen at 192.0.2.1"
    ):
        connect_heartbeats(Launch(0, 2, 0, "host", 0), store, 60.0)


def test_a_missing_connection_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProcessesError, match=r"process 1, 2 does not connect to process 0 within 0 s"):
        connect_heartbeats(Launch(0, 3, 0, "127.0.0.1", 0), Store(), 0.05)
    store = Store()
    store.set("heartbeats/1", "127.0.0.1 1 00")
    with pytest.raises(ProcessesError, match=r"process 1 does not reach process 0 at 127.0.0.1: .*refused"):
        connect_heartbeats(Launch(1, 3, 1, "127.0.0.1", 0), store, 1.0)
