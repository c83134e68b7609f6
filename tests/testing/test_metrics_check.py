"""The checks of metrics: they are compared with plain Python, and must be finite."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
import pytest
from tests.support.compiled_runs import run_compiled
from tests.support.meadow_env import MEADOW, Meadow, Params

from gpuvec.engine.layout.declared_schema import make_schema
from gpuvec.errors import AuthoringError
from gpuvec.testing.compiled_runs.compiled_run import METRIC
from gpuvec.testing.compiled_runs.explanations import explain_nonfinite
from gpuvec.testing.compiled_runs.result_checks import NonFiniteResultError, check_spaces
from gpuvec.testing.reference_check import check_against_reference


def test_metrics_of_all_kinds_equal_plain_python() -> None:
    """The test changes the run, because compiled code has the same source."""
    run = run_compiled(MEADOW, 3, 12)
    assert "except 0" in check_against_reference(MEADOW, run, 0)
    names = [name for name in run.infos[0] if name.startswith(METRIC)]
    assert len(names) == 5
    for name in names:
        for infos in run.infos:
            infos[name] += 0.25
        with pytest.raises(AuthoringError, match=f"differ from plain Python: after 1 steps {name} of environment 0 is"):
            check_against_reference(MEADOW, run, 0)
        for infos in run.infos:
            infos[name] -= 0.25


class GrassMetrics(NamedTuple):
    grass: float


def share_of_grass(s: Meadow, p: Params) -> GrassMetrics:
    share = s.temperature / (s.temperature - s.temperature)
    return GrassMetrics(share)


def test_the_line_of_a_metric_that_is_not_finite_is_named() -> None:
    env = dataclasses.replace(MEADOW, metrics=share_of_grass, cuda_c=None)
    run = run_compiled(env, 2, 2)
    with pytest.raises(NonFiniteResultError, match="after 1 steps metric 'grass' of environment 0 is") as error:
        check_spaces(env, make_schema(env), run)
    explanation = explain_nonfinite(env, run, error.value, 0)
    assert "`share = s.temperature / (s.temperature - s.temperature)`" in str(explanation)
    assert not np.isfinite(error.value.value)
