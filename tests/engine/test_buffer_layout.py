"""What kernels are compiled from: the schema is made once for an environment, and all kernels get it."""

import pytest
from tests.support.bundled_envs import BUNDLED_ENVS

from gpuvec.engine.layout import buffer_layout, declared_schema, structure
from gpuvec.vector.env import VectorEnv


@pytest.mark.parametrize("name", ["CartPole-v1", "TagGridWorld-v0"])
def test_reset_and_step_make_the_schema_once(monkeypatch, name):
    make_schema, environments = declared_schema.make_schema, []

    def record(env):
        environments.append(env)
        return make_schema(env)

    for module in (buffer_layout, structure):
        monkeypatch.setattr(module, "make_schema", record)
    envs = VectorEnv(BUNDLED_ENVS[name], 2, device="cpu", output="numpy")
    envs.reset(seed=0)
    envs.step(envs.action_space.sample())
    envs.close()
    assert len(environments) == 1
