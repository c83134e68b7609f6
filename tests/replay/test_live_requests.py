"""Requests that no browser sends: the server of a live view answers each with a status, and continues to serve."""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gpuvec.learners.runs.folder import RunFolder
from gpuvec.replay.live.server import LiveServer

STATUS = b"GET /status.json HTTP/1.1\r\nHost: 127.0.0.1\r\n"
NAMES = (
    b"Host", b"Content-Length", b"Content-Type", b"Content-Transfer-Encoding", b"Content-Disposition", b"Transfer-Encoding",
    b"Range", b"Origin", b"Expect", b"Connection", b"Cookie", b"MIME-Version", b"", b"\xff", b"X Y", b"From ", b" Host",
)  # fmt: skip
VALUES = (
    b"", b"-1", b"9" * 5000, b"1e9", b"bytes=0-", b"bytes=9-1,\x00", b"null", b"http://[::1", b"[::1", b"127.0.0.1:99999999",
    b"127.0.0.1\x00", b"\xff\xfe", b"\xe2\x80\xae", b"=?utf-8?q?=ff?=", b"a" * 9000, b"keep-alive, keep-alive", b"100-continue",
    b"multipart/mixed", b"multipart/mixed; boundary*=no-such-codec''x", b"multipart/mixed; boundary*0*=x''%ff; boundary*a=1",
    b"multipart/mixed; boundary=\"\\\"; boundary*1=2; boundary*99999999999=3", b"multipart/digest; boundary=x",
    b"message/rfc822", b"message/delivery-status", b"message/external-body", b"text/plain; charset*=x'y", b"base64",
    b"\t folded",
    b"multipart/mixed; boundary*=x; boundary*1=y", b"multipart/mixed; boundary*" + b"9" * 5000 + b"=y",
    b"multipart/mixed; boundary*=idna''%ff", b"multipart/mixed; boundary*=undefined''%ff", b"multipart/mixed; x*=1; x*2=3",
    b"multipart/mixed; boundary*=\x00''%ff", b"multipart/mixed; boundary*=punycode''%ff%ff",
    b"one\r\n two", b"one\rtwo", b"one\x85Host: 127.0.0.1", b"one\x0bHost: localhost", b"\x1c", b"gzip, chunked",
)  # fmt: skip


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    (tmp_path / "args.json").write_text('{"env": "CartPole-v1", "seed": 1}')
    with RunFolder(tmp_path) as folder, LiveServer(folder, 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def send(server: LiveServer, request: bytes) -> bytes:
    """Returns the whole answer to the bytes of a request."""
    with socket.create_connection(server.server_address[:2], timeout=60) as connection:
        with suppress(OSError):  # it need not read a request that it refuses
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def random_request(rng: random.Random) -> bytes:
    """Returns a request with some lines that are wrong, and perhaps a body."""
    line = rng.choice(
        [b"GET /status.json HTTP/1.1"] * 6
        + [
            b"", b"GET", b"GET /", b"get / HTTP/1.1", b"GET /\xff HTTP/1.1", b"GET / HTTP/9.9", b"GET / HTTP/1.1 x",
            b"GET  / HTTP/1.1",
            b"GET / HTTP/x.y", b"GET / HTTP/1." + b"1" * 5000, b"GET /" + b"a" * 70_000 + b" HTTP/1.1", b"POST / HTTP/1.1",
            b"\x16\x03\x01\x02",
            b"GET http://127.0.0.1/ HTTP/1.1", b"GET /replay/\xb2.html HTTP/1.1", b"GET //x HTTP/1.1", b"GET /\x00 HTTP/1.1",
            b"PRI * HTTP/2.0",
        ]
    )  # fmt: skip
    headers = [b"Host: 127.0.0.1"] * rng.choice([0, 1, 1, 1, 2])
    for _ in range(rng.choice([0, 1, 1, 2, 3, 120])):
        separator = rng.choice([b": ", b": ", b": ", b":", b" : ", b" ", b":\t"])
        headers.append(rng.choice(NAMES) + separator + rng.choice(VALUES))
    rng.shuffle(headers)
    body = rng.choice([b"", b"", b"--x\r\n\r\n--x--", bytes(range(256)), b"a" * 3000])
    end = rng.choice([b"\r\n", b"\r\n", b"\r\n", b"\n"])
    return end.join([line, *headers, b"", body])


def assert_answered(server: LiveServer, request: bytes, capfd: pytest.CaptureFixture[str]) -> int:
    """Checks that a request has an answer and that nothing was printed about it, and returns the status."""
    answer = send(server, request)
    assert not (printed := capfd.readouterr().err), (request[:300], printed[-600:])
    assert answer.startswith(b"HTTP/1."), (request[:300], answer[:200])
    return int(answer.split(b" ", 2)[1])


@pytest.mark.parametrize("name", [b"Content-Type", b"Range", b"Origin", b"Content-Length", b"X-" + b"a" * 3000])
def test_headers_that_are_not_needed_are_not_read(name: bytes, server: LiveServer, capfd: pytest.CaptureFixture[str]) -> None:
    for value in VALUES:
        is_line = not set(value) & set(b"\r\n\0")
        status = assert_answered(server, STATUS + name + b": " + value + b"\r\n\r\n", capfd)
        assert status == (200 if is_line else 400), value


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"", 400), (b"\r\n\r\n", 400), (b"GET\r\n\r\n", 400), (b"GET /\r\n\r\n", 400), (b"GET / HTTP/2.0\r\n\r\n", 400),
        (STATUS + b"Host: localhost\r\n\r\n", 400), (STATUS + b" folded\r\n\r\n", 400), (STATUS + b": x\r\n\r\n", 400),
        (STATUS + b"na\xefve: x\r\n\r\n", 400), (STATUS + b"Host : x\r\n\r\n", 400), (STATUS + b"no colon\r\n\r\n", 400),
        (b"GET / HTTP/1.0\r\n\r\n", 403), (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\xff\r\n\r\n", 403),
        (b"GET / HTTP/1.1\r\nHost: \xb2127.0.0.1\r\n\r\n", 403), (b"GET /x HTTP/1.1\nHost: localhost\n\n", 404),
        (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", 414), (STATUS + b"X: " + b"a" * 100_000 + b"\r\n\r\n", 431),
        (STATUS + b"X: y\r\n" * 1000 + b"\r\n", 431), (STATUS.replace(b"GET", b"POST") + b"\r\n" + b"a" * 100_000, 501),
    ],
)  # fmt: skip
def test_wrong_requests_are_refused(request_: bytes, status: int, server: LiveServer, capfd) -> None:
    assert assert_answered(server, request_, capfd) == status
    assert assert_answered(server, STATUS + b"\r\n", capfd) == 200


def test_random_requests_are_answered(server: LiveServer, capfd: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(0)
    statuses = [assert_answered(server, random_request(rng), capfd) for _ in range(600)]
    assert set(statuses) <= {200, 400, 403, 404, 414, 431, 501}
    assert {200, 400, 403, 414} <= set(statuses)
    assert assert_answered(server, STATUS + b"\r\n", capfd) == 200


def test_connections_that_break_are_closed(server: LiveServer, capfd: pytest.CaptureFixture[str]) -> None:
    for part in (b"", STATUS[:10], STATUS, STATUS + b"\r\n"):
        with socket.create_connection(server.server_address[:2], timeout=60) as connection:
            connection.sendall(part)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close() resets
    assert assert_answered(server, STATUS + b"\r\n", capfd) == 200
