"""The page of a demo in a browser: it plays at once, says what it shows, and its pictures fill the window."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("selenium.webdriver", reason="selenium, which drives a browser, is not installed")

from gpuvec.replay.document import TrackWriter
from gpuvec.replay.scene import encode_rewards
from tests.replay.browser import MINUS, Page, needs_browser
from tests.replay.player_samples import SIZE, play_tag, pole_scene, tag_scene, write_page

ABOUT = [["The game", "Taggers chase runners."], ["Who should win", "Nobody <b>."], ["This policy", "Its return is 3."]]
ESCAPE = "\ue00c"
SETTLED = "requestAnimationFrame(() => requestAnimationFrame(() => requestAnimationFrame(arguments[0])))"
BOXES = """
return [...document.querySelectorAll(arguments[0])].map((node) => node.getBoundingClientRect())
  .filter(({ width }) => width).map(({ left, right, top, bottom }) => [left, right, top, bottom]);
"""


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tracks = TrackWriter()
    scenes = [
        tag_scene(tracks, play_tag(60, 12, 3, seed), title="Trained", seed=seed, detailed=[], cells=False) for seed in range(4)
    ]
    path = tmp_path_factory.mktemp("demo") / "demo.html"
    return write_page(path, scenes, tracks, about=ABOUT, autoplay=True)


@contextmanager
def opened(page: Page, path: Path, width: int, height: int, **media: str) -> Iterator[None]:
    """Opens a page in a window of a size, with features of media such as prefers-color-scheme."""
    features = [{"name": name.replace("_", "-"), "value": value} for name, value in media.items()]
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    try:
        page.errors()
        page.open(path)
        yield
        assert page.errors() == []
    finally:
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def boxes(page: Page, selector: str) -> list[list[float]]:
    """Returns left, right, top and bottom of the visible elements."""
    page.driver.execute_async_script(SETTLED)
    return page.driver.execute_script(BOXES, selector)


def area(rectangles: list[list[float]]) -> float:
    return sum((right - left) * (bottom - top) for left, right, top, bottom in rectangles)


@needs_browser
def test_it_plays_without_a_click_and_begins_again(page: Page, demo: Path) -> None:
    with opened(page, demo, 1280, 800, prefers_reduced_motion="no-preference"):
        page.wait_for("gpuvecReplay.frame > 2")
        page.set_speed("16")
        page.wait_for("gpuvecReplay.frame === 59")
        page.wait_for("gpuvecReplay.frame < 30")


@needs_browser
def test_it_does_not_play_by_itself_for_readers_who_prefer_less_motion(page: Page, demo: Path) -> None:
    with opened(page, demo, 1280, 800, prefers_reduced_motion="reduce"):
        assert page.api("state")["isPlaying"] is False


@needs_browser
def test_it_says_what_it_shows(page: Page, demo: Path) -> None:
    with opened(page, demo, 1280, 800):
        assert page.texts("#about p") == [f"{title} {text}" for title, text in ABOUT]
        assert page.find("#about").is_displayed()


@needs_browser
def test_four_scenes_fill_the_window(page: Page, demo: Path) -> None:
    with opened(page, demo, 1600, 1000):
        scenes, pictures = boxes(page, ".scene"), boxes(page, ".stage")
        assert len({left for left, *_ in scenes}) == len({top for _, _, top, _ in scenes}) == 2
        ((_, _, dock, _),) = boxes(page, ".dock")
        assert dock - max(bottom for *_, bottom in scenes) < 40
        assert area(pictures) > 0.25 * 1600 * 1000
        for (left, right, top, bottom), card in zip(pictures, scenes, strict=True):
            assert right - left == pytest.approx(bottom - top, abs=1.0)
            assert card[0] < left
            assert right < card[1]
            assert card[2] < top
            assert bottom < card[3]


@needs_browser
@pytest.mark.parametrize("back", ["click", "key"])
def test_a_click_shows_one_scene_alone_and_another_one_all(page: Page, demo: Path, back: str) -> None:
    with opened(page, demo, 1600, 1000):
        page.api("pause()")
        before = area(boxes(page, ".stage")[:1])
        page.driver.execute_script("document.querySelectorAll('.enlarge')[2].click()")
        (large,) = boxes(page, ".stage")
        assert area([large]) > 2.5 * before
        assert page.texts(".scene:not([hidden]) .number") == ["3"]
        if back == "click":
            page.find(".scene:not([hidden]) .enlarge").click()
        else:
            page.press(ESCAPE)
        assert len(boxes(page, ".stage")) == 4


@needs_browser
def test_a_click_beside_the_agents_of_a_picture_shows_its_scene_alone(page: Page, demo: Path) -> None:
    with opened(page, demo, 1600, 1000):
        page.api("pause()")
        page.api("setFrame(0)")
        agents = np.stack([page.values(0, f"agents.{axis}")[0] for axis in "xy"], 1)
        places = np.stack(np.meshgrid(np.arange(30, SIZE - 30, 10), np.arange(30, SIZE - 30, 10)), -1).reshape(-1, 2)
        x, y = places[np.linalg.norm(places[:, None] - agents, axis=2).min(1).argmax()]
        for count in (1, 4):
            ((left, right, _, _), *_) = boxes(page, ".stage")
            scale = (right - left) / SIZE
            page.click(".stage", x * scale, y * scale)
            assert len(boxes(page, ".stage")) == count
        ((left, right, _, _), *_) = boxes(page, ".stage")
        page.click(".stage", *(agents[0] * (right - left) / SIZE))
        assert len(boxes(page, ".stage")) == 4
        assert page.find("#inspector").is_displayed()


@needs_browser
def test_a_phone_has_one_column_without_scrolling_to_the_side(page: Page, demo: Path) -> None:
    with opened(page, demo, 400, 850):
        scenes = boxes(page, ".scene")
        assert len({left for left, *_ in scenes}) == 1
        assert all(above[3] <= below[2] for above, below in itertools.pairwise(scenes))
        assert page.driver.execute_script("return document.documentElement.scrollWidth") == 400
        assert all(right <= 400 for _, right, _, _ in [*scenes, *boxes(page, ".side > *"), *boxes(page, ".dock > *")])
        assert page.find("#about summary").is_displayed()
        assert boxes(page, "#about")[0][3] < scenes[0][2]


@needs_browser
def test_the_last_event_stands_above_the_picture(page: Page, demo: Path) -> None:
    with opened(page, demo, 1600, 1000):
        page.api("pause()")
        page.api("setFrame(0)")
        assert page.texts(".caption") == [""] * 4
        page.api("setFrame(59)")
        assert page.texts(".caption")[0].startswith("tagger 0 tags runner") or page.texts(".caption")[0].startswith(
            "The episode"
        )


@needs_browser
@pytest.mark.parametrize("about", ["text", [1, None], {"title": 3}, [["<img src=x>", 4, {}]], None])
def test_texts_of_an_unknown_form_do_no_harm(page: Page, tmp_path: Path, about: Any) -> None:
    tracks = TrackWriter()
    scene = tag_scene(tracks, play_tag(20, 12, 3, 1), title="Trained", seed=1, detailed=[], cells=False)
    path = write_page(tmp_path / "odd.html", [scene], tracks, about=about, autoplay="yes")
    with opened(page, path, 1280, 800):
        assert page.api("state")["isPlaying"] is False
        assert page.driver.execute_script("return document.querySelectorAll('#about img').length") == 0


@needs_browser
def test_a_phone_shows_names_as_a_whole_and_pictures_do_not_move(page: Page, demo: Path) -> None:
    """The name of the environment goes before the number of frames, and the last event has a line of its own."""
    is_whole = """
    return [...document.querySelectorAll(arguments[0])].every((element) => {
      const [{ width }, range] = [element.getBoundingClientRect(), document.createRange()];
      range.selectNodeContents(element);
      return range.getBoundingClientRect().width <= width;
    });
    """
    with opened(page, demo, 400, 850):
        page.api("pause()")
        page.api("setFrame(0)")
        before = boxes(page, ".stage")
        page.api("setFrame(59)")
        assert all(page.texts(".caption"))
        assert page.driver.execute_script(is_whole, ".top h1, .scene h2, .scene header p")
        assert boxes(page, ".stage") == before


@needs_browser
def test_a_phone_names_the_paragraphs_that_a_click_opens(page: Page, demo: Path) -> None:
    with opened(page, demo, 400, 850):
        assert page.find("#about .more").text == "This policy …"
        page.find("#about summary").click()
        assert not page.find("#about .more").is_displayed()
        assert "Its return is 3." in page.find("#about").text
    with opened(page, demo, 1280, 800):
        assert not page.find("#about .more").is_displayed()


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A game of two agents that are not drawn: the first one wins in the last step, by forces that have a name."""
    tracks = TrackWriter()
    rewards = np.zeros((20, 2), np.float32)
    rewards[-1] = 1.0, -1.0
    scene = pole_scene(tracks, 21) | {
        "title": "Board",
        "rewards": encode_rewards(rewards, tracks),
        "events": [
            {"frame": 5, "kind": "end", "text": "An odd end."},
            {"frame": 20, "kind": "win", "text": "player 0 wins"},
            {"frame": 20, "kind": "end", "text": "terminated"},
        ],
    }
    scene["details"] |= {
        "action": tracks.add(np.full((20, 1, 2), [-1.5, 0.25], np.float32)), "action_sizes": None, "probabilities": None,
        "action_names": ["force", "brake"],
    }  # fmt: skip
    return write_page(tmp_path_factory.mktemp("board") / "board.html", [scene], tracks)


