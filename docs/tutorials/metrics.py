# %% [markdown]
# # Custom metrics and callbacks
#
# After this tutorial your environment reports numbers of its own, and a function of yours is called after each iteration of a
# training: to log, to save, to change or to stop it.
#
# ## Metrics of an environment
#
# `metrics(s, p)` returns a named tuple of floats. The annotation of each field says how the engine combines it over the steps
# of an episode: `"mean"`, `"sum"`, `"min"`, `"max"` or `"last"`. A craft here uses fuel, and has a largest speed.

# %%
import json
import tempfile
from pathlib import Path
from typing import Annotated, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

import gpuvec
from gpuvec import Key, SingleAgentEnv, normal, uniform
from gpuvec.learners.evaluation.evaluate import run_episodes
from gpuvec.learners.evaluation.players import policy
from gpuvec.learners.ppo import PPOArgs, train


class State(NamedTuple):
    height: float  # [m]
    speed: float  # [m/s]
    fuel: float  # used in this step


class Params(NamedTuple):
    gravity: float = 9.8  # [m/s^2]
    thrust: float = 20.0  # [m/s^2]
    dt: float = 0.05  # [s]


class Metrics(NamedTuple):
    fuel: Annotated[float, "sum"]
    top_speed: Annotated[float, "max"]
    height: float  # as "last", the one at the end of the episode


def reset(key: Key, p: Params) -> State:
    return State(uniform(key, 0, -1.0, 1.0), 0.0, 0.0)


def step(s: State, action: int, key: Key, p: Params) -> tuple[State, float, bool]:
    fuel = 1.0 if action == 1 else 0.0
    speed = s.speed + p.dt * (fuel * p.thrust - p.gravity + 0.5 * normal(key, 0))
    height = s.height + p.dt * speed
    return State(height, speed, fuel), 1.0 - abs(height) / 5.0, abs(height) > 5.0


def observe(s: State, p: Params) -> tuple[float, float]:
    return s.height, s.speed


def spaces(p: Params) -> tuple[Box, Discrete]:
    return Box(-np.inf, np.inf, (2,), np.float32), Discrete(2)


def metrics(s: State, p: Params) -> Metrics:
    return Metrics(s.fuel, abs(s.speed), s.height)


ENV = SingleAgentEnv(State, Params(), reset, step, observe, spaces, max_episode_steps=100, metrics=metrics)
gpuvec.register("my/MeasuredHover-v0", ENV)

# %% [markdown]
# Each step returns them in `infos["metrics"]`, {name: (E,)}, for the episode up to that step. They are complete where the
# episode ended.

# %%
envs = gymnasium.make_vec("my/MeasuredHover-v0", num_envs=4, output="numpy")
device = gymnasium.make_vec("my/MeasuredHover-v0", num_envs=1).device
envs.reset(seed=0)
for _ in range(3):
    *_, infos = envs.step(np.array([0, 1, 1, 1]))
assert infos["metrics"]["fuel"].tolist() == [0.0, 3.0, 3.0, 3.0]
envs.close()

# %% [markdown]
# ## In a training
#
# A training has the mean over the episodes that ended in the iteration as `metrics/fuel`, in `result.history`, in
# `metrics.jsonl` and in what `--log` sends. `gpuvec plot` [draws it](../guides/runs.md#plot-learning-curves).
#
# ## A callback
#
# `train` calls `on_iteration(learner, metrics)` after each iteration. The dictionary has `iteration`, `steps`, `seconds`,
# `steps_per_second` and `gpu_memory`, the returns and lengths of episodes, the losses of the algorithm, and the metrics of the
# environment. With several policies the names begin with the role, as in `wolves/return`. A number that does not exist yet is
# nan. What the function returns decides: True ends the training.

# %%
settings = PPOArgs(env="my/MeasuredHover-v0", device=str(device), num_envs=64, num_minibatches=8, num_iterations=24)


def watch(learner, metrics):
    if metrics["iteration"] % 8 == 0:
        print(f"{metrics['steps']:6.0f} steps  return {metrics['return']:6.1f}  fuel {metrics['metrics/fuel']:5.1f}")
    return metrics["return"] > 97.0


result = train(settings, watch)
print(result.ended_by)
print(*result.history[-1])
assert {"metrics/fuel", "metrics/top_speed", "metrics/height"} <= result.history[-1].keys()

# %% [markdown]
# `learner` gives access to the rest: `learner.policies` has the policies with their `network`, `learner.env` is the
# environment of the training, and `learner.state_dict()` is a checkpoint. Read, and do not step, the environment. A number of
# yours may be computed there. One that needs the samples of an update is an argument, `train(..., metrics={name: function})`:
# see [A loss, and metrics](../guides/own_algorithms.md#a-loss-and-metrics).

# %%
norms = []


def measure_weights(learner, metrics):
    network = learner.policy.network
    norms.append(sum(float(p.detach().square().sum()) for p in network.parameters()) ** 0.5)


train(PPOArgs(env="my/MeasuredHover-v0", device=str(device), num_envs=64, num_minibatches=8, num_iterations=3), measure_weights)
print(f"norm of all weights: {norms[0]:.2f} to {norms[-1]:.2f}")
assert len(norms) == 3

# %% [markdown]
# On a GPU a callback makes the host wait for each iteration. `exact_at=lambda iteration: False` lets the GPU compute the next
# iteration meanwhile; `learner` is then one iteration ahead of `metrics`, which are still those of their iteration. With
# several processes all of them call the function, and the answer of the first one counts.
#
# ## Loggers
#
# `gpuvec train --log tensorboard` (or `wandb`, `trackio`) sends all metrics there; `run_folder=` writes `metrics.jsonl`. A
# logger of yours is a class with two methods, those of {class}`~gpuvec.learners.runs.sinks.Sink`:


# %%
class JsonArray:
    def __init__(self, path):
        self.path, self.rows = path, []

    def log(self, metrics):
        self.rows.append({name: value for name, value in metrics.items() if value == value})  # nan is no JSON

    def close(self):
        self.path.write_text(json.dumps(self.rows))


sink = JsonArray(Path(tempfile.mkdtemp(), "metrics.json"))
result = train(settings, lambda learner, metrics: sink.log(metrics))
sink.close()
rows = json.loads(sink.path.read_text())
assert [row["iteration"] for row in rows] == list(range(1, 25))

# %% [markdown]
# ## Metrics of an evaluation
#
# An evaluation has them too, one value for each episode:

# %%
results = run_episodes("my/MeasuredHover-v0", policy(result.network), episodes=50, seed=1, device=str(device))
for name, values in results.metrics.items():
    print(f"{name:10} {values.mean():6.2f}, from {values.min():6.2f} to {values.max():6.2f}")
assert results.metrics["fuel"].shape == (50,)

# %% [markdown]
# The callbacks and loggers of PyTorch Lightning work as well, see [the tutorial](lightning_trainer.py).
#
# **Next:** [curricula and domain randomisation](curricula.py).
