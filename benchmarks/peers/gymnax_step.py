"""gymnax: CartPole, Acrobot, Pendulum and Breakout, mapped over the envs with `jax.vmap`, in the modes of `jax_modes.py`.

gymnax resets an environment in the step in which its episode ends, draws an initial state for every environment in every step,
and returns the final observations, as SAME_STEP does. Actions are drawn with one key for all environments, which favors gymnax.
Images of Breakout are returned as uint8, as ours are; gymnax's own are float32, four times the bytes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.measure import Figures, make_parser, missing_modules

SIZES = (4096, 65_536, 1_048_576)
H200 = {  # {mode: {E: M steps/s}} on one H200, gymnax 1.0.1 and jax 0.11.2
    "CartPole-v1": {
        "step": {4096: 60.5, 65_536: 930.0, 1_048_576: 12_600.0},
        "random": {4096: 58.6, 65_536: 860.0, 1_048_576: 12_800.0},
        "scan": {4096: 460.0, 65_536: 4600.0, 1_048_576: 28_000.0},
    },
    "Pendulum-v1": {
        "step": {4096: 61.7, 65_536: 960.0, 1_048_576: 7000.0},
        "random": {4096: 58.5, 65_536: 970.0, 1_048_576: 14_300.0},
        "scan": {4096: 530.0, 65_536: 6900.0, 1_048_576: 28_500.0},
    },
    "Acrobot-v1": {},
    "Breakout-MinAtar": {},
}
STEPS = {"Breakout-MinAtar": {"stored": 16}}  # arguments of `report`; more stored images of 1 M envs would not fit


def images_as_uint8(obs: Any) -> Any:
    """Returns images (E, H, W, C), whose pixels are 0 or 1, as uint8, and other observations, (E, D), unchanged."""
    return obs.astype("uint8") if obs.ndim == 4 else obs


def make_envs(name: str, num_envs: int) -> Any:
    """Returns `num_envs` environments called `name`."""
    import gymnax
    import jax

    from benchmarks.peers.jax_modes import JaxEnvs

    env, params = gymnax.make(name)
    space = env.action_space(params)
    _, state = jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(jax.random.key(0), num_envs), params)

    def draw_actions(key: Any) -> Any:
        if hasattr(space, "n"):
            return jax.random.randint(key, (num_envs,), 0, space.n)
        return jax.random.uniform(key, (num_envs, *space.shape), minval=space.low, maxval=space.high)

    def step(state: Any, key: Any, actions: Any) -> Any:
        keys = jax.random.split(key, num_envs)
        results = jax.vmap(env.step, in_axes=(0, 0, 0, None))(keys, state, actions, params)
        obs, state, reward, terminated, truncated, infos = results
        obs, final_obs = (images_as_uint8(x) for x in (obs, infos["final_observation"]))
        return state, reward, (obs, reward, terminated, truncated, {**infos, "final_observation": final_obs})

    return JaxEnvs(state, step, draw_actions, jax.random.key(1))


def main() -> None:
    """Measures all environments with each number of envs."""
    parser = make_parser(__doc__)
    parser.add_argument("--envs", nargs="*", default=list(H200), choices=list(H200), metavar="NAME")
    parser.add_argument("--sizes", nargs="*", type=int, default=list(SIZES), metavar="E")
    arguments = parser.parse_args()
    figures = Figures("peers", arguments.json)
    if problem := missing_modules("jax", "gymnax"):
        figures.add_failure("gymnax", problem)
        return
    from benchmarks.peers.jax_modes import report

    for name in arguments.envs:
        for num_envs in arguments.sizes:
            report(figures, f"gymnax.{name}", num_envs, make_envs(name, num_envs), H200[name], **STEPS.get(name, {}))


if __name__ == "__main__":
    main()
