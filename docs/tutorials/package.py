# %% [markdown]
# # Publish an environment as a package
#
# After this tutorial you have written a package with an environment and its tests, installed it, and used it from a new
# process.
#
# The environment is a house in winter with a heater that is on or off. Heat costs money, cold costs comfort.

# %%
import os
import subprocess
import sys
import tempfile
from pathlib import Path

project = Path(tempfile.mkdtemp()) / "gpuvec-thermostat"


def write(name, text):
    file = project / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text.lstrip())


# %% [markdown]
# ## The environment
#
# The docstring has the sections of an environment's page in a fixed order: observation, action, reward, termination,
# parameters, source. [The pages of the bundled environments](../../envs/gpuvec_envs/cartpole.py) are generated from it.

# %%
write(
    "src/gpuvec_thermostat/house.py",
    '''
"""House: keep a house warm in winter, and the bill small.

Observation: the temperature less the wish, that outside less the wish, both in tens of degrees, sine and cosine of the hour.
Action: 0 switches the heater off, 1 on.
Reward: minus a tenth of the squared difference to the wish [K^2], and minus `price` for a step of heating.
Termination: never.
Parameters: a start draws the temperature from 5 to 25 degrees, and the hour.
Source: Newton's law of cooling; explicit Euler steps.
"""

import math
from typing import NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpuvec import Key, SingleAgentEnv, normal, sincos, uniform

DAY = 2.0 * math.pi  # [rad]; names of the module are read as float32


class State(NamedTuple):
    inside: float  # [degrees C]
    outside: float  # [degrees C]
    hour: float  # of the day, as an angle [rad]


class Params(NamedTuple):
    wish: float = 20.0  # [degrees C]
    mean: float = 2.0  # outside [degrees C]
    swing: float = 5.0  # between day and night [K]
    leak: float = 0.02  # of the difference to outside that is lost in a step
    power: float = 1.0  # of the heater [K/step]
    price: float = 0.05  # of a step of heating
    hours_per_step: float = 0.25


def weather(hour: float, p: Params) -> float:
    sin, _ = sincos(hour)
    return p.mean + p.swing * sin


def reset(key: Key, p: Params) -> State:
    hour = uniform(key, 1, 0.0, DAY)
    return State(uniform(key, 0, 5.0, 25.0), weather(hour, p), hour)


def step(s: State, action: int, key: Key, p: Params) -> tuple[State, float, bool]:
    heat = p.power if action == 1 else 0.0
    inside = s.inside + p.leak * (s.outside - s.inside) + heat
    hour = s.hour + p.hours_per_step * (DAY / 24.0)
    reward = -0.1 * (inside - p.wish) ** 2 - (p.price if action == 1 else 0.0)
    return State(inside, weather(hour, p) + 0.5 * normal(key, 0), hour), reward, False


def observe(s: State, p: Params) -> tuple[float, float, float, float]:
    sin, cos = sincos(s.hour)
    return 0.1 * (s.inside - p.wish), 0.1 * (s.outside - p.wish), sin, cos


def spaces(p: Params) -> tuple[Box, Discrete]:
    return Box(-np.inf, np.inf, (4,), np.float32), Discrete(2)


def check(p: Params) -> None:
    if not 0.0 < p.leak < 1.0:
        raise ValueError(f"leak is {p.leak}; it must be between 0 and 1.")


ENV = SingleAgentEnv(State, Params(), reset, step, observe, spaces, max_episode_steps=192, check=check)
''',
)

# %% [markdown]
# ## The package
#
# Importing the package registers the environment. Its only dependency is `gpuvec`.

# %%
write(
    "src/gpuvec_thermostat/__init__.py",
    '''
"""A house with a heater, for gymnasium.make_vec("gpuvec_thermostat:thermostat/House-v0", num_envs=...)."""

import gpuvec
from gpuvec_thermostat import house

gpuvec.register("thermostat/House-v0", house.ENV)
''',
)
write(
    "pyproject.toml",
    """
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "gpuvec-thermostat"
version = "0.1.0"
description = "A house with a heater, as a gpuvec environment"
requires-python = ">=3.11"
dependencies = ["gpuvec"]

[project.optional-dependencies]
test = ["pytest"]

[tool.setuptools.packages.find]
where = ["src"]
""",
)

