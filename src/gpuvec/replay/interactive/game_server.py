"""The server of a game: a page that shows it, and to which keys belong, for browsers on this machine.

Time passes only by requests of the page, so a game whose page is paused or closed waits. One page plays at a time: the one that
was the last to begin an episode.
"""

from __future__ import annotations

import json
import math
import re
import secrets
from http import HTTPStatus
from threading import Lock
from typing import Any, ClassVar

from gpuvec.errors import ActionError
from gpuvec.replay.interactive.game import Game
from gpuvec.replay.local_server import CSS, HTML, JAVASCRIPT, JSON, Answer, LocalServer, refusal
from gpuvec.replay.page import BOOT, MODULES

PAGE_ID = re.compile(r"[0-9a-f]{32}")
MAX_COMPONENTS = 64  # of an action in a request


class PlayServer(LocalServer):
    """The server of a game. `serve_forever` answers requests until `shutdown`.

    Args:
        game: what is played; this server alone uses it.
        port: of the loopback address; 0 for one that is free.
        fps: steps per second; None for the environment's own speed.

    Raises:
        ServerError: another program uses the port, or this one may not.
    """

    page_files: ClassVar = {
        "/": ("interactive/page/index.html", HTML),
        "/play.js": ("interactive/page/play.js", JAVASCRIPT),
        "/play.css": ("interactive/page/play.css", CSS),
        **{f"/player/{name}.js": (f"player/{name}.js", JAVASCRIPT) for name in (*BOOT, *MODULES)},  # which draw
    }

    def __init__(self, game: Game, port: int, fps: float | None = None) -> None:
        super().__init__(port, secrets.token_urlsafe(32))
        self._game, self._fps, self._page, self._lock = game, fps, "", Lock()

    def answer(self, path: str) -> Answer:
        """Returns the page, or a file of it.

        Args:
            path: of the address, with a leading slash.
        """
        answer = super().answer(path)
        return answer._replace(content=answer.content.replace(b"TOKEN", self.token.encode())) if path == "/" else answer

    def answer_post(self, path: str, body: bytes) -> Answer:
        """Begins an episode for a page, or takes a step.

        `/begin` takes {"page": 32 hexadecimal digits} and answers with the description of the game and its first state; `/step`
        takes {"page": ..., "action": [a number for each component] or null} and answers with the next state.

        Args:
            path: of the address, with a leading slash.
            body: JSON.
        """
        request = _parse(body)
        if path not in ("/begin", "/step"):
            return super().answer_post(path, body)
        if request is None:
            return refusal(HTTPStatus.BAD_REQUEST, "A request is {'page': ..., 'action': numbers or null} in JSON.")
        with self._lock:
            if path == "/begin":
                self._page = request["page"]
                self._game.begin_episode()
                description = self._game.describe()
                description["fps"] = self._fps or description["fps"]
                return _to_answer({"game": description, "frame": self._game.frame()})
            if request["page"] != self._page:
                return refusal(HTTPStatus.CONFLICT, "The game continues in another page.")
            try:
                self._game.step(request.get("action"))
            except ActionError as error:
                return refusal(HTTPStatus.UNPROCESSABLE_ENTITY, f"{str(error)[0].upper()}{str(error)[1:]}")
            return _to_answer({"frame": self._game.frame()})


def _to_answer(value: dict[str, Any]) -> Answer:
    return Answer(json.dumps(value, allow_nan=False).encode(), JSON)


def _parse(body: bytes) -> dict[str, Any] | None:
    """Returns the request in the body of a POST; None if it is none."""
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(request, dict) or not isinstance(page := request.get("page"), str) or not PAGE_ID.fullmatch(page):
        return None
    action = request.get("action")
    is_action = action is None or (
        isinstance(action, list)
        and len(action) <= MAX_COMPONENTS
        and all(type(value) in (int, float) and abs(value) < math.inf for value in action)
    )
    return request if is_action else None
