"""Gymnasium's vector wrappers give the same results around Gymnasium's and gpuvec's environments with the same states."""
# /// script
# dependencies = ["gymnasium==1.4.0"]
#
# [tool.client]
# title = "Gymnasium's vector wrappers"
# lines = 0
# change = '`output="numpy"`'
# ///

from functools import partial

import gymnasium
import numpy as np
from gymnasium.wrappers import vector

import gpuvec  # noqa: F401  # registers its environments

E, STEPS = 4, 200
BOX = "MountainCarContinuous-v0"
BOUNDS = {"min_action": np.float32(-0.5), "max_action": np.float32(0.5)}
# {wrapper: (an environment in which it has an effect, function that wraps)}, without the VectorizeTransform* base classes.
WRAPPERS = {
    "RecordEpisodeStatistics": ("CartPole-v1", vector.RecordEpisodeStatistics),
    "NormalizeObservation": ("CartPole-v1", vector.NormalizeObservation),
    "NormalizeReward": ("CartPole-v1", vector.NormalizeReward),
    "FlattenObservation": ("CartPole-v1", vector.FlattenObservation),
    "RescaleObservation": (BOX, partial(vector.RescaleObservation, min_obs=np.float32(0), max_obs=np.float32(1))),
    "DtypeObservation": ("CartPole-v1", partial(vector.DtypeObservation, dtype=np.float64)),
    "TransformObservation": ("CartPole-v1", partial(vector.TransformObservation, func=lambda obs: 2 * obs)),
    "TransformReward": ("CartPole-v1", partial(vector.TransformReward, func=lambda reward: 2 * reward)),
    "ClipReward": ("CartPole-v1", partial(vector.ClipReward, max_reward=0.5)),
    "TransformAction": (BOX, partial(vector.TransformAction, func=lambda action: -action)),
    "ClipAction": (BOX, vector.ClipAction),
    "RescaleAction": (BOX, partial(vector.RescaleAction, **BOUNDS)),
}


class FixedStart(gymnasium.vector.VectorWrapper):
    """Sets the state after each reset.

    Args:
        envs: the environment.
        name: of the environment.
        start: (E, D), the state, which is also the observation.
    """

    def __init__(self, envs, name, start):
        super().__init__(envs)
        self.name, self.start = name, start

    def reset(self, *, seed=None, options=None):
        """Resets with the arguments `seed` and `options` of Gymnasium, and sets the state."""
        _, infos = self.env.reset(seed=seed, options=options)
        set_state(self.unwrapped, self.name, self.start)
        return self.start.copy(), infos


def run_episode(name, wrapper, envs, start, actions):
    """Returns the arrays of all steps until the first episode ends, and the infos of that step.

    Args:
        name: of the environment.
        wrapper: function that wraps.
        envs: the environment.
        start: (E, D), the first state.
        actions: (T, E, ...).
    """
    envs = wrapper(FixedStart(envs, name, start))
    steps = [[np.asarray(envs.reset(seed=0)[0], np.float64)]]
    for action in actions:
        *arrays, infos = envs.step(action)
        steps.append([np.asarray(array, np.float64) for array in arrays])
        if (arrays[2] | arrays[3]).any():
            break
    envs.close()
    return steps, infos


def set_state(envs, name, start):
    """Sets the state of an environment of gpuvec or Gymnasium.

    Args:
        envs: the environment.
        name: of the environment.
        start: (E, D).
    """
    if hasattr(envs, "set_state"):
        fields = ("x", "x_dot", "theta", "theta_dot") if name == "CartPole-v1" else ("x", "v")
        envs.set_state(dict(zip(fields, start.T, strict=True)))
        return
    for env, row in zip(envs.envs, start, strict=True):
        env.unwrapped.state = row.astype(np.float64)


rng = np.random.default_rng(0)
for title, (name, wrapper) in WRAPPERS.items():
    theirs = gymnasium.make_vec(name, num_envs=E, vectorization_mode="sync")
    ours = gymnasium.make_vec(f"gpuvec/{name}", num_envs=E, device="cpu", output="numpy")
    if name == "CartPole-v1":
        start = rng.uniform(-0.05, 0.05, (E, 4)).astype(np.float32)
        actions = rng.integers(0, 2, (STEPS, E))
    else:
        start = np.stack([rng.uniform(-0.6, -0.4, E), np.zeros(E)], 1).astype(np.float32)
        low, high = BOUNDS.values() if title == "RescaleAction" else (-1.0, 1.0)
        actions = rng.uniform(low, high, (STEPS, E, 1)).astype(np.float32)
    their_steps, their_infos = run_episode(name, wrapper, theirs, start, actions)
    our_steps, our_infos = run_episode(name, wrapper, ours, start, actions)
    assert len(their_steps) == len(our_steps), (title, len(their_steps), len(our_steps))
    for their_step, our_step in zip(their_steps, our_steps, strict=True):
        for a, b in zip(their_step, our_step, strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-3, atol=1e-3, err_msg=title)
    if title == "RecordEpisodeStatistics":
        ended = their_infos["_episode"]
        assert ended.any()
        for key in ("r", "l"):
            np.testing.assert_array_equal(our_infos["episode"][key][ended], their_infos["episode"][key][ended])

envs = gymnasium.make_vec("gpuvec/CartPole-v1", num_envs=E, device="cpu", output="numpy", autoreset_mode="SameStep")
envs = vector.DictInfoToList(envs)
envs.reset(seed=0)
for _ in range(100):
    *_, info_list = envs.step(np.ones(E, np.int64))
    assert len(info_list) == E
envs.close()
print(f"evidence: {len(WRAPPERS)} wrappers show what they show around Gymnasium's own environments; DictInfoToList")
