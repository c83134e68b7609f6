"""The server of a live view: a page with the newest replay of a run and its metrics, for browsers on this machine.

It listens on the loopback address alone and has a fixed list of addresses. A replay is read and checked, and the page of the
player is made of it again, so that a file in the run folder never runs code of its own.
"""

from __future__ import annotations

import errno
import json
import re
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
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


class LiveServer(ThreadingHTTPServer):
    """The server of a run. `serve_forever` answers requests until `shutdown`.

    Args:
        folder: the run folder, which stays open.
        port: of the loopback address; 0 for one that is free.

    Attributes:
        run: the run folder.

    Raises:
        ServerError: another program uses the port, or this one may not.
    """

    daemon_threads = True

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
        if path in PAGE_FILES:
            name, kind = PAGE_FILES[path]
            return Answer((files("gpuvec.replay.live") / "page" / name).read_bytes(), kind, PAGE_POLICY)
        if path == "/status.json":
            with self._lock:
                return Answer(json.dumps(self._status.read(), allow_nan=False).encode(), JSON)
        if match := REPLAY_PATH.fullmatch(path):
            return self._replay(int(match[1]))
        return Answer(b"There is no such page.", TEXT, status=HTTPStatus.NOT_FOUND)

    def _replay(self, iteration: int) -> Answer:
        try:
            page = to_page(read_live_replay(self.run, iteration))
        except FileNotFoundError:
            return Answer(b"There is no such replay.", TEXT, status=HTTPStatus.NOT_FOUND)
        except (ReplayError, CheckpointError) as error:
            return Answer(str(error).encode(), TEXT, status=HTTPStatus.UNPROCESSABLE_ENTITY)
        return Answer(page.encode(), HTML, REPLAY_POLICY)


class LiveHandler(BaseHTTPRequestHandler):
    """Answers GET requests of a `LiveServer`."""

    server: LiveServer
    server_version, sys_version = "gpuvec", ""
    timeout = 30  # [s] after which a connection without a request is closed

    def do_GET(self) -> None:
        """Answers a request, unless its Host is another site."""
        try:
            if HOST.fullmatch(self.headers.get("Host", "").lower()):
                answer = self.server.answer(self.path)
            else:
                text = f"This server answers requests to {ADDRESS} and localhost only."
                answer = Answer(text.encode(), TEXT, status=HTTPStatus.FORBIDDEN)
        except OSError as error:
            text = f"The run folder cannot be read: {error.strerror or error}."
            answer = Answer(text.encode(), TEXT, status=HTTPStatus.INTERNAL_SERVER_ERROR)
        self._send(answer)

    def _send(self, answer: Answer) -> None:
        headers = {
            "Content-Type": answer.kind,
            "Content-Length": str(len(answer.content)),
            "Content-Security-Policy": answer.policy,
            "Cross-Origin-Resource-Policy": "same-origin",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
        }
        try:
            self.send_response(answer.status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.content)
        except ConnectionError:  # the browser has closed the page
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing, as the page asks every second.

        Args:
            format: a text with places for `args`.
            args: values.
        """
