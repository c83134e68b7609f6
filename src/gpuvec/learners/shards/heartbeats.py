"""Notices processes of a training that ended or hang, by heartbeats that a thread of each process sends.

A process that waits in an exchange cannot distinguish one that hangs from one that compiles for minutes. The thread of a
process that compiles continues to send; that of a process that was killed, stopped, or cut off from the network does not.
Process 0 exchanges heartbeats with each other process, and tells the others which one it lost.

A message is a line: "alive", "bye" of a process that leaves in order, or "lost 3".
"""

from __future__ import annotations

import hmac
import os
import secrets
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from gpuvec.errors import LostProcessError, ProcessesError
from gpuvec.learners.shards.torchrun import Launch

INTERVAL = 1.0  # between two heartbeats [s]
MAX_SILENT_INTERVALS = 30  # after which a process counts as lost
# Within this time of a loss the training ends by an error that the exchanges raise, or else the process ends without it.
SECONDS_TO_LEAVE = 15.0
GOODBYE_SECONDS = 2.0  # within which the others have read a goodbye
TOKEN_BYTES = 16  # with which a process proves that it belongs to the training
RANK_BYTES = 4
GREETING_SECONDS = 5.0  # within which a process has sent them
SECONDS_BETWEEN_LOOKS = 0.005  # into the store
WAKE_UP = -1  # instead of a rank


