"""The fused rollout's machine code on disk: a second process loads what the first compiled, and imports no compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.compile

ROLLOUT = """
import hashlib, sys
from gymnasium.vector import AutoresetMode

compiled_before = bool(int(sys.argv[1]))
if compiled_before:
    for name in ("numba", "cuda.core"):  # an import of one of them fails
        sys.modules[name] = None
from gpuvec.engine.backends.cuda import nvrtc
from gpuvec.engine.layout.buffer_layout import make_kernel_spec
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.engine.backends.cuda.linked_functions import link_env_functions
from gpuvec.learners.fused_ppo.fused_rollout import rollout_kernel, value_kernel
from gpuvec.learners.fused_ppo.network_shape import NetworkShape
from gpuvec_envs.cartpole import ENV

sizes = {"features": 4, "hidden": 32, "layers": 1, "outputs": 2, "action_size": 1, "head_sizes": (2,)}
shape = NetworkShape(**sizes, relu=False, has_mask=False, clip_value=False)
game = link_env_functions(make_kernel_spec(ENV, KernelOptions(AutoresetMode.SAME_STEP, 100)), (9, 0))
for one in (rollout_kernel(shape, game, 8, (0,)), value_kernel(shape, 2)):
    compiled_kernel = nvrtc.load_or_compile_source(one, (9, 0))
    print(compiled_kernel.name, hashlib.sha256(compiled_kernel.code).hexdigest())
print(*(hashlib.sha256(code).hexdigest() for code in game.code), game.members, game.constants)
"""


def run_rollout(folder: Path, compiled_before: bool) -> str:
    environment = {**os.environ, "GPUVEC_CACHE": str(folder)}
    command = [sys.executable, "-c", ROLLOUT, str(int(compiled_before))]
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_a_second_process_loads_the_fused_rollout_without_a_compiler(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    first = run_rollout(folder, compiled_before=False)
    assert first.split()[0] == "rollout"
    assert run_rollout(folder, compiled_before=True) == first


def test_the_cache_key_covers_all_that_a_kernel_is_compiled_from(tmp_path: Path) -> None:
    from gpuvec.engine.backends.cuda.nvrtc import CudaSource, content_hash

    def write_source(file: str, text: str) -> Path:
        (tmp_path / file).write_text(text)
        return tmp_path / "work.cu"

    place = write_source("work.cu", '#include "part.cuh"\n')
    write_source("part.cuh", "constexpr int N = 1;\n")
    kernel = CudaSource(place, "work", (("n", "i64"),), (("WIDTH", 4),), 32)
    first = content_hash(kernel, (9, 0))
    assert content_hash(kernel, (9, 0)) == first
    changed = [
        content_hash(kernel, (8, 0)),
        content_hash(kernel._replace(name="other"), (9, 0)),
        content_hash(kernel._replace(constants=(("WIDTH", 8),)), (9, 0)),
        content_hash(kernel._replace(members=(("m", "i64"),)), (9, 0)),
        content_hash(kernel._replace(libraries=(b"code",)), (9, 0)),
    ]
    write_source("part.cuh", "constexpr int N = 2;\n")
    changed.append(content_hash(kernel, (9, 0)))
    write_source("work.cu", '#include "part.cuh"\n// changed\n')
    changed.append(content_hash(kernel, (9, 0)))
    assert len({first, *changed}) == 1 + len(changed)
