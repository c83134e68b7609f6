"""The settings of learners: numbers that are not finite, and subclasses of users."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gpuvec.learners.algorithms import ALGORITHMS, args_from_dict, args_to_dict
from gpuvec.learners.config.setting_types import matches_type, setting_types
from gpuvec.learners.config.training_config import A2CArgs, DDPGArgs, PPOArgs, TrainingArgs
from gpuvec.learners.population.population_args import PopulationArgs
from gpuvec.learners.population.population_training import train_population
from gpuvec.learners.training import train

SIZES = {"device": "cpu", "num_envs": 8, "num_steps": 8, "num_iterations": 2, "hidden": (8,)}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan"), 1e39, 10**400])
def test_numbers_that_are_not_finite_are_refused(algorithm, value) -> None:
    """Those of each setting that is a number, or has numbers in a table."""
    args_class = ALGORITHMS[algorithm].args_class
    types = setting_types(args_class)
    numbers = [name for name, hint in types.items() if matches_type(1.5, hint)]
    assert "reward_scale" in numbers
    for name in numbers:
        with pytest.raises(ValueError, match=f"{name} must be "):
            args_class(**{name: value})
    tables = [name for name in types if name.endswith("_table")]
    for name in tables:
        with pytest.raises(ValueError, match=f"{name} must be "):
            args_class(**{name: ((0, value),)})


@dataclass(frozen=True)
class OwnPPO(PPOArgs):
    """The settings of a user: fields of any type, and other defaults."""

    note: str = "baseline"
    learning_rate: float = 1e-3
    sizes: list[int] = field(default_factory=lambda: [1, 2])
    extra: Any = field(default_factory=object)


@dataclass(frozen=True)
class OwnA2C(A2CArgs):
    """The settings of a user."""

    learning_rate: float = 1e-3
    name: str = "a2c"


@dataclass(frozen=True)
class OwnDDPG(DDPGArgs):
    """The settings of a user."""

    learning_starts: int = 0
    name: str = "ddpg"


@pytest.mark.parametrize(
    ("own", "args_class", "options"),
    [
        (OwnPPO, PPOArgs, {"learning_rate": 1e-3}),
        (OwnA2C, A2CArgs, {"learning_rate": 1e-3}),
        (OwnDDPG, DDPGArgs, {"env": "gpuvec/Pendulum-v1", "learning_starts": 0, "batch_size": 16, "buffer_size": 128}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_subclass_trains_as_its_algorithm_with_its_defaults(own, args_class, options) -> None:
    expected_args = args_class(**SIZES, **options)
    own_args = own(**SIZES, **{name: value for name, value in options.items() if name in ("env", "batch_size", "buffer_size")})
    assert args_from_dict(args_to_dict(own_args)) == expected_args
    expected, result = train(expected_args), train(own_args)
    assert type(result.args) is own
    for name, value in expected.network.state_dict().items():
        assert torch.equal(result.network.state_dict()[name], value), name
    assert result.checkpoint["args"] == expected.checkpoint["args"]
    for args in (expected_args, own_args):
        longer = dataclasses.replace(args, num_iterations=3)
        assert len(train(longer, checkpoint=result.checkpoint).history) == 1


def test_a_subclass_is_the_base_of_a_population() -> None:
    own, expected = (
        train_population(PopulationArgs(args, 2)) for args in (OwnPPO(**SIZES), PPOArgs(**SIZES, learning_rate=1e-3))
    )
    for name, value in expected.policy(1).state_dict().items():
        assert torch.equal(own.policy(1).state_dict()[name], value), name


def test_checks_of_values_apply_to_a_subclass() -> None:
    with pytest.raises(ValueError, match="learning_rate must be a number, got '1e-3'"):
        OwnPPO(learning_rate="1e-3")
    with pytest.raises(ValueError, match="clip must be above 0 and below 1"):
        OwnPPO(clip=2.0)


def test_settings_of_no_algorithm_are_refused() -> None:
    with pytest.raises(TypeError, match="TrainingArgs are settings of no algorithm; allowed are PPOArgs, A2CArgs, DDPGArgs"):
        train(TrainingArgs(**SIZES))