class HeartbeatMonitor:
    """Sends heartbeats to other processes and watches theirs, in a thread of its own.

    Time is counted in intervals in which this thread ran, so that processes that are all stopped for a while do not lose each
    other.

    Args:
        rank: the number of this process.
        connections: {rank: connection} to the processes that are watched.
        on_loss: called in the thread after a loss, to end exchanges that would wait for ever.
        parent: the number of the process that started this one, whose end counts as a loss, too; None to ignore it.
    """

    def __init__(
        self, rank: int, connections: Mapping[int, socket.socket], on_loss: Callable[[], None], parent: int | None = None
    ) -> None:
        self._rank, self._connections, self._on_loss, self._parent = rank, dict(connections), on_loss, parent
        self._silent_intervals = dict.fromkeys(connections, 0)
        self._received = dict.fromkeys(connections, b"")
        self._left: list[socket.socket] = []  # connections to processes that have said goodbye
        self._is_leaving = False
        self.loss = ""
        """What was lost, for an error message; "" for nothing."""
        self._lost_rank: int | None = None
        self._selector = selectors.DefaultSelector()
        self._wake_up, self._is_closed = socket.socketpair(), False
        self._selector.register(self._wake_up[0], selectors.EVENT_READ, WAKE_UP)
        for other, connection in self._connections.items():
            connection.setblocking(False)
            self._selector.register(connection, selectors.EVENT_READ, other)
        self._thread = threading.Thread(target=self._run, name="gpuvec heartbeats", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not (self._is_closed or self.loss):
            self._send_to_all("alive")
            end = time.monotonic() + INTERVAL
            while not (self._is_closed or self.loss) and (seconds := end - time.monotonic()) > 0.0:
                for key, _ in self._selector.select(seconds):
                    self._receive(key.data)
            self._count_interval()
        if self.loss:
            self._end()

    def _receive(self, rank: int) -> None:
        """Reads what a process has sent."""
        if rank == WAKE_UP or rank not in self._connections:
            return
        try:
            data = self._connections[rank].recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data and self._is_leaving:
            self._forget(rank)
            return
        if not data:
            self._lose(rank, f"process {rank} ended")
            return
        self._silent_intervals[rank] = 0
        *lines, self._received[rank] = (self._received[rank] + data).split(b"\n")
        for line in lines:
            word, _, number = line.decode("ascii", "replace").partition(" ")
            if word == "bye" and rank in self._connections:
                self._forget(rank)
            elif word == "lost" and number.isdecimal():
                self._lose(int(number), f"process {number} ended or has not answered")

    def _forget(self, rank: int) -> None:
        """Ends sending to a process that leaves, which it takes for an answer to its goodbye."""
        connection = self._connections.pop(rank)
        self._selector.unregister(connection)
        self._left.append(connection)
        with suppress(OSError):  # the other process may have closed it
            connection.shutdown(socket.SHUT_WR)

    def _count_interval(self) -> None:
        for rank in self._connections:
            self._silent_intervals[rank] += 1
            if self._silent_intervals[rank] > MAX_SILENT_INTERVALS:
                self._lose(rank, f"process {rank} has not answered for {MAX_SILENT_INTERVALS * INTERVAL:.0f} s")
        if self._parent is not None and os.getppid() != self._parent:
            self._lose(self._rank, "the process that started this one ended")

    def _lose(self, rank: int, reason: str) -> None:
        if not (self.loss or self._is_closed or self._is_leaving):
            self.loss, self._lost_rank = f"another process of the training is lost: {reason}.", rank

    @property
    def is_first_alive(self) -> bool:
        """Whether this process has the lowest number of those that are not lost, as far as it knows, and reports the loss."""
        return self._rank == (1 if self._lost_rank == 0 else 0)

    def _end(self) -> None:
        """Tells the others, ends the exchanges, and if the training does not end by that, the process."""
        if self._lost_rank != self._rank:
            self._send_to_all(f"lost {self._lost_rank}")
        # Aborting may itself wait for a device.
        threading.Thread(target=self._on_loss, daemon=True).start()
        end = time.monotonic() + SECONDS_TO_LEAVE
        while not self._is_closed and (seconds := end - time.monotonic()) > 0.0:
            time.sleep(min(0.05, seconds))
        if self._is_closed:
            return
        if self.is_first_alive and sys.__stderr__ is not None:
            print(f"gpuvec: {self.loss}", file=sys.__stderr__, flush=True)
        os._exit(LostProcessError.exit_status)

    def _send_to_all(self, line: str) -> None:
        for connection in list(self._connections.values()):
            try:
                connection.send(f"{line}\n".encode())
            except OSError:  # the other process ended, or has not read for long: both are noticed when this one receives
                continue

    def say_goodbye(self) -> None:
        """Tells the others that this process leaves in order: it does not count as lost, and loses nobody itself."""
        self._is_leaving = True
        self._send_to_all("bye")

    def close(self) -> None:
        """Ends the thread and the connections; without a goodbye the others lose this process."""
        if self._is_closed:
            return
        # A connection that is closed while the other process sends loses a goodbye that it has not read.
        end = time.monotonic() + GOODBYE_SECONDS
        while self._is_leaving and self._connections and self._thread.is_alive() and time.monotonic() < end:
            time.sleep(0.002)
        self._is_closed = True
        self._wake_up[1].send(b".")
        self._thread.join(SECONDS_TO_LEAVE)
        self._selector.close()
        for connection in (*self._wake_up, *self._left, *self._connections.values()):
            connection.close()


def connect_heartbeats(launch: Launch, store: Any, seconds: float) -> dict[int, socket.socket]:
    """Connects process 0 with all others, and returns {rank: connection} of this process.

    Process 0 listens only at the addresses by which the others know its machine, and not in all networks.

    Args:
        launch: the place of this process.
        store: of torch.distributed, through which the processes exchange addresses.
        seconds: within which they must have connected.

    Raises:
        ProcessesError: a connection is missing.
    """
    if launch.rank == 0:
        return _accept(launch, store, seconds)
    try:
        store.set(f"addresses/{launch.rank}", " ".join(resolve(launch.address)))
        *places, token = store.get(f"heartbeats/{launch.rank}").decode().split(" ")
        connection = _connect(list(zip(places[::2], map(int, places[1::2]), strict=True)), seconds)
        connection.sendall(bytes.fromhex(token) + launch.rank.to_bytes(RANK_BYTES))
    except OSError as error:
        raise ProcessesError(f"process {launch.rank} does not reach process 0 at {launch.address}: {error}.") from error
    return {0: connection}


def resolve(host: str) -> list[str]:
    """Returns the IP addresses of a host as this machine knows it, in the order of preference.

    Raises:
        OSError: it does not know the host.
    """
    return list(dict.fromkeys(str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)))


