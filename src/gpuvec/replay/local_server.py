"""A server for browsers on this machine, of which each answer is one page, file or number.

It listens on the loopback address alone and refuses requests to other names. Requests that change something are sent by POST
with a token, which the page has from the server: pages of other sites can neither read it nor send it.
"""

from __future__ import annotations

import errno
import hmac
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from importlib.resources import files
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import ClassVar, NamedTuple

from gpuvec.errors import ServerError

ADDRESS = "127.0.0.1"
# Another name that leads to the loopback address is that of another site (DNS rebinding). The port may be that of a tunnel.
HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?")
MAX_LINE_BYTES, MAX_LINES, MAX_UNREAD_CHUNKS = 1 << 14, 100, 64  # of a request
MAX_BODY_BYTES = 1 << 12  # of a POST request
SIZE = re.compile(r"\d{1,9}", re.ASCII)
REQUEST_LINE = re.compile(rb"([A-Z]{1,20}) (/[!-~]*) HTTP/1\.[01]\r?\n")
HEADER = re.compile(rb"([!#-'*+.^_`|~\w-]+):([^\r\n\0]*)\r?\n", re.ASCII)
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; frame-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# The page shows the text of an error in the place of a replay.
TEXT_POLICY = "default-src 'none'; frame-ancestors 'self'"
HTML, JAVASCRIPT, CSS, JSON, TEXT = (
    f"{kind}; charset=utf-8" for kind in ("text/html", "text/javascript", "text/css", "application/json", "text/plain")
)


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


class LocalServer(ThreadingTCPServer):
    """A server on the loopback address. `serve_forever` answers requests until `shutdown`.

    Args:
        port: of the loopback address; 0 for one that is free.
        token: that of POST requests, in their header X-Gpuvec-Token; "" for a server that takes none.

    Raises:
        ServerError: another program uses the port, or this one may not.
    """

    daemon_threads = allow_reuse_address = True
    page_files: ClassVar[Mapping[str, tuple[str, str]]] = {}
    """{path of the address: (file in the folder of replays, media type)} of the parts of the page."""

    def __init__(self, port: int, token: str = "") -> None:
        try:
            super().__init__((ADDRESS, port), LocalHandler)
        except OSError as error:
            reason = "another program uses it" if error.errno == errno.EADDRINUSE else error.strerror
            raise ServerError(
                f"port {port} of {ADDRESS} cannot be used: {reason}. Give another --port, or --port 0 for one that is free."
            ) from error
        self.token = token

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{ADDRESS}:{self.server_address[1]}/"

    def answer(self, path: str) -> Answer:
        """Returns the answer to a GET request.

        Args:
            path: of the address, with a leading slash.
        """
        if path in self.page_files:
            name, kind = self.page_files[path]
            return Answer((files("gpuvec.replay") / name).read_bytes(), kind, PAGE_POLICY)
        return refusal(HTTPStatus.NOT_FOUND, "There is no such page.")

    def answer_post(self, path: str, body: bytes) -> Answer:
        """Returns the answer to a POST request with the token of this server.

        Args:
            path: of the address, with a leading slash.
            body: of the request, at most `MAX_BODY_BYTES`.
        """
        return refusal(HTTPStatus.NOT_FOUND, "There is no such page.")


class LocalHandler(StreamRequestHandler):
    """Answers one request of a connection to a `LocalServer`.

    Of the headers it needs Host, and for POST the token and Content-Length. `http.server` parses all of them
    as those of an e-mail, which raises about ten kinds of errors if they are malformed.
    """

    server: LocalServer
    timeout = 30  # [s] after which a connection without a request is closed

    def handle(self) -> None:
        """Answers the request; a connection that breaks, or that sends nothing, is closed."""
        with suppress(OSError):  # of the connection: `answer` has its own
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
        hosts = header_values(headers, b"host")
        if request is None or None in headers or len(hosts) > 1:
            return refusal(HTTPStatus.BAD_REQUEST, "A request of HTTP/1 is an address, and headers with at most one Host.")
        is_post = request[1] == b"POST" and self.server.token != ""
        if request[1] != b"GET" and not is_post:
            return refusal(HTTPStatus.NOT_IMPLEMENTED, "This server answers GET alone.")
        if not hosts or not HOST.fullmatch(hosts[0]):
            return refusal(HTTPStatus.FORBIDDEN, f"This server answers requests to {ADDRESS} and localhost only.")
        path = request[2].decode("ascii")
        return self._answer_post(path, headers) if is_post else self.server.answer(path)

    def _answer_post(self, path: str, headers: list[re.Match[bytes] | None]) -> Answer:
        tokens, sizes = header_values(headers, b"x-gpuvec-token"), header_values(headers, b"content-length")
        if len(tokens) != 1 or not hmac.compare_digest(tokens[0].encode(), self.server.token.encode()):
            return refusal(HTTPStatus.FORBIDDEN, "The request has not the token of this server: load the page again.")
        if len(sizes) != 1 or not SIZE.fullmatch(sizes[0]):
            return refusal(HTTPStatus.LENGTH_REQUIRED, "A POST request has one Content-Length, a number.")
        if int(sizes[0]) > MAX_BODY_BYTES:
            return refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"The request has more than {MAX_BODY_BYTES:,} bytes.")
        body = self.rfile.read(int(sizes[0]))
        if len(body) < int(sizes[0]):
            return refusal(HTTPStatus.BAD_REQUEST, "The request is incomplete.")
        return self.server.answer_post(path, body)

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


def header_values(headers: list[re.Match[bytes] | None], name: bytes) -> list[str]:
    """Returns the values of the headers of a name, in lower case for Host.

    Args:
        headers: matches of `HEADER`.
        name: in lower case.
    """
    values = [header[2].strip().decode("latin-1") for header in headers if header and header[1].lower() == name]
    return [value.lower() for value in values] if name == b"host" else values
