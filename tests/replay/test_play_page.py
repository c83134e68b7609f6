"""The page of a game in a browser: keys, buttons, a pause, the end of an episode, and several pages."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from gpuvec.replay.interactive.game import Game, Others, PlayServer
from tests.replay.browser import Page, needs_browser

pytestmark = needs_browser
# A real key stays down, unlike those of `Page.press`.
KEY = "document.body.dispatchEvent(new KeyboardEvent(arguments[0], {key: arguments[1], bubbles: true}))"
TAP = """
const button = document.querySelectorAll("#controls button")[arguments[0]];
const {left, top} = button.getBoundingClientRect();
button.setPointerCapture = () => {};
for (const type of ["pointerdown", "pointerup"]) {
  const place = {clientX: left + 5, clientY: top + 5};
  button.dispatchEvent(new PointerEvent(type, {pointerId: 1, pointerType: "touch", bubbles: true, ...place}));
}
"""


@contextmanager
def serving(game: Game, fps: float) -> Iterator[PlayServer]:
    with closing(game), PlayServer(game, 0, fps) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def cartpole(page: Page) -> Iterator[PlayServer]:
    """The server of a game of CartPole, whose page is ready."""
    game = Game("gpuvec/CartPole-v1", {}, "0", Others(""), seed=0)
    with serving(game, fps=50.0) as server:
        open_game(page, server)
        yield server


def open_game(page: Page, server: PlayServer) -> None:
    page.errors()
    page.driver.get(server.url)
    page.wait_until("window.gpuvecPlay?.state === 'ready'")


def read(page: Page, expression: str) -> Any:
    return page.driver.execute_script(f"return gpuvecPlay.{expression}")


def test_cartpole_is_played_by_keys(page: Page, cartpole: PlayServer) -> None:
    assert page.texts("#env, #threshold, #max-steps") == ["gpuvec/CartPole-v1", " / 500", "475"]
    assert page.texts("#controls button") == ["left← A 1", "right→ D 2"]
    assert page.texts("#message-title") == ["Ready"]
    before = read(page, "frame.data")
    page.driver.execute_script(KEY, "keydown", "ArrowRight")
    page.wait_until("gpuvecPlay.frame.steps >= 2")
    assert page.driver.execute_script("return document.querySelectorAll('#controls .down').length") == 1
    assert read(page, "frame.data") != before
    # A cart that is always pushed to one side lets the pole fall soon.
    page.wait_until("gpuvecPlay.state === 'ended'")
    assert 2 <= read(page, "frame.steps") <= 20
    assert page.texts("#message-title") == ["The episode has ended"]
    assert page.numbers("#score") == page.numbers("#best") == [read(page, "frame.return")]
    page.driver.execute_script(KEY, "keyup", "ArrowRight")
    page.press(" ")
    page.wait_until("gpuvecPlay.frame.steps === 0 && gpuvecPlay.state === 'playing'")
    assert page.errors() == []


def test_the_picture_follows_the_state(page: Page, cartpole: PlayServer) -> None:
    picture = "return document.getElementById('below').toDataURL()"
    before = page.driver.execute_script(picture)
    page.press("2")
    page.wait_until("gpuvecPlay.frame.steps >= 5")
    assert page.driver.execute_script(picture) != before


def test_keys_choose_the_side(page: Page, cartpole: PlayServer) -> None:
    """The cart moves to the side of the key: its first mark, a polygon, is to the right of that of the other key."""
    centres = []
    page.find("#waits").click()  # so that the test is not in a hurry
    for key in "ad":
        page.press("r")
        page.wait_until("gpuvecPlay.frame.steps === 0 && gpuvecPlay.state === 'playing'")
        for step in range(1, 6):
            page.press(key)
            page.wait_until(f"gpuvecPlay.frame.steps === {step}")
        with cartpole._lock:
            centres.append(float(cartpole._game._envs.get_state()["x"][0]))
    assert centres[0] < -0.03 < 0.03 < centres[1]


def test_a_pause_stops_the_game(page: Page, cartpole: PlayServer) -> None:
    page.find("#waits").click()
    page.press("a")
    page.wait_until("gpuvecPlay.frame.steps === 1")
    page.press(" ")
    assert page.texts("#message-title, #pause") == ["Paused", "Continue"]
    page.press("a")
    page.press(" ")
    assert read(page, "state") == "playing"
    page.press("d")
    page.wait_until("gpuvecPlay.frame.steps === 2")


def test_a_step_for_each_key_press(page: Page, cartpole: PlayServer) -> None:
    page.find("#waits").click()
    for steps, key in enumerate("adad", 1):
        page.press(key)
        page.wait_until(f"gpuvecPlay.frame.steps === {steps}")
    assert read(page, "state") == "playing"


def test_buttons_are_for_touch_screens(page: Page, cartpole: PlayServer) -> None:
    page.driver.execute_script(TAP, 1)
    page.wait_until("gpuvecPlay.frame.steps >= 1")
    assert page.errors() == []


def test_the_page_fits_a_phone(page: Page, cartpole: PlayServer) -> None:
    size = page.driver.get_window_size()
    try:
        page.driver.set_window_size(400, 800)
        page.wait_until("window.innerWidth < 520")
        assert page.driver.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
        heights = "return [...document.querySelectorAll('#controls button')].map((b) => b.getBoundingClientRect().height)"
        assert min(page.driver.execute_script(heights)) >= 44  # which a finger meets
    finally:
        page.driver.set_window_size(size["width"], size["height"])


def test_a_second_page_takes_the_game_over_and_gives_it_back(page: Page, cartpole: PlayServer) -> None:
    page.find("#waits").click()
    first = page.driver.current_window_handle
    page.driver.switch_to.new_window("tab")
    open_game(page, cartpole)
    page.press("a")
    page.wait_until("gpuvecPlay.frame.steps >= 1")
    page.driver.close()  # a page that is closed lets the game wait
    page.driver.switch_to.window(first)
    page.press(" ")
    page.press("a")
    page.wait_until("gpuvecPlay.state === 'elsewhere'")
    assert page.texts("#message-title, #message-button") == ["The game continues in another page", "Play here"]
    page.find("#message-button").click()
    page.wait_until("gpuvecPlay.state === 'ready'")
    page.press("a")
    page.wait_until("gpuvecPlay.frame.steps === 1")
    page.errors()  # the refused request


def test_a_page_whose_server_has_ended_says_so(page: Page) -> None:
    with serving(Game("gpuvec/CartPole-v1", {}, "0", Others(""), seed=0), fps=50.0) as server:
        open_game(page, server)
    page.press("a")
    page.wait_until("gpuvecPlay.state === 'lost'")
    assert page.texts("#message-title") == ["No connection"]
    page.errors()


def test_agents_are_drawn_with_the_symbols_of_their_roles(page: Page) -> None:
    """The agents have a canvas of their own, on which nothing else is."""
    pixels = """
    const canvas = document.getElementById("agents");
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    return data.filter((alpha, k) => k % 4 === 3 && alpha === 255).length / (canvas.width * canvas.height);
    """
    with serving(Game("gpuvec/SimpleSpread-v0", {}, "0", Others("The others act at random."), seed=0), fps=50.0) as server:
        open_game(page, server)
        # Three circles whose radius is 0.15, on a square whose side is 2.3.
        assert page.driver.execute_script(pixels) == pytest.approx(3 * math.pi * 0.15**2 / 2.3**2, rel=0.2)
        assert page.errors() == []


def test_connect_four_waits_for_a_key_and_then_for_the_other_player(page: Page) -> None:
    game = Game("gpuvec/ConnectFour-v0", {}, "0", Others("The others act at random."), seed=0)
    with serving(game, fps=50.0) as server:
        open_game(page, server)
        assert page.texts("#players") == ["You play agent 0 of 2. The others act at random."]
        page.press("4")
        page.wait_until("gpuvecPlay.frame.steps === 2 && gpuvecPlay.frame.is_your_turn")
        assert page.texts("#note") == ["Your turn."]
        board = game._envs.get_state()["board"][0]
        assert board[5, 3] == 1
        assert (board == 2).sum() == 1
        assert page.errors() == []
