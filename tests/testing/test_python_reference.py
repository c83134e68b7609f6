"""What a step of many agents means in plain Python, by hand."""

import dataclasses

import numpy as np
import pytest
from tests.support.hunt_env import ENV

from gpuvec import Key, Time
from gpuvec.testing.reference.python_reference import PythonReference, reduce


@pytest.fixture
def world():
    return PythonReference(dataclasses.replace(ENV, params=ENV.params._replace(noise=0.0)))


def test_a_step(world):
    """Prey 2 is as near to both hunters and goes to the first; prey 4 goes to hunter 1; prey 3 is left."""
    x = [1.0, 1.5, 1.25, 5.0, 1.5]
    before = world.state({"x": x, "alive": [True] * 5, "prey": 3})
    played = world.step(before, [1] * 5, Key(0, 0, 0, 0, 1), Time(1, 9))
    assert before.alive.all()
    assert played.state.x.tolist() == x
    assert played.state.hunter.tolist() == [-1, -1, 0, -1, 1]
    assert played.reward.tolist() == [1.0, 1.0, -1.0, 0.0, -1.0]
    assert played.state.prey == 1
    assert played.votes.tolist() == [False] * 5
    assert played.mask.all()
    assert played.left.tolist() == [False, False, True, False, True]
    again = world.step(played.state, [1] * 5, Key(0, 0, 0, 0, 2), Time(2, 9))
    assert again.mask.tolist() == played.state.alive.tolist()
    assert not again.left.any()


def test_roles(world):
    s = world.state({"role": [1, 0, 1, 1, 0]})
    assert s.agents_by_role.tolist() == [1, 4, 0, 2, 3]
    assert world.state().role.tolist() == [0, 0, 1, 1, 1]


def test_rows(world):
    """Of equally near ones the lower comes first; those who are out are not seen, see nobody and still know themselves."""
    s = world.state({"x": [1.0, 3.0, 2.0, 9.0, 2.5], "alive": [True, True, True, True, False], "prey": 2})
    s = world.look(s)
    rows = world.rows(s, Time(3, 4))
    assert s.near.tolist() == [[2, 1], [2, 0], [0, 1], [1, 2], [-1, -1]]
    assert rows.dtype == np.float32
    assert rows[2].tolist() == pytest.approx([-0.1, 0.1, 1.0, 1.0, 0.2, 0.75, 2.0])
    assert rows[4].tolist() == pytest.approx([0.0, 0.0, 0.0, 0.0, 0.25, 0.75, 2.0])
    np.testing.assert_array_equal(world.rows(s, Time(3, 4), [4, 2]), rows[[4, 2]])


@pytest.mark.parametrize(
    ("kind", "values", "result"),
    [
        ("count", [True, False, True], 2),
        ("any", [False, True], True),
        ("any", [False, False], False),
        ("all", [True, True], True),
        ("all", [True, False], False),
        ("least", [2.0, 1.0, 1.0], 1),
        ("least", [np.inf, 3.0], 1),
        ("least", [np.inf, np.inf], -1),
    ],
)
def test_reductions(kind, values, result):
    assert reduce(kind, values) == result
