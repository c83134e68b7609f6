"""The command `gpuvec play`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import tyro

from gpuvec.cli.env_lookup import complete_env_id, find_own_env, find_policy
from gpuvec.cli.progress import waiting
from gpuvec.cli.watch_command import DEFAULT_PORT, MAX_PORT, load_demo_policy, serve_page
from gpuvec.cli.wrong_options import require_speed
from gpuvec.policies import policy_names
from gpuvec.registration import load_env
from gpuvec.spec import MultiAgentEnv

if TYPE_CHECKING:
    from gpuvec.replay.interactive.game import Others

RANDOM = "random"


def play_env(
    env: Annotated[str, tyro.conf.Positional],
    agent: str = "0",
    policy: str | None = None,
    params: dict[str, bool | int | float] = {},  # noqa: B006  # it is not mutated
    seed: int = 0,
    fps: float | None = None,
    stochastic: bool = False,
    open: bool = True,
    port: int = DEFAULT_PORT,
    trust: bool = False,
) -> int:
    """Play an environment by keys, in the browser, until Ctrl-C.

    The page lists the keys. It has buttons for touch screens, a pause, and the score. With many agents you play one, and a
    policy the others.

    Args:
        env: the id of the environment, which declares names of its actions and draws itself.
        agent: the number of your agent, or a role, of which you play the first agent.
        policy: who plays the other agents: a run folder, a checkpoint, a policy file, the name of a policy that comes with
            gpuvec, or random. By default the policy of this environment that comes with gpuvec, if there is one, or random.
        params: parameters of the environment, as in `--params num_taggers 2`; a policy has its own.
        seed: the seed of the first episode; each has the next one.
        fps: steps per second; by default the environment's own speed.
        stochastic: draw the actions of the policy instead of taking the likeliest ones.
        open: whether a browser opens the page, if there is one.
        port: of the page on the loopback address, 127.0.0.1; 0 for one that is free.
        trust: import the Python modules that the policy names for its environment, algorithm and network. Importing runs their
            code.
    """
    if not 0 <= port <= MAX_PORT:
        raise ValueError(f"port must be from 0 to {MAX_PORT}, got {port}.")
    require_speed(fps)
    spec = find_own_env(complete_env_id(env, "play"))
    declaration = load_env(spec.kwargs["env"])
    from gpuvec.replay.interactive.game import Game, PlayServer, require_playable

    require_playable(declaration, spec.id)
    others = find_others(spec.id, isinstance(declaration, MultiAgentEnv), policy, bool(params), stochastic, trust)
    if others.policy is not None:
        params = others.policy.params  # on which its spaces depend
    with waiting(f"compiling {spec.id}"):
        game = Game(spec.id, params, agent, others, seed)
    with PlayServer(game, port, fps) as server:
        serve_page(server, "play", open)
    return 0


def find_others(
    env_id: str, is_multi_agent: bool, policy: str | None, has_params: bool, stochastic: bool, trust: bool
) -> Others:
    """Returns who plays the agents that the person does not.

    Args:
        is_multi_agent: whether there are others.
        policy: what the command line names; None for the default.
        has_params: whether the command line sets parameters of the environment.
        trust: whether the module that a policy names may be imported.

    Raises:
        ValueError: a policy of another environment, or one beside parameters, or an environment without others.
        FileNotFoundError, CheckpointError, StateError: the policy cannot be used.
    """
    from gpuvec.replay.interactive.game import Others

    if policy not in (None, RANDOM) and (has_params or not is_multi_agent):
        reason = "has the parameters with which it was trained: leave --params out" if has_params else "has no other agents"
        raise ValueError(f"--policy {policy} cannot play here: {'it' if has_params else env_id} {reason}.")
    is_default = policy is None
    if is_default and is_multi_agent and not has_params:
        policy = next((name for name in policy_names() if f"gpuvec/{name}-".startswith(f"{env_id}-")), None)
    if policy is None or policy == RANDOM:
        return Others("The others act at random.")
    try:
        trained = load_demo_policy(policy) if policy in policy_names() else find_policy(policy, trust=trust)
    except ModuleNotFoundError as error:
        if not is_default or (error.name or "").partition(".")[0] != "torch":
            raise
        return Others(f"The others act at random, since their policy {policy} needs PyTorch, which is not installed.")
    if trained.env.rpartition(":")[2] != env_id:
        raise ValueError(f"--policy {policy} was trained on {trained.env}, and the game is {env_id}.")
    return Others(f"The policy {policy} plays the others.", trained, stochastic)
