"""A population in JAX in the style of PureJaxRL: `jax.vmap` over the seeds of trainings by PPO on gymnax's CartPole.

The training is that of `jax_ppo.py`, with all settings that PureJaxRL publishes: 4 environments x 128 steps, a learning rate of
2.5e-4 that decreases to 0, and 976 updates, which are 500 k steps of each agent. All agents are one jitted function, which is
compiled before the clock starts. Only the returns leave the device.

The figures are the env steps per second of all agents, and the share of agents whose mean return, of the last episode in each
of the four environments, is 475 at the end, and over the last 50 updates. The case `population` has the same figures.
PureJaxRL takes the time limit for a failure. In figures that end in `bootstrap` the last state of a truncated episode has a
value, as it has in our trainings: how well agents learn is compared with these, and the speed with the others.
"""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from itertools import product
from pathlib import Path

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.peers.jax_ppo import train
from benchmarks.tools.learning import add_learning
from benchmarks.tools.measure import Figures, make_parser, missing_modules

ENV, NUM_ENVS, NUM_STEPS, LEARNING_RATE = "CartPole-v1", 4, 128, 2.5e-4
H200 = {2048: 43.8}
"""{agents: M steps/s} on one H200, jax 0.11."""


def measure(figures: Figures, name: str, num_agents: int, updates: int, bootstrap: bool) -> None:
    """Trains a population once, after its compilation.

    Args:
        figures: where the rows are added.
        name: of the rows.
        num_agents: P.
        updates: of each agent.
        bootstrap: as in `jax_ppo.train`.
    """
    import jax
    import numpy as np

    settings = {"name": ENV, "num_envs": NUM_ENVS, "num_steps": NUM_STEPS, "learning_rate": LEARNING_RATE}
    training = jax.jit(jax.vmap(partial(train, updates=updates, bootstrap=bootstrap, **settings)))
    keys = jax.random.split(jax.random.key(0), num_agents)
    start = time.perf_counter()
    compiled = training.lower(keys).compile()
    compilation = time.perf_counter() - start
    start = time.perf_counter()
    returns = np.asarray(jax.block_until_ready(compiled(keys)))
    seconds = time.perf_counter() - start
    rate = num_agents * updates * NUM_ENVS * NUM_STEPS / seconds / 1e6
    details = {"seconds": seconds, "compilation": compilation, "updates": updates}
    figures.add_peer(name, rate, "M steps/s", None if bootstrap else H200.get(num_agents), **details)
    add_learning(figures, name, returns.T, ())


def main() -> None:
    """Measures each number of agents."""
    parser = make_parser(__doc__)
    parser.add_argument("--agents", nargs="*", type=int, default=[2048], metavar="P")
    parser.add_argument("--updates", type=int, default=976, metavar="N", help="of each agent")
    arguments = parser.parse_args()
    figures = Figures("peers", arguments.json)
    if problem := missing_modules("jax", "gymnax"):
        figures.add_failure("jax_population", problem)
        return
    for num_agents, bootstrap in product(arguments.agents, (False, True)):
        name = f"jax_population.{num_agents}" + (".bootstrap" if bootstrap else "")
        with figures.continue_after_failure(name):
            measure(figures, name, num_agents, arguments.updates, bootstrap)


if __name__ == "__main__":
    main()
