"""The server of a live view: a page with the newest replay of a run and its metrics, for browsers on this machine.

It has a fixed list of pages. A replay is read and checked, and the page of the player is made of it again, so that a file in
the run folder never runs code of its own.
"""

from __future__ import annotations

import json
import re
from http import HTTPStatus
from threading import Lock
from typing import ClassVar

from gpuvec.errors import CheckpointError, ReplayError
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.replay.document import to_page
from gpuvec.replay.live.files import read_live_replay
from gpuvec.replay.live.status import LiveStatus
from gpuvec.replay.local_server import CSS, HTML, JAVASCRIPT, JSON, Answer, LocalServer, refusal

REPLAY_PATH = re.compile(r"/replay/(\d{1,18})\.html")
# The page of a replay has a policy of its own, which allows its script and its style by their hashes.
REPLAY_POLICY = "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"


class LiveServer(LocalServer):
    """The server of a run. `serve_forever` answers requests until `shutdown`.

    Args:
        folder: the run folder, which stays open.
        port: of the loopback address; 0 for one that is free.

    Attributes:
        run: the run folder.

    Raises:
        ServerError: another program uses the port, or this one may not.
    """

    page_files: ClassVar = {
        "/": ("live/page/index.html", HTML),
        "/live.js": ("live/page/live.js", JAVASCRIPT),
        "/live.css": ("live/page/live.css", CSS),
    }

    def __init__(self, folder: RunFolder, port: int) -> None:
        super().__init__(port)
        self.run, self._status, self._lock = folder, LiveStatus(folder), Lock()

    def answer(self, path: str) -> Answer:
        """Returns the answer to a request.

        Args:
            path: of the address, with a leading slash.
        """
        try:
            if path == "/status.json":
                with self._lock:
                    return Answer(json.dumps(self._status.read(), allow_nan=False).encode(), JSON)
            if match := REPLAY_PATH.fullmatch(path):
                return self._replay(int(match[1]))
        except OSError as error:
            return refusal(HTTPStatus.INTERNAL_SERVER_ERROR, f"The run folder cannot be read: {error.strerror or error}.")
        return super().answer(path)

    def _replay(self, iteration: int) -> Answer:
        try:
            page = to_page(read_live_replay(self.run, iteration))
        except FileNotFoundError:
            return refusal(HTTPStatus.NOT_FOUND, "There is no such replay.")
        except (ReplayError, CheckpointError) as error:
            return refusal(HTTPStatus.UNPROCESSABLE_ENTITY, str(error))
        return Answer(page.encode(), HTML, REPLAY_POLICY)
