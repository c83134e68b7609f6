"""The player of replays in a browser, driven through its page: it shows what the arrays say, and nothing leaves the page."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

selenium_webdriver = pytest.importorskip("selenium.webdriver", reason="selenium, which drives a browser, is not installed")

from gpuvec import Canvas
from gpuvec.errors import ReplayError
from gpuvec.replay import page as page_module
from gpuvec.replay.document import VERSION, Replay, TrackWriter, read_replay, to_page
from gpuvec.replay.drawing import AGENT_STEP, HEADING_STEP, encode_drawing
from gpuvec.replay.page import BOOT, MODULES, join_modules
from gpuvec.replay.scene import encode_observation
from tests.replay.browser import Page, needs_browser
from tests.replay.player_samples import (
    ACTIONS,
    FEATURES,
    FORCES,
    SIZE,
    Game,
    play_tag,
    pole_scene,
    tag_scene,
    write_page,
)

PLAYER = Path(page_module.__file__).parent / "player"
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")

# WebGL is used with a GPU alone, which this hides; browsers under test have it in software.
HIDE_RENDERER = """
const getExtension = WebGLRenderingContext.prototype.getExtension;
WebGLRenderingContext.prototype.getExtension = function (name) {
  return name === "WEBGL_debug_renderer_info" ? null : getExtension.call(this, name);
};
"""
WITHOUT_WEBGL = """
const getAnyContext = HTMLCanvasElement.prototype.getContext;
HTMLCanvasElement.prototype.getContext = function (kind, options) {
  return kind === "webgl" ? null : getAnyContext.call(this, kind, options);
};
"""
COUNT_DARK_GREYS = """
const canvas = document.querySelector(".stage .above");
const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
const isGrey = (i) => pixels[i + 3] > 60 && pixels[i] < 120 && [1, 2].every((k) => Math.abs(pixels[i] - pixels[i + k]) < 8);
let count = 0;
for (let i = 0; i < pixels.length; i += 4) count += isGrey(i);
return count;
"""
READ_PIXEL = f"""
const canvas = document.querySelector(".stage .below");
const scale = canvas.width / {SIZE};
const pixel = canvas.getContext("2d").getImageData(arguments[0] * scale, arguments[1] * scale, 1, 1).data;
return [...pixel].slice(0, 3);
"""
NEXT_FRAME = "requestAnimationFrame(() => requestAnimationFrame(arguments[0]))"
COUNT_OVERFLOWING = """
const nodes = [...document.querySelectorAll(".scene, .dock > *, .side > *")];
return nodes.filter((node) => node.getBoundingClientRect().right > innerWidth).length;
"""
COUNT_CUT_NUMBERS = """
const left = (node) => node.getBoundingClientRect().left;
const labels = [...document.querySelectorAll(".rule span")].filter((node) => left(node) < left(node.closest(".chart")));
const numbers = [...document.querySelectorAll(".bars output")].filter((node) => node.scrollWidth > node.clientWidth);
return labels.length + numbers.length;
"""


@pytest.fixture(scope="module")
def games() -> list[Game]:
    return [play_tag(120, 12, 3, 1), play_tag(80, 12, 3, 2)]


@pytest.fixture(scope="module")
def replay(games: list[Game], tmp_path_factory: pytest.TempPathFactory) -> Path:
    tracks = TrackWriter()
    scenes = [
        tag_scene(tracks, games[0], title="Trained", seed=7, detailed=[0, 1, 5], cells=True),
        tag_scene(tracks, games[1], title="Random", seed=7, detailed=[], cells=False),
        pole_scene(tracks, 120),
    ]
    return write_page(tmp_path_factory.mktemp("replay") / "replay.html", scenes, tracks)


@pytest.fixture
def opened(page: Page, replay: Path) -> Iterator[Page]:
    page.errors()
    page.open(replay)
    yield page
    assert page.errors() == []


@needs_browser
def test_decoded_agents_are_those_that_were_stored(opened: Page, games: list[Game]) -> None:
    for scene, game in enumerate(games):
        for name, step in (("x", AGENT_STEP), ("y", AGENT_STEP), ("heading", HEADING_STEP)):
            tolerance = step / 2 + 1e-4
            np.testing.assert_allclose(opened.values(scene, f"agents.{name}"), getattr(game, name), rtol=0, atol=tolerance)
        np.testing.assert_array_equal(opened.values(scene, "agents.active"), game.active)
        np.testing.assert_array_equal(opened.values(scene, "agents.role"), game.role[None])


@needs_browser
def test_decoded_tracks_of_all_kinds_and_numbers_that_are_not_finite(opened: Page, replay: Path, games: list[Game]) -> None:
    header = read_replay(replay).header["scenes"]
    rewards = opened.values(0, "rewards")
    tolerance = header[0]["rewards"]["step"] / 2 + 1e-5
    np.testing.assert_allclose(rewards.cumsum(0), games[0].rewards.cumsum(0), rtol=0, atol=tolerance)
    assert header[2]["rewards"]["table"] == [1.0]
    np.testing.assert_array_equal(opened.values(2, "rewards"), np.ones((119, 1)))
    np.testing.assert_array_equal(opened.values(0, "details.action"), games[0].actions[:, [0, 1, 5]])
    theta = opened.values(2, "state.theta")
    assert np.flatnonzero(np.isnan(theta)).tolist() == [60]
    np.testing.assert_allclose(opened.values(2, "state.motion")[:, 1], np.sin(2 * np.arange(120) / 12), atol=1e-4)


@needs_browser
def test_only_the_file_itself_is_requested(page: Page, replay: Path) -> None:
    page.requests()
    page.open(replay)
    page.api("play()")
    page.api("select(0, 1)")
    requests = [url for url in page.requests() if not url.startswith(("data:", "blob:"))]
    assert requests == [replay.as_uri()]
    assert page.errors() == []


@needs_browser
def test_policy_of_the_page_blocks_other_scripts_and_requests(page: Page, replay: Path) -> None:
    page.open(replay)
    page.driver.execute_script(
        "const script = document.createElement('script');"
        "script.textContent = 'window.intruder = 1';"
        "document.body.append(script);"
        "new Image().src = 'https://example.invalid/pixel.png';"
    )
    assert page.driver.execute_script("return window.intruder ?? null") is None
    assert sum("Content Security Policy" in message for message in page.errors()) == 2


@needs_browser
def test_texts_of_the_replay_stay_texts(opened: Page) -> None:
    assert "CartPole </script><script>alert(1)</script>" in opened.texts(".scene h2")
    assert opened.driver.title == "gpuvec/TagContinuous-v0, gpuvec/CartPole-v0, replay"


@needs_browser
def test_play_and_pause(opened: Page) -> None:
    """In a loop, since on a busy machine all frames could be over before the second click."""
    opened.press("l")
    opened.set_speed("16")
    opened.find("#play").click()
    opened.wait_for("gpuvecReplay.frame > 5")
    opened.find("#play").click()
    frame = opened.api("frame")
    assert opened.driver.execute_async_script("setTimeout(() => arguments[0](gpuvecReplay.frame), 300)") == frame
    assert opened.texts("#frame") == [str(frame)]


@needs_browser
def test_play_ends_at_the_last_frame_and_loop_does_not(opened: Page) -> None:
    opened.set_speed("16")
    opened.api("setFrame(115)")
    opened.press(" ")
    assert opened.wait_for("!document.getElementById('play').classList.contains('playing')") == 119
    opened.press("l")
    opened.api("setFrame(115)")
    opened.press(" ")
    assert opened.wait_for("gpuvecReplay.frame < 100") < 100
    opened.api("pause()")


@needs_browser
def test_keys(opened: Page) -> None:
    right, left, home, end, escape = "\ue014", "\ue012", "\ue011", "\ue010", "\ue00c"
    opened.press(right + right + right + left)
    assert opened.api("frame") == 2
    opened.press(end)
    assert opened.api("frame") == 119
    opened.press(home)
    assert opened.api("frame") == 0
    opened.press("++-")
    assert opened.find("#speed").get_property("value") == "2"
    opened.press("t")
    assert opened.find("#trails").get_attribute("aria-pressed") == "false"
    opened.press("a")
    assert opened.find("#inspector h2").text.lower() == "tagger 0"
    opened.press("AA")
    assert opened.find("#inspector h2").text.lower() == "runner 11"
    opened.press(escape)
    assert not opened.find("#inspector").is_displayed()
    opened.press("?")
    assert opened.find("#help").is_displayed()
    opened.press(escape)
    assert not opened.find("#help").is_displayed()


@needs_browser
def test_shorter_scenes_stay_at_their_end(opened: Page, games: list[Game]) -> None:
    opened.api("setFrame(100)")
    assert [badge.is_displayed() for badge in opened.driver.find_elements("css selector", ".badge")] == [False, True, False]
    counts = opened.texts(".scene:nth-child(2) .legend output")
    assert counts == ["3 / 3", f"{games[1].active[-1][3:].sum()} / 9"]


@needs_browser
def test_click_on_the_time_line_and_on_an_event(opened: Page, games: list[Game]) -> None:
    track = opened.find("#timeline .track").size["width"]
    opened.click("#timeline .track", 8 + 0.5 * (track - 16), 7)
    assert abs(opened.api("frame") - 59.5) <= 2
    frame = int(games[0].active[:, 6].argmin())
    marks = opened.driver.find_elements("css selector", ".lane:nth-child(2) .mark")
    (mark,) = (mark for mark in marks if mark.get_property("textContent") == f"{frame} tagger 0 tags runner 6.")
    selenium_webdriver.ActionChains(opened.driver).click(mark).perform()
    assert opened.api("frame") == frame
    assert opened.find("#inspector h2").text.lower() == "runner 6"
    assert mark.find_element("css selector", ".tooltip").is_displayed()


@needs_browser
def test_click_on_a_curve(opened: Page) -> None:
    width = opened.find(".scene .plot").size["width"]
    opened.click(".scene .plot", 0.75 * width, 20)
    assert abs(opened.api("frame") - 0.75 * 119) <= 2


@needs_browser
def test_click_on_an_agent_shows_its_details(opened: Page, games: list[Game]) -> None:
    frame, agent = 50, 1
    game = games[0]
    opened.api(f"setFrame({frame})")
    scale = opened.find(".stage").size["width"] / SIZE
    opened.click(".stage", game.x[frame, agent] * scale, game.y[frame, agent] * scale)
    assert opened.find("#inspector h2").text.lower() == "tagger 1"
    numbers = dict(zip(opened.texts("#inspector .chart b"), opened.numbers("#inspector .chart output"), strict=True))
    step = np.ptp(opened.values(0, "rewards")) / 1000
    np.testing.assert_allclose(numbers["Reward"], game.rewards[frame - 1, agent], rtol=5e-3, atol=step)
    np.testing.assert_allclose(numbers["Return"], game.rewards[:frame, agent].sum(), rtol=5e-3, atol=step)
    np.testing.assert_allclose(numbers["Value"], opened.values(0, "details.value")[frame, 1], rtol=5e-3)
    taken = ACTIONS[game.actions[frame, agent, 0]]
    assert opened.texts("#inspector .chosen .name") == [taken]
    probabilities = opened.numbers("#inspector .bars:not(.signed) output")
    np.testing.assert_allclose(probabilities, opened.values(0, "details.probabilities")[frame, 1], rtol=6e-3, atol=1e-4)
    observation = np.array(opened.numbers("#inspector .bars.signed output"))
    expected = [game.x[frame, agent] / SIZE, game.y[frame, agent] / SIZE, np.sin(game.heading[frame, agent])]
    np.testing.assert_allclose(observation[[1, 2, 4]], expected, atol=1 / 127 + 5e-3)
    names = opened.texts("#inspector .chip")
    neighbors = opened.values(0, "details.neighbors")[frame, 1].astype(int)
    assert names == [f"{'runner' if game.role[k] else 'tagger'} {k}" for k in neighbors]
    opened.driver.execute_script("document.querySelector('#inspector .chip').click()")
    assert opened.find("#inspector h2").text.lower() == names[0]


@needs_browser
def test_taken_action_of_each_component_is_marked(opened: Page) -> None:
    opened.api("select(2, 0)")
    for frame in (4, 9):
        opened.api(f"setFrame({frame})")
        taken = [FORCES[frame % 2], FORCES[2 + frame % 3]]
        assert opened.texts("#inspector .chosen .name") == taken
        assert opened.texts("#inspector section p")[0] == f"Taken: {', '.join(taken)}"


@needs_browser
def test_neighbor_slots_are_linked_in_the_picture(opened: Page) -> None:
    opened.api("setFrame(50)")
    before = opened.driver.execute_script(COUNT_DARK_GREYS)
    opened.api("select(0, 1)")
    assert opened.driver.execute_script(COUNT_DARK_GREYS) > before + 50


@needs_browser
def test_agent_without_details_says_so(opened: Page) -> None:
    opened.api("select(0, 4)")
    assert opened.texts("#inspector > .note") == ["This replay has details of agent 0, 1, 5 alone."]
    opened.api("select(1, 0)")
    assert opened.texts("#inspector > .note") == [
        "This replay has no details (observation, action probabilities, value) of its agents."
    ]


@needs_browser
def test_number_that_is_not_finite_is_marked(opened: Page) -> None:
    opened.api("select(0, 0)")
    opened.api(f"setFrame({119 // 3})")
    assert opened.texts("#inspector .not-finite .name") == ["speed"]
    assert opened.texts("#inspector .not-finite output") == ["NaN"]


@needs_browser
def test_pixels_of_cells_and_layouts(opened: Page, games: list[Game]) -> None:
    """Cells fill their box with the colours of the palette, and the polygon of the second layout replaces them."""
    grass = (np.random.default_rng(7).random((120, 20, 20)).cumsum(0) % 7 > 3).astype(int)
    opened.press("t")
    for frame in (0, 30, 59):
        opened.api(f"setFrame({frame})")
        x, y = games[0].x[frame], games[0].y[frame]
        cells = [(r, c) for r in range(1, 19) for c in range(1, 19) if min(np.hypot(x - 29 - 18 * c, y - 29 - 18 * r)) > 30]
        assert len(cells) > 100
        for r, c in cells[::40]:
            colour = [255, 255, 255] if grass[frame, r, c] else [217, 217, 217]
            assert opened.driver.execute_script(READ_PIXEL, 29 + 18 * c, 29 + 18 * r) == colour
    opened.api("setFrame(70)")
    centre = 200 + 40 * np.sin(70 / 9)
    assert opened.driver.execute_script(READ_PIXEL, centre, centre) == [0x6A, 0x99, 0x4E]


COUNT_INK = """
const [canvas, left, right] = [document.querySelector(".stage .below"), arguments[0], arguments[1]];
const scale = canvas.width / 200;
const pixels = canvas.getContext("2d").getImageData(left * scale, 0, (right - left) * scale, canvas.height).data;
let count = 0;
for (let i = 0; i < pixels.length; i += 4) count += Math.abs(pixels[i] - pixels[0]) > 60;
return count;
"""


def write_drawings(path: Path, canvases: list[Canvas], **changes: Any) -> Path:
    """Writes a replay of pictures without agents; `changes` are made to its first mark."""
    tracks = TrackWriter()
    drawing = encode_drawing(canvases, tracks)
    drawing["layouts"][0]["marks"][0] |= changes
    scene = {
        "title": "t", "env": "e", "policy": "", "num_frames": len(canvases), "fps": 10, "events": [], **drawing,
        "rewards": tracks.add(np.zeros((len(canvases) - 1, 1), np.float32)),
    }  # fmt: skip
    return write_page(path, [scene], tracks)


@needs_browser
def test_texts_are_written_where_they_are_in_videos(page: Page, tmp_path: Path) -> None:
    """A text is at the side of its position that its alignment says, and changes with the frame; long ones are condensed."""
    canvases = [Canvas(200, 40) for _ in range(3)]
    for canvas, text, align in zip(canvases, ("left", "right", "w" * 200), ("left", "right", "left"), strict=True):
        canvas.text((100.0, 20.0), text, 16, align=align)
    page.open(write_drawings(tmp_path / "texts.html", canvases))
    page.driver.execute_async_script(NEXT_FRAME)
    for frame, canvas in enumerate(canvases):
        page.api(f"setFrame({frame})")
        ink = [page.driver.execute_script(COUNT_INK, left, left + 100) for left in (0, 100)]
        in_video = [(canvas.array()[:, left : left + 100, 0] < 128).sum() for left in (0, 100)]
        written, empty = (0, 1) if frame == 1 else (1, 0)
        assert ink[written] > 50
        assert ink[empty] == 0
        assert in_video[written] > 30
        assert in_video[empty] == 0
    assert page.errors() == []


@needs_browser
@pytest.mark.parametrize(
    "changes",
    [
        {"texts": None},
        {"texts": {"0": "a"}},
        {"text": None},
        {"text": {"offset": 0}},
        {"points": 1e9},
        {"points": -1},
        {"points": "x"},
    ],
)
def test_damaged_texts_are_refused(page: Page, tmp_path: Path, changes: dict[str, Any]) -> None:
    canvases = [Canvas(200, 40) for _ in range(2)]
    for canvas in canvases:
        canvas.text((100.0, 20.0), "text")
    page.driver.get(write_drawings(tmp_path / "damaged.html", canvases, **changes).as_uri())
    page.wait_until("document.getElementById('message').textContent.includes('damaged')")


@needs_browser
@pytest.mark.parametrize("changes", [{"texts": []}, {"texts": [7]}, {"size": "9px; x"}, {"size": None}, {"align": 3}])
def test_texts_that_cannot_be_written_are_left_out(page: Page, tmp_path: Path, changes: dict[str, Any]) -> None:
    canvases = [Canvas(200, 40) for _ in range(2)]
    for canvas in canvases:
        canvas.text((100.0, 20.0), "text")
    page.errors()
    page.open(write_drawings(tmp_path / "odd.html", canvases, **changes))
    page.driver.execute_async_script(NEXT_FRAME)
    assert page.errors() == []
    has_ink = page.driver.execute_script(COUNT_INK, 0, 200) > 0
    assert has_ink == ("texts" not in changes)


@needs_browser
def test_black_and_white_animals_look_the_same_on_a_dark_page(page: Page, tmp_path: Path) -> None:
    canvases = [Canvas(200, 40, 20.0) for _ in range(2)]
    for canvas in canvases:
        canvas.cells(np.array([[0, 1]]), ((128, 172, 92), (116, 92, 62)))
        x, role, colours = np.array([2.5, 7.5]), np.arange(2), ((20, 20, 24), (255, 255, 255))
        canvas.agents(x, np.ones(2), 0.9, role=role, names=("a", "b"), symbols=("circle", "circle"), colours=colours)
    path, tracks = tmp_path / "animals.html", TrackWriter()
    scene = {
        "title": "t", "env": "e", "policy": "", "num_frames": 2, "fps": 10, "events": [], **encode_drawing(canvases, tracks),
        "rewards": tracks.add(np.zeros((1, 2), np.float32)),
    }  # fmt: skip
    write_page(path, [scene], tracks)
    read = """const canvas = document.querySelector(`.stage .${arguments[0]}`);
    const scale = canvas.width / 200;
    return [...canvas.getContext("2d").getImageData(arguments[1] * scale, 20 * scale, 1, 1).data].slice(0, 3);"""
    try:
        for theme in ("light", "dark"):
            media = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
            page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
            page.open(path)
            page.driver.execute_async_script(NEXT_FRAME)
            assert [page.driver.execute_script(read, "agents", x) for x in (50, 150)] == [[20, 20, 24], [255, 255, 255]]
            assert [page.driver.execute_script(read, "below", x) for x in (10, 190)] == [[128, 172, 92], [116, 92, 62]]
            assert page.find("#trails").get_attribute("aria-pressed") == "false"  # They would hide the map.
    finally:
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@needs_browser
def test_a_frame_does_not_depend_on_those_before(page: Page, replay: Path) -> None:
    """In a small picture too, nothing is left of an earlier frame."""
    read = "return [...document.querySelectorAll('.stage canvas')].map((canvas) => canvas.toDataURL())"
    metrics = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        pictures = []
        for frames in ((70,), (0, 30, 70)):
            page.open(replay)
            page.api("select(0, 1)")
            page.driver.execute_async_script(NEXT_FRAME)  # in which the size of the pictures is known
            for frame in frames:
                page.api(f"setFrame({frame})")
            page.driver.execute_async_script(NEXT_FRAME)
            pictures.append(page.driver.execute_script(read))
        assert len(pictures[0]) == 6
        assert pictures[0] == pictures[1]
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@needs_browser
@pytest.mark.parametrize(
    ("renderer", "script"), [("webgl", ""), ("2d", ""), ("2d", WITHOUT_WEBGL)], ids=["webgl", "software", "no-webgl"]
)
def test_many_agents(page: Page, tmp_path: Path, renderer: str, script: str) -> None:
    tracks, game = TrackWriter(), play_tag(20, 2500, 100, 3)
    game.x[5:, 7] = np.nan
    scene = tag_scene(tracks, game, title="Many", seed=1, detailed=[7], cells=False, radius=2.0)
    path = write_page(tmp_path / "many.html", [scene], tracks)
    page.errors()
    with page.script_before_load(HIDE_RENDERER if renderer == "webgl" else script):
        page.open(path)
    assert page.api("renderer(0)") == renderer
    page.api("setFrame(8)")
    np.testing.assert_allclose(page.values(0, "agents.x")[8], game.x[8], atol=AGENT_STEP / 2 + 1e-4)
    scale = page.find(".stage").size["width"] / SIZE
    x, y = game.x[8, 300] * scale, game.y[8, 300] * scale
    page.click(".stage", x, y)
    chosen = int(page.find("#inspector h2").text.split()[1])
    assert np.hypot(game.x[8, chosen] - game.x[8, 300], game.y[8, chosen] - game.y[8, 300]) < 2.0
    page.api("select(0, null)")
    image = page.find(".stage .agents").screenshot_as_png
    page.api("setFrame(12)")
    assert page.find(".stage .agents").screenshot_as_png != image
    assert page.errors() == []


@needs_browser
@pytest.mark.parametrize(
    ("edit", "title"),
    [
        (lambda text: text[: len(text) - 5000], "This file is incomplete or damaged"),
        (lambda text: text[: text.index('id="replay-header"') + 900], "This file is damaged"),
        (lambda text: text[: text.index('id="replay-player"') + 9000], "This file is incomplete or damaged"),
        (lambda text: text[: text.index("async function inflate")], "Loading the replay"),
        (lambda text: text.replace(f'"version":{VERSION},', '"version":9,', 1), "This replay has version 9 of the format"),
        (lambda text: text.replace('"format":"gpuvec-replay"', '"format":"other"', 1), "This file is damaged"),
        (lambda text: re.sub(r'"offset":\d+', '"offset":99999999', text), "This file is damaged"),
    ],
    ids=["cut-data", "cut-header", "cut-player", "cut-script", "version", "format", "offset"],
)
def test_damaged_file_shows_a_message(page: Page, replay: Path, tmp_path: Path, edit: Any, title: str) -> None:
    path = tmp_path / "damaged.html"
    path.write_text(edit(replay.read_text("utf-8")), "utf-8")
    page.driver.get(path.as_uri())
    page.driver.execute_async_script("(window.gpuvecReplay?.ready ?? Promise.resolve()).catch(() => {}).then(arguments[0])")
    assert page.find("#message h1").text == title
    assert page.find("#message p").text
    assert not page.find("#app").is_displayed()
    page.errors()


@needs_browser
def test_browser_without_decompression_shows_a_message(page: Page, replay: Path) -> None:
    with page.script_before_load("delete window.DecompressionStream"):
        page.driver.get(replay.as_uri())
    page.driver.execute_async_script("gpuvecReplay.ready.catch(() => {}).then(arguments[0])")
    assert page.find("#message h1").text == "This browser is too old for replays"


@needs_browser
@pytest.mark.parametrize("width", [400, 1280])
def test_page_fits_into_the_width(page: Page, replay: Path, width: int) -> None:
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        page.open(replay)
        page.api("setFrame(100)")
        page.api("select(0, 1)")
        assert page.driver.execute_script("return document.documentElement.scrollWidth") == width
        assert page.driver.execute_script(COUNT_OVERFLOWING) == 0
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@needs_browser
def test_long_numbers_are_shown_as_a_whole(page: Page, games: list[Game], tmp_path: Path) -> None:
    tracks = TrackWriter()
    scene = tag_scene(tracks, games[0], title="t", seed=7, detailed=[0], cells=False)
    steps = len(games[0].rewards)
    scene["details"] |= encode_observation(np.full((steps, 1, len(FEATURES)), -0.00781), tracks)
    scene["details"]["value"] = tracks.add(-99.7767 - 0.003 * np.linspace(0.0, 1.0, steps)[:, None])
    page.open(write_page(tmp_path / "numbers.html", [scene], tracks))
    page.api("select(0, 0)")
    page.driver.execute_async_script(NEXT_FRAME)
    assert "\u221299.7797" in page.find("#inspector").text
    assert page.driver.execute_script(COUNT_CUT_NUMBERS) == 0


@needs_browser
@pytest.mark.parametrize("width", [400, 1280])
def test_the_only_agent_is_chosen_at_once_where_its_panel_covers_nothing(page: Page, tmp_path: Path, width: int) -> None:
    tracks = TrackWriter()
    path = write_page(tmp_path / "pole.html", [pole_scene(tracks, 30)], tracks)
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        page.open(path)
        assert page.find("#inspector").is_displayed() == (width == 1280)
        page.find(".scene h2").click()
        assert page.find("#inspector").is_displayed()
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@needs_node
@pytest.mark.parametrize("name", [*BOOT, *MODULES])
def test_module_is_valid(name: str) -> None:
    source = (PLAYER / f"{name}.js").read_bytes()
    subprocess.run(["node", "--input-type=module", "--check"], input=source, check=True)


@needs_node
@pytest.mark.parametrize("names", [BOOT, MODULES], ids=["boot", "player"])
def test_modules_in_one_script_are_valid(names: tuple[str, ...]) -> None:
    script = join_modules(names)
    assert not re.search(r"^(import|export)\b", script, re.MULTILINE)
    assert "</script" not in script
    assert "<!--" not in script
    subprocess.run(["node", "--input-type=module", "--check"], input=script.encode(), check=True)


def test_modules_are_listed_once_and_after_those_that_they_import() -> None:
    assert sorted((*BOOT, *MODULES)) == sorted(path.stem for path in PLAYER.glob("*.js"))
    for k, name in enumerate(names := (*BOOT, *MODULES)):
        imports = re.findall(r'from "\./(\w+)\.js"', (PLAYER / f"{name}.js").read_text("utf-8"))
        assert set(imports) <= set(names[:k])


def test_modules_are_short_and_legible() -> None:
    lines = [line for path in PLAYER.glob("*.js") for line in path.read_text("utf-8").splitlines()]
    assert len(lines) < 1700
    assert max(map(len, lines)) <= 128


def test_header_that_is_not_json_is_refused() -> None:
    with pytest.raises(ReplayError, match="JSON"):
        to_page(Replay({"scenes": [], "low": float("nan")}, b""))
