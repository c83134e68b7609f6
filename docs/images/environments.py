"""Draws `env_<name>.png`, a moment of an episode of each bundled environment, and `demo.webp`, four games that move.

python docs/images/environments.py                          # needs the extras `train` and `render`
python docs/images/environments.py Pendulum-v1 RICE-N-v0    # these alone
python docs/images/environments.py demo                     # the moving picture alone

Those with a policy that comes with gpuvec are played by it, and the others by the rules below.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from PIL import Image

import gpuvec
from gpuvec import replay
from gpuvec.registration import registered_envs
from gpuvec.replay.recording import record_policy
from gpuvec.replay.scene import draw_frames

FOLDER = Path(__file__).parent
COLOURS = 128  # of a picture
MOVING = ("TagContinuous-v0", "Predators-v0", "Breakout-v0", "EpidemicEconomy-v0")  # 2 x 2
SIDE, GAP, NUM_FRAMES, MILLISECONDS = 300, 12, 120, 80  # of the moving picture, the first two in pixels
Act = Callable[..., Any]


class Example(NamedTuple):
    """An episode to look at.

    Attributes:
        moment: the frame that the picture shows; a negative one counts from the end.
        act: the rule that plays, which is made for the environment; None for the policy that comes with gpuvec.
        policy: the name of that policy; "" for that of the environment.
        says: what the rule does, for the page of a replay.
        seed: of the episode.
        max_steps: the length of the recording.
    """

    moment: int
    act: Callable[[Any], Act] | None = None
    policy: str = ""
    says: str = "trained by PPO"
    seed: int = 0
    max_steps: int | None = 200


def swing(envs: Any) -> Act:
    """Pushes the car in the direction in which it moves."""
    is_continuous = isinstance(envs.single_action_space, gymnasium.spaces.Box)
    return lambda obs: np.sign(obs[:, 1:]).astype(np.float32) if is_continuous else np.where(obs[:, 1] < 0.0, 0, 2)


def steer(difference: Any, velocity: Any) -> Any:
    """Returns the action that accelerates a particle to the place at a difference, (E, 2), and brakes before it, (E,)."""
    wanted = difference - 0.3 * velocity
    along_x = np.abs(wanted[:, 0]) > np.abs(wanted[:, 1])
    action = np.where(along_x, np.where(wanted[:, 0] > 0.0, 2, 1), np.where(wanted[:, 1] > 0.0, 4, 3))
    return np.where(np.abs(wanted).max(1) < 0.05, 0, action)


def speak_and_listen(envs: Any) -> Act:
    """Says the number of the goal, and moves to the landmark with the number of the word."""

    def act(obs: Any) -> Any:
        speaker, listener = obs["speaker"][:, 0], obs["listener"][:, 0]
        count = speaker.shape[1]
        word = listener[:, 2 + 2 * count :]
        landmarks = listener[:, 2 : 2 + 2 * count].reshape(-1, count, 2)
        target = np.take_along_axis(landmarks, word.argmax(1)[:, None, None], 1)[:, 0]
        moves = np.where(word.any(1), steer(target, listener[:, :2]), 0)
        return {"speaker": speaker.argmax(1)[:, None].astype(np.int32), "listener": moves[:, None].astype(np.int32)}

    return act


def close_while_infected(envs: Any) -> Act:
    """Closes a state by the share of its people who are infected, and pays subsidies at half of the highest level."""
    num_states = envs.roles["state"].stop

    def act(obs: Any, mask: Any) -> Any:
        infected = obs["state"][:, :, num_states + 1]
        level = np.clip(np.ceil(infected * 1000.0), 1, 10).astype(np.int32)
        return {"state": np.where(mask["state"][:, :, 1], level, 0), "planner": np.full((len(level), 1), 10, np.int32)}

    return act


def hunt_and_graze(envs: Any) -> Act:
    """Wolves turn to sheep that they see, and sheep to ripe grass without wolves; else an animal wanders."""
    rng = np.random.default_rng(0)
    view_ahead, view_side = 5, 3

    def act(obs: Any) -> Any:
        grass, sheep, wolves, _, kind = np.moveaxis(obs.astype(float), 2, 0)
        value = np.where(kind > 0.0, 4.0 * sheep, grass - 8.0 * wolves)
        # Rows and columns of the cells that the actions stay, forward, left and right arrive at.
        y, x = np.array([0, 1, 0, 0]), np.array([0, 0, -1, 1])
        scores = rng.random((*value.shape[:2], 4))
        for action in range(4):
            for distance in range(1, 4):
                row, column = view_ahead - distance * y[action], view_side + distance * x[action]
                scores[..., action] += value[..., row, column] / 64.0 / distance
        return scores.argmax(-1).astype(np.int32)

    return act


def save_and_abate(envs: Any) -> Act:
    """Saves a third, and abates more from step to step, some regions earlier than others."""
    step, nvec = iter(range(1000)), envs.single_action_space.nvec[0]

    def act(obs: Any, mask: Any = None) -> Any:
        action = np.zeros((*obs.shape[:2], len(nvec)), np.int32)
        action[..., 0], action[..., 2] = 3, 2
        action[..., 1] = np.clip(next(step) - np.arange(obs.shape[1]) % 9, 0, 9)
        return action

    return act


EXAMPLES = {
    "CartPole-v1": Example(40, seed=1),
    "Acrobot-v1": Example(-12),
    "MountainCar-v0": Example(-25, swing, says="pushes along its velocity"),
    "MountainCarContinuous-v0": Example(-40, swing, says="pushes along its velocity"),
    "Pendulum-v1": Example(30, says="trained by DDPG"),
    "Breakout-v0": Example(150),
    "SimpleSpread-v0": Example(12),
    "SimpleSpeakerListener-v0": Example(6, speak_and_listen, says="a word for each landmark", seed=3),
    "ConnectFour-v0": Example(-1),
    "EpidemicEconomy-v0": Example(150, close_while_infected, says="closes while many are infected"),
    "Predators-v0": Example(60, hunt_and_graze, says="hunts and grazes"),
    "RICE-N-v0": Example(12, save_and_abate, says="saves a third, and abates more from step to step"),
    "TagGridWorld-v0": Example(2),
    "TagContinuous-v0": Example(20, policy="TagContinuous-v0-equal"),
}


def record(name: str) -> replay.Scene:
    """Returns the scene of the example of an environment."""
    example = EXAMPLES[name]
    if example.act is None:
        policy: Any = gpuvec.load_policy(example.policy or name)
        return record_policy(policy, example.says, seed=example.seed, max_steps=example.max_steps)[0]
    envs: Any = gymnasium.make_vec(f"gpuvec/{name}", num_envs=1, device="cpu", output="numpy")
    (episode,) = gpuvec.fetch_episode(envs, example.act(envs), seed=example.seed, max_steps=example.max_steps)
    envs.close()
    return replay.Scene(episode, policy=example.says)


def draw_demo() -> None:
    """Writes four games side by side that move; a game that is shorter stays at its end."""
    frames = [Image.new("RGB", (2 * SIDE + GAP, 2 * SIDE + GAP), "white") for _ in range(NUM_FRAMES)]
    for k, name in enumerate(MOVING):
        canvases = draw_frames(record(name).episode)
        for t, frame in enumerate(frames):
            picture = Image.fromarray(canvases[min(t + 1, len(canvases) - 1)].array())
            picture.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
            corner = [
                (SIDE + GAP) * (k % 2) + (SIDE - picture.width) // 2,
                (SIDE + GAP) * (k // 2) + (SIDE - picture.height) // 2,
            ]
            frame.paste(picture, tuple(corner))
    first, *others = frames
    options: dict[str, Any] = {"save_all": True, "append_images": others, "duration": MILLISECONDS, "loop": 0}
    first.save(FOLDER / "demo.webp", quality=60, method=4, **options)


def main() -> None:
    """Writes the pictures beside this script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *EXAMPLES, "demo"], help="of environments; all by default")
    names = parser.parse_args().names or [*EXAMPLES, "demo"]
    if "demo" in names:
        draw_demo()
    for name in filter(EXAMPLES.__contains__, names):
        frame = draw_frames(record(name).episode)[EXAMPLES[name].moment].array()
        Image.fromarray(frame).quantize(COLOURS).save(FOLDER / f"env_{name}.png", optimize=True)


if __name__ == "__main__":
    assert EXAMPLES.keys() == registered_envs("gpuvec").keys(), "each bundled environment has an example"
    main()
