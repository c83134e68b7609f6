"""Draws `tag_continuous.png`: four moments of a game in which taggers turn towards the nearest runner.

python docs/images/tag_continuous.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from PIL import Image

import gpuvec  # noqa: F401  # registers the environments

MOMENTS = (1, 15, 30, 60)  # steps
GAP = 12  # pixels between two pictures


def chase(state: dict[str, Any], nvec: Any, rng: np.random.Generator) -> Any:
    """Actions (E, A, 2): taggers accelerate and turn towards the nearest runner that is left; runners move at random."""
    action = rng.integers(0, nvec, (*state["x"].shape, 2)).astype(np.int32)
    for e in range(len(action)):
        x, y, heading = (state[name][e] for name in ("x", "y", "heading"))
        runners = np.flatnonzero((state["role"][e] == 1) & state["alive"][e])
        for i in np.flatnonzero(state["role"][e] == 0) if len(runners) else ():
            nearest = runners[np.hypot(x[runners] - x[i], y[runners] - y[i]).argmin()]
            angle = np.arctan2(y[nearest] - y[i], x[nearest] - x[i]) - heading[i]
            turn = np.clip((angle + np.pi) % (2.0 * np.pi) - np.pi, -np.pi / 2.0, np.pi / 2.0)
            action[e, i] = nvec[0] - 1, 1 + round((turn / np.pi + 0.5) * (nvec[1] - 2))  # choice 0 is no turn
    return action


def main() -> None:
    """Writes the picture beside this script."""
    envs: Any = gymnasium.make_vec(
        "gpuvec/TagContinuous-v0", num_envs=1, num_taggers=4, num_runners=24, tagging_distance=0.04, max_speed=0.2,
        skill_level_runner=0.5, num_turn_levels=31, device="cpu", output="numpy",
        render_mode="rgb_array", autoreset_mode="SameStep",
    )  # fmt: skip
    envs.reset(seed=5)
    nvec, rng, frames = envs.single_action_space.nvec[0], np.random.default_rng(0), []
    for step in range(1, max(MOMENTS) + 1):
        envs.step(chase(envs.get_state(), nvec, rng))
        if step in MOMENTS:
            frames.append(Image.fromarray(np.asarray(envs.render()[0])).resize((300, 300), Image.Resampling.LANCZOS))
    picture = Image.new("RGB", (300 * len(frames) + GAP * (len(frames) - 1), 300), "white")
    for number, frame in enumerate(frames):
        picture.paste(frame, (number * (300 + GAP), 0))
    picture.quantize(64).save(Path(__file__).with_suffix(".png"), optimize=True)
    envs.close()


if __name__ == "__main__":
    main()
