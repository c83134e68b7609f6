"""Names of features and actions that environments declare, which replays show."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from gymnasium.spaces import Box, MultiDiscrete

from gpuvec.errors import ReplayError
from tests.support.bundled_envs import BUNDLED_ENVS

SETTINGS: dict[str, list[dict[str, Any]]] = {
    "TagGridWorld-v0": [{"use_full_observation": True}, {"use_full_observation": False}],
    "TagContinuous-v0": [{}, {"use_full_observation": False, "observe_self": True}, {"continuous_actions": True}],
}
CASES = [
    (name, settings)
    for name, env in BUNDLED_ENVS.items()
    if env.feature_names or env.action_names
    for settings in SETTINGS.get(name, [{}])
]


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_bundled_environments_name_each_feature_and_choice_once(name: str, settings: dict[str, Any]) -> None:
    env = BUNDLED_ENVS[name]
    params = env.params._replace(**settings)
    observation, action = env.spaces(params)
    choices = (
        action.shape[0] if isinstance(action, Box) else sum(action.nvec) if isinstance(action, MultiDiscrete) else action.n
    )
    for declared, count in ((env.feature_names, observation.shape[0]), (env.action_names, choices)):
        names = declared(params) if callable(declared) else declared
        assert not names or len(names) == len(set(names)) == count


def test_recordings_have_them() -> None:
    pytest.importorskip("torch")
    from gpuvec.learners.policy_files.trained_policy import TrainedPolicy
    from gpuvec.replay.recording import declared_names, record_policy
    from tests.support.random_policies import CASES as POLICIES

    (scene,) = record_policy(TrainedPolicy(POLICIES["discrete"].contents()), max_steps=2)
    assert scene.details is not None
    assert scene.details.features == ("position", "velocity", "angle", "angular velocity")
    assert scene.details.action_names == ("left", "right")
    assert scene.details.num_features == 4
    env = dataclasses.replace(scene.episode.env, feature_names=lambda p: ["a", "b"], action_names=())
    episode = scene.episode._replace(env=env)
    assert declared_names(episode, "feature_names", 2) == ("a", "b")
    assert declared_names(episode, "action_names", 2) == ()
    with pytest.raises(ReplayError, match=r"feature_names of gpuvec/CartPole-v1 has 2 names, and there must be 4: a, b\."):
        declared_names(episode, "feature_names", 4)


def test_choices_of_components_without_names_are_numbered() -> None:
    pytest.importorskip("torch")
    from gpuvec.replay.recording import name_choices

    assert name_choices([2, 3]) == ["component 0: 0", "component 0: 1", "component 1: 0", "component 1: 1", "component 1: 2"]
    assert name_choices([4]) == name_choices([]) == []
