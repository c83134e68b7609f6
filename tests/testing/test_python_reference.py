"""Tests of `PythonReference`, which runs a multi-agent environment in plain Python, against values calculated by hand."""

import dataclasses

import numpy as np
import pytest
from tests.support.street_env import SLIPPERY_STREET

from gpuvec import Key, Time
from gpuvec.testing.reference.checked_functions import CheckedFunctions
from gpuvec.testing.reference.python_reference import PythonReference, reduce


@pytest.fixture
def reference():
    return PythonReference(dataclasses.replace(SLIPPERY_STREET, params=SLIPPERY_STREET.params._replace(noise=0.0)))


def test_a_step_assigns_guards_rewards_and_masks(reference):
    """Walker 2 is equally near to both guards, so guard 0 catches it; guard 1 catches walker 4; walker 3 remains."""
    x = [1.0, 1.5, 1.25, 5.0, 1.5]
    before = reference.make_state({"x": x, "is_out": [False] * 5, "num_walking": 3})
    step = reference.step(before, [1] * 5, Key(0, 0, 0, 0, 1), Time(1, 9))
    assert not before.is_out.any()
    assert step.state.x.tolist() == x
    assert step.state.caught_by.tolist() == [-1, -1, 0, -1, 1]
    assert step.reward.tolist() == [1.0, 1.0, -1.0, 0.5, -1.0]
    assert step.state.num_walking == 1
    assert step.votes.tolist() == [False] * 5
    assert step.mask.all()
    assert step.terminated.tolist() == [False, False, True, False, True]
    second = reference.step(step.state, [1] * 5, Key(0, 0, 0, 0, 2), Time(2, 9))
    assert second.mask.tolist() == (~step.state.is_out).tolist()
    assert not second.terminated.any()


def test_agents_by_role_are_sorted(reference):
    s = reference.make_state({"role": [1, 0, 1, 1, 0]})
    assert s.agents_by_role.tolist() == [1, 4, 0, 2, 3]
    assert reference.make_state().role.tolist() == [0, 0, 1, 1, 1]


def test_observation_rows_have_the_nearest_active_agents(reference):
    """Of equally near agents the lower index is first. Inactive agents are not observed and observe only themselves."""
    s = reference.make_state({"x": [1.0, 3.0, 2.0, 9.0, 2.5], "is_out": [False, False, False, False, True], "num_walking": 2})
    s = reference.prepare_observations(s)
    rows = reference.observations(s, Time(3, 4))
    assert s.neighbors.tolist() == [[2, 1], [2, 0], [0, 1], [1, 2], [-1, -1]]
    assert rows.dtype == np.float32
    assert rows[2].tolist() == [-1.0, 1.0, 0.0, 0.0, 2.0, 2.0, 0.75]
    assert rows[4].tolist() == [-100.0, -100.0, -1.0, -1.0, 2.5, 2.0, 0.75]
    np.testing.assert_array_equal(reference.observations(s, Time(3, 4), [4, 2]), rows[[4, 2]])


@pytest.mark.parametrize(
    ("kind", "values", "result"),
    [
        ("count", [True, False, True], 2),
        ("any", [False, True], True),
        ("any", [False, False], False),
        ("all", [True, True], True),
        ("all", [True, False], False),
        ("argmin", [2.0, 1.0, 1.0], 1),
        ("argmin", [np.inf, 3.0], 1),
        ("argmin", [np.inf, np.inf], -1),
    ],
)
def test_reductions(kind, values, result):
    assert reduce(kind, values) == result


def test_a_function_with_a_closure_is_copied_with_checked_values():
    table, offset = np.zeros(3, np.float32), 4

    def read(k):
        return table[k + offset]

    copy = CheckedFunctions().function(read)
    assert copy(-4) == 0.0
    with pytest.raises(IndexError, match=r"an array\[3\] does not exist"):
        copy(-1)
