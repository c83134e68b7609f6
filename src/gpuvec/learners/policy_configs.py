"""The policies of a training as its caller describes them: settings of an algorithm or opponents, one for each role."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from gpuvec.learners.algorithms import ALL, algorithm_name, policy_class, policy_factory
from gpuvec.learners.config.training_config import TrainingArgs
from gpuvec.learners.environments import TrainingEnv, has_role_spaces, is_multi_agent, resolve_args
from gpuvec.learners.learner import PolicyFactory
from gpuvec.learners.networks.actor_critic import Body
from gpuvec.learners.networks.named_network import make_network, with_network_name
from gpuvec.learners.on_policy import OnPolicy
from gpuvec.learners.opponents import Frozen, FrozenPolicy, Scripted, ScriptedPolicy
from gpuvec.learners.own_loss import Loss, Metrics
from gpuvec.learners.policy import Policy, PolicyContext
from gpuvec.learners.runs.trusted_code import import_named_module

SHARED_SETTINGS = (
    "env", "params", "backend", "seed", "device", "num_envs", "num_steps", "total_steps", "evaluate_every",
    "evaluate_episodes", "evaluate_params", "target_return", "threads"
)  # fmt: skip
"""Settings that are equal for all policies of a training."""

PolicyConfig = TrainingArgs | Frozen | Scripted
"""The settings of a policy that learns, whose class determines the algorithm, or a policy that does not learn."""
PolicyConfigs = Mapping[str, PolicyConfig]
"""{role: policy}."""
Bodies = Body | Mapping[str, Body] | None
"""The function that makes the network of each policy, or {role: function}."""
Losses = Loss | Mapping[str, Loss] | None
"""The loss of the user for each policy, or {role: loss}, see `own_loss`."""


def policy_factories(
    configs: PolicyConfigs, env: TrainingEnv, body: Bodies, loss: Losses = None, metrics: Metrics | None = None
) -> dict[str, PolicyFactory]:
    """Returns the function that makes the policy of each role, after checks that they fit the environment and each other.

    Args:
        configs: {role: policy}.
        env: the environment.
        body: makes the network of each policy that learns, or {role: function}; None for that of the settings.
        loss, metrics: as in `train`.

    Raises:
        ValueError: policies, bodies, losses or metrics that do not fit the environment or each other.
    """
    configs, bodies = with_network_names(configs, body), by_role(body, configs, "body")
    losses = by_role(loss, configs, "loss")
    require_roles(configs, env)
    shared = shared_settings(configs)
    return {role: make_policy(config, shared, bodies.get(role), losses.get(role), metrics) for role, config in configs.items()}


def by_role(value: Any, configs: PolicyConfigs, name: str) -> Mapping[str, Any]:
    """Returns {role: value} of the policies that learn, for one value of all of them, {role: value}, or None.

    Args:
        value: an argument of `train`.
        configs: {role: policy}.
        name: of the argument, for messages.

    Raises:
        ValueError: a value for a policy that does not learn.
    """
    if value is None or not isinstance(value, Mapping):
        learning = [role for role, config in configs.items() if isinstance(config, TrainingArgs)]
        return {} if value is None else dict.fromkeys(learning, value)
    for role in value:
        if not isinstance(configs.get(role), TrainingArgs):
            raise ValueError(
                f"there is a {name} for {role}, but no settings of an algorithm: only a policy that learns takes one."
            )
    return value


def with_network_names(configs: PolicyConfigs, body: Bodies) -> dict[str, PolicyConfig]:
    """Returns policies whose settings name the class of `body`, after the modules of all classes were imported.

    Args:
        configs: {role: policy}.
        body: makes the network of each policy that learns, or {role: function}; None for those of the settings.

    Raises:
        ValueError: a body for a policy that does not learn, or where the settings name another network; or no such module.
    """
    bodies = by_role(body, configs, "body")
    named: dict[str, PolicyConfig] = dict(configs)
    for role, config in configs.items():
        if isinstance(config, TrainingArgs) and role in bodies:
            named[role] = with_network_name(config, bodies[role])
        elif isinstance(config, TrainingArgs) and config.network is not None:
            import_named_module(config.network, "network")
    return named


def shared_settings(configs: PolicyConfigs) -> TrainingArgs:
    """Returns the settings of one policy that learns, after a check that the `SHARED_SETTINGS` of the others are equal.

    Args:
        configs: {role: policy}.

    Raises:
        TypeError: a value is not a policy.
        ValueError: no policy learns, or settings differ.
    """
    for role, config in configs.items():
        if not isinstance(config, TrainingArgs | Frozen | Scripted):
            raise TypeError(
                f"the policy of {role} is a {type(config).__name__}; it must be the settings of an algorithm, or Frozen(...) "
                "or Scripted(...), one for each role: {role: policy}."
            )
    learning = [(role, config) for role, config in configs.items() if isinstance(config, TrainingArgs)]
    if not learning:
        raise ValueError(
            f"no policy learns: of {', '.join(configs) or 'no roles'} at least one must have the settings of an algorithm."
        )
    first_role, first = learning[0]
    for role, args in learning[1:]:
        for name in SHARED_SETTINGS:
            if getattr(args, name) != getattr(first, name):
                values = f"{getattr(first, name)!r} for {first_role} and {getattr(args, name)!r} for {role}"
                raise ValueError(f"all policies of a training must have the same {name}: it is {values}.")
    if set(configs) != {ALL} and first.target_return is not None:
        raise ValueError("target_return is for one policy of all agents; with policies by role give total_steps.")
    return first


def resolve_configs(configs: PolicyConfigs, device: str) -> dict[str, PolicyConfig]:
    """Returns policies whose settings have values for a device, see `resolve_args`; opponents have none.

    Args:
        configs: {role: policy}.
        device: "cpu" or "cuda:<index>".

    Raises:
        ValueError, TypeError: as `resolve_args`.
    """
    return {role: resolve_args(each, device) if isinstance(each, TrainingArgs) else each for role, each in configs.items()}


def require_roles(configs: PolicyConfigs, env: TrainingEnv) -> None:
    """Raises ValueError unless `configs` has one policy for all agents of `env`, or one for each role."""
    if set(configs) == {ALL} and has_role_spaces(env):
        policies = ", ".join(f"{role!r}: ..." for role in env.roles)
        raise ValueError(
            "the roles of this environment have spaces of their own, so one policy cannot act for all: give one for each, "
            f"{{{policies}}}."
        )
    if set(configs) == {ALL}:
        return
    roles = env.roles if is_multi_agent(env) else {}
    if set(configs) != set(roles):
        raise ValueError(
            f"there are policies for {', '.join(configs)}; the environment has {', '.join(roles) or 'no roles'}: give one for "
            "each, or one alone for all."
        )


def make_policy(
    config: PolicyConfig, shared: TrainingArgs, body: Body | None, loss: Loss | None = None, metrics: Metrics | None = None
) -> PolicyFactory:
    """Returns the function that makes a policy for a context.

    Args:
        config: the policy.
        shared: the settings of the training, resolved.
        body: makes the network of a policy that learns; None for that of the settings.
        loss, metrics: of the user, for a policy that learns; None for none.

    Raises:
        ValueError: a loss or metrics for an algorithm that takes none.
    """
    if isinstance(config, Frozen):
        return partial(FrozenPolicy, config, shared)
    if isinstance(config, Scripted):
        return partial(ScriptedPolicy, config, shared)

    if (loss or metrics) and not issubclass(policy_class(config), OnPolicy):
        raise ValueError(
            f"loss and metrics are for algorithms on OnPolicy, as ppo and a2c, and not for {algorithm_name(config)}: write "
            "an algorithm of your own, or use one of these."
        )

    def make_learning_policy(context: PolicyContext) -> Policy:
        spaces = context.observation_space, context.action_space
        network = make_network(config, *spaces, body, context.role, context.critic_space)
        policy: Policy = policy_factory(config)(config, context._replace(loss=loss, metrics=metrics), network)
        return policy

    return make_learning_policy
