"""Cached elementwise kernels of the learners: loading them imports no compiler, and their key depends on what changes them."""

import ast
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("torch")

from gpuvec.engine.backends.cache.key import NotHashable, module_fingerprint
from gpuvec.engine.backends.cpu.object_code import target_description
from gpuvec.learners.estimators import advantage
from gpuvec.learners.estimators import reward_scaling as returns
from gpuvec.learners.sampling import action_kernels

PROGRAM = """
import sys
import torch
from gpuvec.learners.estimators.advantage import AdvantageEstimator
from gpuvec.learners.sampling.sampler import Sampler

if sys.argv[1] == "blocked":
    sys.modules["numba"] = None  # makes its import raise ImportError
logits = torch.tensor([[0.0, 1.0, 2.0]] * 5)
action, log_prob, entropy = Sampler("cpu", 3).categorical(logits, torch.tensor(1), 0)
ones, flags = torch.ones(2, 4), torch.zeros(2, 4, dtype=torch.bool)
gains, targets = AdvantageEstimator("cpu", 0.5, 0.5)(ones, torch.ones(3, 4), ones, flags, flags)
print(action.tolist(), log_prob.tolist(), gains.tolist())
"""


@pytest.mark.slow  # test_cache.py has the kernels of a step
def test_process_that_loads_kernels_imports_no_compiler(tmp_path):
    def run(numba):
        environment = {**os.environ, "GPUVEC_CACHE": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", PROGRAM, numba]
        process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert process.returncode == 0, process.stderr
        return process.stdout

    assert run("available") == run("blocked")
    assert "[[0.625, 0.625, 0.625, 0.625], [0.5, 0.5, 0.5, 0.5]]" in run("blocked")  # delta 0.5, and 0.5 + 0.25 * 0.5


def test_fingerprint_depends_on_function_arguments_and_target():
    fingerprints = [
        module_fingerprint(action_kernels.make_categorical_draw, ((3,), 1.0, False, False), target_description()),
        module_fingerprint(action_kernels.make_categorical_draw, ((4,), 1.0, False, False), target_description()),
        module_fingerprint(action_kernels.make_gaussian_draw, ((3,), 1.0, False, False), target_description()),
        module_fingerprint(action_kernels.make_categorical_draw, ((3,), 1.0, False, False), (9, 0)),
    ]
    assert len(set(fingerprints)) == 4


def test_function_with_a_closure_is_not_hashable():
    captured = 3
    with pytest.raises(NotHashable, match="closure"):
        module_fingerprint(lambda ops: captured)
    with pytest.raises(NotHashable):
        module_fingerprint(action_kernels.make_categorical_draw, partial(print))


@pytest.mark.parametrize("module", [action_kernels, advantage, returns], ids=lambda module: module.__name__.rpartition(".")[2])
def test_kernel_modules_import_only_the_engine(module):
    """The hash contains the files of the engine, gpuvec.random and the module, so kernels may not use other files."""
    host_modules = {
        f"gpuvec.learners.{name}" for name in ("cuda_graphs.launches", "networks.normalizer")
    }  # have no kernel code
    for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("gpuvec."):
            assert node.module.startswith("gpuvec.engine.") or node.module == "gpuvec.random" or node.module in host_modules
