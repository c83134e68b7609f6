"""Replays in notebooks: the HTML of an object that a cell returns plays in a page of its own."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

pytest.importorskip("selenium.webdriver", reason="selenium, which drives a browser, is not installed")

import gpuvec
from gpuvec import replay
from gpuvec.errors import ReplayError
from tests.replay.browser import Page, needs_browser


@pytest.fixture(scope="module")
def episode():
    envs = gymnasium.make_vec("gpuvec/CartPole-v1", num_envs=1, device="cpu", output="numpy")
    return gpuvec.fetch_episode(envs, lambda obs: np.array([1]), seed=0)[0]


@needs_browser
def test_a_notebook_plays_it_in_a_frame(page: Page, episode, tmp_path) -> None:
    shown = replay.show(episode, height=500)
    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<!doctype html><meta charset='utf-8'><h1>cell</h1>{shown._repr_html_()}", encoding="utf-8")
    page.errors()
    page.driver.get(notebook.as_uri())
    frame = page.find("iframe")
    assert frame.size["height"] == 500
    page.driver.switch_to.frame(frame)
    ready = "gpuvecReplay.ready.then(() => arguments[0](null), (error) => arguments[0](`${error.stack}`))"
    assert page.driver.execute_async_script(ready) is None
    page.api(f"setFrame({len(episode.rewards)})")
    assert page.texts(".badge, .scene h2") == ["gpuvec/CartPole-v1", "ended"]
    np.testing.assert_allclose(page.values(0, "rewards")[:, 0], episode.rewards)
    reached = "try { return parent.document.title } catch (error) { return error.name }"
    assert page.driver.execute_script(reached) == "SecurityError"
    page.driver.switch_to.default_content()
    assert page.errors() == []


def test_terminals_show_a_short_text(episode) -> None:
    assert repr(replay.show([episode, episode])) == f"<replay of 2 scenes, {len(episode.rewards) + 1} frames>"


def test_wrong_arguments(episode) -> None:
    with pytest.raises(ReplayError, match="at least one episode"):
        replay.show([])
    with pytest.raises(ValueError, match="height must be at least 1 pixel, got 0"):
        replay.show(episode, height=0)