@needs_browser
def test_agents_that_are_not_drawn_have_curves_of_their_own(page: Page, board: Path) -> None:
    with opened(page, board, 1280, 800):
        assert page.find("#hint").text.startswith("Click a scene to see ")
        page.api("setFrame(20)")
        assert page.texts(".scene .chart:first-child b") == ["Reward"]
        assert page.texts(".scene .chart:first-child .series") == ["agent 01", f"agent 1{MINUS}1"]


@needs_browser
def test_pages_with_agents_in_pictures_say_that_they_can_be_clicked(page: Page, demo: Path) -> None:
    with opened(page, demo, 1280, 800):
        assert page.find("#hint").text.startswith("Click an agent to see ")


@needs_browser
def test_continuous_actions_have_names_and_numbers(page: Page, board: Path) -> None:
    with opened(page, board, 1280, 800):
        page.api("select(0, 0)")
        assert page.texts("#inspector section p")[0] == f"Taken: force {MINUS}1.5, brake 0.25"


@needs_browser
def test_the_end_of_an_episode_hides_no_other_mark(page: Page, board: Path) -> None:
    """It has one where nothing else says how the episode ended, and it is in the list of events either way."""
    with opened(page, board, 1280, 800):
        assert page.texts(".lane .tooltip") == ["5 An odd end.", "20 player 0 wins"]
        assert page.texts("#event-list li span:last-child") == ["An odd end.", "player 0 wins", "terminated"]
