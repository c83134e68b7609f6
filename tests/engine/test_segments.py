"""Which segments of a kernel end with a barrier, and how the threads of a block share their elements."""

from __future__ import annotations

import pytest

from gpuvec.engine.compiler.functions import inline_function
from gpuvec.engine.multi_agent.segments import (
    AGENTS,
    BLOCK,
    ENVS,
    Segment,
    envs_per_round,
    without_barriers_between_envs,
)


@inline_function
def run(b, w, e, k, c, clock):
    """Stands for the function of a segment, which is not called."""


@pytest.mark.parametrize(
    ("units", "num_agents", "is_synchronised", "barriers"),
    [
        # The first barrier of a kernel remains, as the threads before it read the clock.
        ([ENVS, ENVS, ENVS], 2, False, [True, False, False]),
        ([ENVS, ENVS, ENVS], 2, True, [False, False, False]),
        # The next segment reads what another thread wrote, or another thread reads what this one wrote.
        ([AGENTS, ENVS, ENVS, AGENTS], 2, True, [True, False, True, True]),
        ([BLOCK, ENVS, BLOCK, ENVS], 2, True, [True, True, True, False]),
        # The thread of an env runs the segments of its only agent.
        ([BLOCK, AGENTS, ENVS, AGENTS], 1, False, [True, False, False, False]),
        ([], 1, True, []),
    ],
)
def test_barriers_between_segments_of_envs_are_removed(units, num_agents, is_synchronised, barriers):
    segments = [Segment(unit, run) for unit in units]
    results = without_barriers_between_envs(segments, num_agents, is_synchronised=is_synchronised, next_unit=ENVS)
    assert [segment.barrier for segment in results] == barriers


def test_a_barrier_separates_a_copy_without_one_from_the_reader_of_the_copied_data():
    segments = [Segment(ENVS, run), Segment(BLOCK, run, barrier=False), Segment(AGENTS, run), Segment(ENVS, run)]
    results = without_barriers_between_envs(segments, 1, is_synchronised=True, next_unit=AGENTS)
    assert [(segment.unit, segment.barrier) for segment in results] == [
        (ENVS, True),
        (BLOCK, False),
        (ENVS, True),
        (ENVS, True),
    ]


def test_a_barrier_is_delayed_until_other_threads_follow():
    """The second segment needs no barrier, but what the first one wrote is read by the threads of the third."""
    segments = [Segment(ENVS, run), Segment(ENVS, run, barrier=False), Segment(AGENTS, run)]
    results = without_barriers_between_envs(segments, 2, is_synchronised=True, next_unit=ENVS)
    assert [segment.barrier for segment in results] == [False, True, True]


def test_other_elements_than_agents_keep_their_unit():
    cells = Segment(AGENTS, run, num_elements=25)
    assert without_barriers_between_envs([cells], 1, is_synchronised=True, next_unit=ENVS) == (cells,)


@pytest.mark.parametrize(
    ("threads", "elements", "envs"), [(256, 25, 10), (256, 64, 4), (256, 27, 9), (256, 100, 0), (96, 27, 0), (256, 300, 0)]
)
def test_threads_keep_their_elements_if_few_threads_have_none(threads, elements, envs):
    assert envs_per_round(threads, elements) == envs
