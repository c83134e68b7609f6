"""The server of a live view: a page with the newest replay of a run and its metrics, for browsers on this machine.

It listens on the loopback address alone and has a fixed list of pages. A replay is read and checked, and the page of the
player is made of it again, so that a file in the run folder never runs code of its own.
"""

from __future__ import annotations

import errno
import json
import re
import socket
from contextlib import suppress
from http import HTTPStatus
from importlib.resources import files
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Lock
from typing import NamedTuple

from gpuvec.errors import CheckpointError, ReplayError, ServerError
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.replay.document import to_page
from gpuvec.replay.live.files import read_live_replay
from gpuvec.replay.live.status import LiveStatus

ADDRESS = "127.0.0.1"
# Another name that leads to the loopback address is that of another site (DNS rebinding). The port may be that of a tunnel.
HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?")
MAX_LINE_BYTES, MAX_LINES, MAX_UNREAD_CHUNKS = 1 << 14, 100, 64  # of a request
REQUEST_LINE = re.compile(rb"([A-Z]{1,20}) (/[!-~]*) HTTP/1\.[01]\r?\n")
HEADER = re.compile(rb"([!#-'*+.^_`|~\w-]+):([^\r\n\0]*)\r?\n", re.ASCII)
REPLAY_PATH = re.compile(r"/replay/(\d{1,18})\.html")
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; frame-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# The page of a replay has a policy of its own, which allows its script and its style by their hashes.
REPLAY_POLICY = "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
# The page shows the text of an error in the place of a replay.
TEXT_POLICY = "default-src 'none'; frame-ancestors 'self'"
HTML, JAVASCRIPT, CSS, JSON, TEXT = (
    f"{kind}; charset=utf-8" for kind in ("text/html", "text/javascript", "text/css", "application/json", "text/plain")
)
PAGE_FILES = {"/": ("index.html", HTML), "/live.js": ("live.js", JAVASCRIPT), "/live.css": ("live.css", CSS)}


class Answer(NamedTuple):
    """What the server answers.

    Attributes:
        content: the body.
        kind: its media type.
        policy: the Content-Security-Policy.
        status: of HTTP.
    """

    content: bytes
    kind: str
    policy: str = TEXT_POLICY
    status: HTTPStatus = HTTPStatus.OK


class LiveServer(ThreadingTCPServer):
    """The server of a run. `serve_forever` answers requests until `shutdown`.

    Args:
        folder: the run folder, which stays open.
        port: of the loopback address; 0 for one that is free.

    Attributes:
        run: the run folder.

    Raises:
        ServerError: another program uses the port, or this one may not.
    """

    daemon_threads = allow_reuse_address = True

    def __init__(self, folder: RunFolder, port: int) -> None:
        try:
            super().__init__((ADDRESS, port), LiveHandler)
        except OSError as error:
            reason = "another program uses it" if error.errno == errno.EADDRINUSE else error.strerror
            raise ServerError(
                f"port {port} of {ADDRESS} cannot be used: {reason}. Give another --port, or --port 0 for one that is free."
            ) from error
        self.run, self._status, self._lock = folder, LiveStatus(folder), Lock()

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{ADDRESS}:{self.server_address[1]}/"

    def answer(self, path: str) -> Answer:
        """Returns the answer to a request.

        Args:
            path: of the address, with a leading slash.
        """
        try:
            if path in PAGE_FILES:
                name, kind = PAGE_FILES[path]
                return Answer((files("gpuvec.replay.live") / "page" / name).read_bytes(), kind, PAGE_POLICY)
            if path == "/status.json":
                with self._lock:
                    return Answer(json.dumps(self._status.read(), allow_nan=False).encode(), JSON)
            if match := REPLAY_PATH.fullmatch(path):
                return self._replay(int(match[1]))
        except OSError as error:
            return refusal(HTTPStatus.INTERNAL_SERVER_ERROR, f"The run folder cannot be read: {error.strerror or error}.")
        return refusal(HTTPStatus.NOT_FOUND, "There is no such page.")

    def _replay(self, iteration: int) -> Answer:
        try:
            page = to_page(read_live_replay(self.run, iteration))
        except FileNotFoundError:
            return refusal(HTTPStatus.NOT_FOUND, "There is no such replay.")
        except (ReplayError, CheckpointError) as error:
            return refusal(HTTPStatus.UNPROCESSABLE_ENTITY, str(error))
        return Answer(page.encode(), HTML, REPLAY_POLICY)


class LiveHandler(StreamRequestHandler):
    """Answers one GET request of a connection to a `LiveServer`.

    Of the headers it needs Host alone. `http.server` parses all of them as those of an e-mail, which raises about ten kinds of
    errors if they are malformed.
    """

    server: LiveServer
    timeout = 30  # [s] after which a connection without a request is closed

    def handle(self) -> None:
        """Answers the request; a connection that breaks, or that sends nothing, is closed."""
        with suppress(OSError):  # of the connection: `LiveServer.answer` has its own
            self._send(self._answer())
            # A connection that is closed before all was read is reset, and the other side may lose the answer.
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(1.0)
            for _ in range(MAX_UNREAD_CHUNKS):
                if not self.connection.recv(MAX_LINE_BYTES):
                    break

    def _answer(self) -> Answer:
        lines: list[bytes] = []
        while len(lines) < MAX_LINES and (line := self.rfile.readline(MAX_LINE_BYTES)).strip(b"\r\n"):
            lines.append(line)
            if not line.endswith(b"\n"):
                break
        if lines and len(lines[0]) == MAX_LINE_BYTES:
            return refusal(HTTPStatus.REQUEST_URI_TOO_LONG, f"The address has more than {MAX_LINE_BYTES:,} bytes.")
        if len(lines) == MAX_LINES or (lines and len(lines[-1]) == MAX_LINE_BYTES):
            limits = f"{MAX_LINES:,} lines or {MAX_LINE_BYTES:,} bytes in a line"
            return refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"The request has more than {limits}.")
        request, headers = REQUEST_LINE.fullmatch(lines[0] if lines else b""), [HEADER.fullmatch(line) for line in lines[1:]]
        hosts = [header[2].strip().decode("latin-1").lower() for header in headers if header and header[1].lower() == b"host"]
        if request is None or None in headers or len(hosts) > 1:
            return refusal(HTTPStatus.BAD_REQUEST, "A request of HTTP/1 is an address, and headers with at most one Host.")
        if request[1] != b"GET":
            return refusal(HTTPStatus.NOT_IMPLEMENTED, "This server answers GET alone.")
        if not hosts or not HOST.fullmatch(hosts[0]):
            return refusal(HTTPStatus.FORBIDDEN, f"This server answers requests to {ADDRESS} and localhost only.")
        return self.server.answer(request[2].decode("ascii"))

    def _send(self, answer: Answer) -> None:
        headers = {
            "Content-Type": answer.kind,
            "Content-Length": str(len(answer.content)),
            "Content-Security-Policy": answer.policy,
            "Cross-Origin-Resource-Policy": "same-origin",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
            "Connection": "close",
        }
        lines = [
            f"HTTP/1.1 {answer.status.value} {answer.status.phrase}",
            *(f"{name}: {text}" for name, text in headers.items()),
        ]
        self.wfile.write("\r\n".join([*lines, "", ""]).encode("ascii") + answer.content)


def refusal(status: HTTPStatus, text: str) -> Answer:
    """Returns an answer that says in one sentence why there is no page.

    Args:
        status: of HTTP.
        text: the sentence.
    """
    return Answer(text.encode(errors="backslashreplace"), TEXT, status=status)
