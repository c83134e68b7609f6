"""Draws `replay_tag.png` and `replay_cartpole.png`: two replays in a browser.

python docs/images/replays.py       # needs chromium, chromedriver and the extras `train` and `test`
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from tag_continuous import chase  # of the folder of this script

import gpuvec
from gpuvec import replay
from gpuvec.replay.recording import declared_names, find_neighbors, record_policy

FOLDER = Path(__file__).parent
Scenes = Sequence[replay.Scene]
Size = tuple[int, int]  # of a page [pixels]
SIZE = 1200, 760
COLOURS = 128  # of a picture
DETAILED = [0, 1, 2, 3, 8, 20]


def tag_scenes() -> Scenes:
    """Returns a game in which taggers turn towards the nearest runner; some agents have details."""
    envs: Any = gymnasium.make_vec(
        "gpuvec/TagContinuous-v0", num_envs=1, num_taggers=5, num_runners=100, tagging_distance=0.03, max_speed=0.3,
        skill_level_runner=0.6, num_turn_levels=31, use_full_observation=False, num_other_agents_observed=5, observe_self=True,
        max_episode_steps=150, device="cpu", output="numpy",
    )  # fmt: skip
    nvec, rng, observations = envs.single_action_space.nvec[0], np.random.default_rng(0), []

    def act(obs: Any) -> Any:
        observations.append(obs[0, DETAILED])
        return chase(envs.get_state(), nvec, rng)

    (episode,) = gpuvec.fetch_episode(envs, act, seed=5)
    envs.close()
    num_features = observations[0].shape[-1]
    details = replay.Details(
        DETAILED,
        action=episode.actions[:, DETAILED],
        action_sizes=nvec.tolist(),
        action_names=declared_names(episode, "action_names", int(nvec.sum())),
        observation=np.stack(observations),
        features=declared_names(episode, "feature_names", num_features),
        neighbors=find_neighbors(episode, DETAILED),
    )
    return [replay.Scene(episode, policy="taggers turn towards the nearest runner", details=details)]


def cartpole_scenes() -> Scenes:
    """Returns the trained policy of the demo, and one that pushes to the side to which the pole leans, on the same seed."""
    (trained,) = record_policy(gpuvec.load_policy("CartPole-v1"), "trained by PPO", seed=1, max_steps=200)
    envs: Any = gymnasium.make_vec("gpuvec/CartPole-v1", num_envs=1, device="cpu", output="numpy")
    (episode,) = gpuvec.fetch_episode(envs, lambda obs: (obs[:, 2] > 0.0).astype(np.int32), seed=1, max_steps=200)
    envs.close()
    return [trained, replay.Scene(episode, policy="pushes to the side of the pole")]


def take_screenshot(scenes: Scenes, script: str, size: Size = SIZE, theme: str = "light") -> bytes:
    """Returns a picture of the page of a replay as PNG.

    Args:
        scenes: what the replay shows.
        script: JavaScript that chooses the frame and the agent.
        size: of the page [pixels].
        theme: "light" or "dark".
    """
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(flag)
    with tempfile.TemporaryDirectory() as folder:
        path = replay.write(Path(folder) / "replay.html", scenes)
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver") or ""))
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": theme}]})
        driver.get(path.as_uri())
        driver.execute_async_script(f"gpuvecReplay.ready.then(() => {{ {script}; setTimeout(arguments[0], 300); }})")
        picture: bytes = driver.get_screenshot_as_png()
        driver.quit()
    return picture


PICTURES: dict[str, tuple[Callable[[], Scenes], str, Size]] = {
    "replay_tag": (tag_scenes, "gpuvecReplay.setFrame(24); gpuvecReplay.select(0, 1)", SIZE),
    "replay_cartpole": (cartpole_scenes, "gpuvecReplay.setFrame(40)", (1200, 630)),
}


def main() -> None:
    """Writes the pictures beside this script."""
    for name, (make_scenes, script, size) in PICTURES.items():
        with Image.open(BytesIO(take_screenshot(make_scenes(), script, size))) as picture:
            picture.convert("RGB").quantize(COLOURS).save(FOLDER / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
