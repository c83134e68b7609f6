"""The command `gpuvec eval`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from gpuvec.cli.env_lookup import complete_policy_name, find_policy
from gpuvec.cli.progress import waiting
from gpuvec.cli.terminal import print_lines
from gpuvec.cli.wrong_options import require_positive
from gpuvec.registration import find_env_spec

if TYPE_CHECKING:
    from gpuvec.learners.evaluation.evaluate import EpisodeResults


def evaluate(
    policy: Annotated[str, tyro.conf.Positional],
    episodes: int = 100,
    seed: int = 0,
    device: str = "auto",
    stochastic: bool = False,
    params: dict[str, bool | int | float] | None = None,
    training_params: bool = False,
    trust: bool = False,
) -> int:
    """Evaluate a trained policy: print the mean return with its 95 % confidence interval, and the lowest and highest return.

    The environment has its own parameters, whatever those of the training were, except for those on which spaces, agents or
    roles depend, without which the policy does not fit. The output says which parameters differ from its own.

    Args:
        policy: a run folder, a file checkpoint-<iteration>.pt in one, a policy file, or the name of a policy that comes with
            gpuvec, such as CartPole-v1.
        episodes: the number of episodes. Each is the first episode of its own environment.
        seed: the seed of the environments, and of the actions with --stochastic. With the seed of the training, the result is
            that of the evaluation at the end of the training.
        device: auto, cpu, cuda or cuda:1; auto is a GPU if there is one.
        stochastic: draw actions from the policy instead of taking the likeliest action.
        params: parameters of the environment, such as --params gravity 3.7. By default those of --evaluate-params in the
            training.
        training_params: evaluate with the parameters of the training, but for those of --params.
        trust: import the Python modules that the policy names for its environment, algorithm and network. Importing runs their
            code.
    """
    require_positive(episodes=episodes)
    policy = complete_policy_name(policy)
    with waiting("loading PyTorch"):
        from gpuvec.engine.backends.device import parse_device
        from gpuvec.learners.environments import evaluation_params
        from gpuvec.learners.evaluation.evaluate import run_episodes
        from gpuvec.learners.evaluation.players import policies_by_role
        from gpuvec.learners.seeds import EVALUATION, stream_seed

    device, seed = str(parse_device(device)), stream_seed(seed, EVALUATION)
    trained = find_policy(policy, device, trust)
    overrides = params or next(iter(trained.args.values())).evaluate_params
    if training_params:
        overrides = {**trained.params, **(params or {})}
    used = evaluation_params(trained.env, trained.params, overrides)
    player = policies_by_role(trained.networks, greedy=not stochastic, seed=seed)
    with waiting(f"compiling {trained.env}, and running {episodes} episodes"):
        results = run_episodes(trained.env, player, episodes=episodes, seed=seed, device=device, params=used)
    returns = results.returns
    print_lines(
        f"{trained.env}: mean return {returns.mean():.1f}{confidence_interval(returns)} over {episodes} episodes "
        f"(standard deviation {returns.std(correction=0):.1f}, lowest {returns.min():.1f}, highest {returns.max():.1f}"
        f"{solved_text(trained.env, used)})"
    )
    print_lines(parameters_line(used, trained.params), *result_lines(results))
    return 0


def confidence_interval(returns: Any, digits: int = 1) -> str:
    """The half width of the 95 % confidence interval of a mean return, as text such as " +- 1.3".

    Agents of one episode are not independent, so each episode counts as one sample.

    Args:
        returns: tensor of the returns of E episodes, (E,) or, with many agents, (E, A).
        digits: the number of digits after the decimal point.

    Returns:
        The text, or "" for one episode.
    """
    means = returns.flatten(1).mean(1) if returns.dim() > 1 else returns
    return f" +- {1.96 * means.std() / len(means) ** 0.5:.{digits}f}" if len(means) > 1 else ""


def solved_text(env: str, params: Mapping[str, Any]) -> str:
    """The mean return at which the environment counts as solved, as text such as ", solved at 475".

    Args:
        params: those of the evaluation that are not the environment's own. A threshold is for its own ones alone.

    Returns:
        The text, or "" without a threshold.
    """
    threshold = find_env_spec(env).reward_threshold
    return "" if params or threshold is None else f", solved at {threshold:g}"


def parameters_line(params: Mapping[str, Any], trained: Mapping[str, Any]) -> str:
    """The line that says with which parameters of the environment a policy was evaluated.

    Args:
        params: those of the evaluation that are not the environment's own.
        trained: those of the training.
    """
    used, of_training = (", ".join(f"{name} {value}" for name, value in each.items()) for each in (params, trained))
    text = f"{used}, and else the environment's own" if used else "the environment's own"
    return f"parameters {text}" + (f" (trained with {of_training})" if of_training and of_training != used else "")


def result_lines(results: EpisodeResults) -> Iterator[str]:
    """Yields a line with the returns of each role of an environment with many agents, and one for each metric."""
    for role, agents in results.roles.items():
        returns, terminated = results.returns[:, agents], results.terminated[:, agents]
        counts = f"{returns.shape[1]} in each episode, {terminated.double().mean():.1%} terminated"
        yield f"{role:<10} mean return {returns.mean():.2f}{confidence_interval(returns, 2)} per agent ({counts})"
    for name, values in results.metrics.items():
        mean, minimum, maximum = values.double().mean(), values.min(), values.max()
        yield f"metric     {name} {mean:.4g} on average (lowest {minimum:.4g}, highest {maximum:.4g})"