# %% [markdown]
# ## The tests
#
# There are four tests, and none needs a GPU. `gpuvec.testing.check_env` checks types, random numbers and spaces, and compares
# compiled functions with plain Python. Gymnasium's checker tests the environment of `gymnasium.make`. The vector environment is
# rebuilt from its spec, and its observations and autoreset are tested. The last test compares a step with values computed by
# hand, because no checker knows *your* rules.

# %%
write(
    "tests/test_house.py",
    '''
import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env as gymnasium_check_env
from gymnasium.vector import AutoresetMode

from gpuvec.testing import check_env

ID = "gpuvec_thermostat:thermostat/House-v0"


def test_gpuvec_is_content():
    assert check_env("gpuvec_thermostat.house:ENV", num_envs=9, steps=32, kernels=False)


def test_gymnasium_is_content():
    gymnasium_check_env(gymnasium.make(ID).unwrapped, skip_render_check=True)


def test_a_vector_of_houses_keeps_the_contract():
    envs = gymnasium.make_vec(ID, num_envs=5, output="numpy", max_episode_steps=3)
    again = gymnasium.make_vec(envs.spec)
    assert again.spec == envs.spec
    assert again.observation_space == envs.observation_space
    assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    obs, _ = envs.reset(seed=1)
    assert obs in envs.observation_space
    for t in range(1, 9):
        obs, reward, terminated, truncated, _ = envs.step(envs.action_space.sample())
        assert obs in envs.observation_space
        assert reward.shape == terminated.shape == truncated.shape == (5,)
        assert truncated.all() == (t % 4 == 3)  # three steps, and one that only resets
        assert (reward == 0).all() == (t % 4 == 0)


def test_a_cold_house_cools_by_newtons_law():
    """Without sun and heat the difference to outside shrinks by 1 - leak in each step."""
    envs = gymnasium.make_vec(ID, num_envs=1, output="numpy", swing=0.0, leak=0.1, mean=0.0)
    envs.reset(seed=0)
    envs.set_state({"inside": np.array([20.0]), "outside": np.array([0.0])})
    _, reward, *_ = envs.step(np.array([0]))
    assert envs.get_state()["inside"][0] == pytest.approx(18.0)
    assert reward[0] == pytest.approx(-0.1 * 2.0**2)
    with pytest.raises(ValueError, match="leak is 1.5; it must be between 0 and 1"):
        gymnasium.make_vec(ID, num_envs=1, leak=1.5)
''',
)
for file in sorted(path for path in project.rglob("*") if path.is_file()):
    print(f"{len(file.read_text().splitlines()):3} lines  {file.relative_to(project)}")

# %% [markdown]
# ## Install it
#
# Normally you run `pip install .` in the project's folder. This page installs into a separate folder, without dependencies, so
# that the Python that builds it does not change.


# %%
def run(*command, **options):
    command = list(map(str, command))
    done = subprocess.run(command, capture_output=True, text=True, cwd=project, check=False, **options)
    print("\n".join(line[:120] for line in (done.stdout + done.stderr * (done.returncode != 0)).strip().splitlines()))
    assert done.returncode == 0, f"status {done.returncode}"
    return done.stdout


site = project.parent / "site"
pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
_ = run(*pip, "--no-deps", "--no-build-isolation", "--no-index", "--target", site, project)
print(sorted(path.name for path in site.iterdir()))

# %% [markdown]
# ## Use it from a new process
#
# The folder is on the path of a new process. The part of the id before the colon is the module to import:

# %%
stranger = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])}
_ = run(
    sys.executable, "-m", "pytest", "-q", "--no-header", "--disable-warnings", "-p", "no:cacheprovider", "tests", env=stranger
)

# %% [markdown]
# The command line finds it when the package is imported: `gpuvec train --env gpuvec_thermostat:thermostat/House-v0` trains on
# it.

# %%
listing = run(sys.executable, "-m", "gpuvec", "envs", "gpuvec_thermostat", env=stranger)
assert "thermostat/House-v0" in listing

# %% [markdown]
# ## Publish it
#
# `python -m build` builds a wheel, and `twine upload dist/*` uploads it for `pip install gpuvec-thermostat`. Add a licence
# and a README first. Choose the version of the *environment* with care: results published with `House-v0` need its rules
# unchanged, so new rules are `House-v1`.