def _connect(places: Sequence[tuple[str, int]], seconds: float) -> socket.socket:
    """Returns a connection to the first of some places, (address, port), that this machine reaches."""
    problems: list[OSError] = []
    for place in places:
        try:
            return socket.create_connection(place, seconds / len(places))
        except OSError as error:
            problems.append(error)
    raise problems[0]


def listen(addresses: Sequence[str], port: int = 0) -> Iterator[socket.socket]:
    """Yields sockets that listen, each at one of those of some addresses that this machine has, and at no other one.

    Args:
        addresses: IP addresses.
        port: the number of the port; 0 for a free one at each address.

    Raises:
        OSError: the machine has none of them, or the port is in use.
    """
    problems: list[OSError] = []
    for address in addresses:
        try:
            yield socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
        except OSError as error:
            problems.append(error)
    if len(problems) == len(addresses):
        raise OSError(f"it cannot listen at {', '.join(addresses)}: {problems[0] if problems else 'there is no address'}")


def _accept(launch: Launch, store: Any, seconds: float) -> dict[int, socket.socket]:
    """Waits for the connections of all processes but the first."""
    token, end = secrets.token_bytes(TOKEN_BYTES), time.monotonic() + seconds
    connections: dict[int, socket.socket] = {}

    def error(reason: object) -> ProcessesError:
        missing = ", ".join(str(rank) for rank in range(1, launch.size) if rank not in connections)
        return ProcessesError(f"process {missing} does not connect to process 0 within {seconds:.0f} s: {reason}.")

    with ExitStack() as stack:
        servers: dict[str, list[socket.socket]] = {}
        selector = stack.enter_context(selectors.DefaultSelector())
        for rank in range(1, launch.size):
            while not store.check([f"addresses/{rank}"]):
                if time.monotonic() > end:
                    raise error("it has not said by which address it knows process 0")
                time.sleep(SECONDS_BETWEEN_LOOKS)
            addresses = store.get(f"addresses/{rank}").decode()
            if addresses not in servers:
                try:
                    servers[addresses] = [stack.enter_context(server) for server in listen(addresses.split(" "))]
                except OSError as problem:
                    raise error(f"process {rank} knows MASTER_ADDR {launch.address} as {addresses}, and {problem}") from problem
                for server in servers[addresses]:
                    selector.register(server, selectors.EVENT_READ)
            places = [f"{address} {port}" for address, port, *_ in (server.getsockname() for server in servers[addresses])]
            store.set(f"heartbeats/{rank}", " ".join((*places, token.hex())))
        while len(connections) < launch.size - 1:
            ready = selector.select(max(0.01, end - time.monotonic()))
            if not ready:
                raise error("there is no connection")
            for key, _ in ready:
                connection, _ = key.fileobj.accept()  # type: ignore[union-attr]  # it is a socket
                rank_of_other = _read_rank(connection, token)
                if rank_of_other is None:
                    connection.close()
                else:
                    connections[rank_of_other] = connection
    return connections


def _read_rank(connection: socket.socket, token: bytes) -> int | None:
    """Returns the number of the process at the other end; None if it does not belong to the training."""
    connection.settimeout(GREETING_SECONDS)
    try:
        greeting = connection.recv(TOKEN_BYTES + RANK_BYTES, socket.MSG_WAITALL)
    except OSError:
        return None
    is_own = hmac.compare_digest(greeting[:TOKEN_BYTES], token)
    return int.from_bytes(greeting[TOKEN_BYTES:]) if is_own else None
