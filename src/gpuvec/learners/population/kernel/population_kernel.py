"""The kernel of a population: its arguments and its source, linked with the functions of an environment."""

from __future__ import annotations

from gpuvec.engine.backends.cuda.linked_functions import LinkedFunctions
from gpuvec.engine.backends.cuda.nvrtc import CudaSource
from gpuvec.learners.population.kernel.population_shape import SOURCE_FOLDER, THREADS, PopulationShape
from gpuvec.learners.sampling.action_kernels import FIRST_DRAW

COMPUTE_CAPABILITY = (9, 0)  # the kernel's instructions exist on no other
MEMBERS = {
    "parameters": "float*", "exp_avg": "float*", "exp_avg_sq": "float*", "adam_step": "float*",
    "learning_rate": "const double*", "ent_coef": "const double*", "vf_coef": "const double*", "gamma": "const double*",
    "gae_lambda": "const double*", "clip": "const double*", "reward_scale": "const double*",
    "action_seeds": "const unsigned long long*", "order_seeds": "const unsigned long long*", "clock": "const unsigned*",
    "obs": "float*", "running_return": "double*", "running_length": "double*", "last_return": "double*",
    "final_obs": "const float*", "low": "const float*", "high": "const float*", "metrics": "float*", "fault": "long long*",
    "stopped_at": "long long*", "samples": "float*", "gradient": "float*", "records": "float*", "first_iteration": "i64",
    "num_iterations": "i64", "anneal_iterations": "i64", "num_updates": "i64", "num_agents": "i64", "max_grad_norm": "double",
}  # fmt: skip


def population_kernel(shape: PopulationShape, env_functions: LinkedFunctions, action_start: int = 0) -> CudaSource:
    """Returns the kernel that trains an agent with each block.

    Args:
        shape: of the network, the rollout and the updates.
        env_functions: the environment's functions, which are linked with the kernel.
        action_start: the smallest discrete action.
    """
    members = MEMBERS | {f"env_{name}": "u64" for name in env_functions.members}
    constants = shape.constants | env_functions.constants | {
        "ENV_BATCH": ", ".join(f"b.env_{name}" for name in env_functions.members),
        "ACTION_START": action_start,
        "FIRST_DRAW": f"{FIRST_DRAW}u",
    }  # fmt: skip
    names = tuple(members.items()), tuple(constants.items())
    return CudaSource(
        SOURCE_FOLDER / "population.cu", "train_population", *names, THREADS, shape.shared_bytes, env_functions.code, True
    )
