"""The kernels of Adam, emulated on a CPU and compared with torch's optimiser."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.support.cuda_emulator import emulate
from tests.support.machine_code import LDG, LDL, STL, count_instructions

from gpuvec.engine.backends.cuda.nvrtc import compile_cuda_source
from gpuvec.learners.cuda_graphs.optimizer import (
    BETAS,
    ELEMENTS,
    MAX_KERNEL_ELEMENTS,
    MAX_KERNEL_TENSORS,
    Adam,
    adam_kernels,
    has_kernels,
    num_blocks,
)

pytestmark = pytest.mark.compile
SIZES = (5, ELEMENTS + 3, 1, 2 * ELEMENTS)


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder = tmp_path_factory.mktemp("adam")
    runs = [emulate(kernel, folder) for kernel in adam_kernels(SIZES, BETAS).values()]
    return [lambda blocks, run=run, **members: run((blocks,), **members) for run in runs]


def emulated_adam(launches: list[Any], parameters: list[Any], learning_rate: float) -> Adam:
    """Returns an optimiser whose kernels are emulated."""
    optimizer = Adam(parameters, torch.tensor(learning_rate), eps=1e-5)
    optimizer._has_kernels, optimizer._launches = True, launches
    optimizer._squared_norms = torch.full((num_blocks(SIZES),), 7.0)
    return optimizer


@pytest.mark.parametrize("uses_kernels", [True, False])
@pytest.mark.parametrize("max_norm", [None, 0.5, 1e3])
def test_steps_and_norms_equal_those_of_torch(max_norm: float | None, uses_kernels: bool, launches: list[Any]) -> None:
    generator = torch.Generator().manual_seed(0)
    ours = [torch.randn(size, generator=generator) for size in SIZES]
    theirs = [p.clone() for p in ours]
    optimizer = emulated_adam(launches, ours, 0.1) if uses_kernels else Adam(ours, torch.tensor(0.1), eps=1e-5)
    oracle = torch.optim.Adam(theirs, 0.1, eps=1e-5)
    for step in range(1, 4):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn(p.shape, generator=generator)
            q.grad = p.grad.clone()
        norm = torch.nn.utils.clip_grad_norm_(theirs, torch.inf if max_norm is None else max_norm)
        torch.testing.assert_close(optimizer.step(max_norm), norm)
        oracle.step()
        for p, q in zip(ours, theirs, strict=True):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-5)
            assert optimizer.state[p]["step"].item() == step


def test_steps_are_skipped_while_found_inf_is_set(launches: list[Any]) -> None:
    parameters = [torch.zeros(size) for size in SIZES]
    optimizer, flag = emulated_adam(launches, parameters, 0.1), torch.ones(())
    optimizer.found_inf = flag
    for p in parameters:
        p.grad = torch.ones_like(p)
    norm = optimizer.step(1.0)
    assert norm.item() == pytest.approx(sum(SIZES) ** 0.5)
    assert all(not x.any() for p in parameters for x in (p, *optimizer.state[p].values()))
    flag.fill_(0.0)
    optimizer.step(None)
    for p in parameters:
        torch.testing.assert_close(p, torch.full_like(p, -0.1), rtol=1e-4, atol=0.0)


def test_parameters_are_nan_if_the_norm_is(launches: list[Any]) -> None:
    parameters = [torch.zeros(size) for size in SIZES]
    optimizer = emulated_adam(launches, parameters, 0.1)
    for p in parameters:
        p.grad = torch.ones_like(p)
    parameters[1].grad[0] = torch.nan
    assert optimizer.step(1.0).isnan()
    assert all(p.isnan().all() for p in parameters)


@pytest.mark.parametrize(
    "sizes", [(576, 16, 131_072, 128, 1024, 8), (MAX_KERNEL_ELEMENTS // MAX_KERNEL_TENSORS,) * MAX_KERNEL_TENSORS]
)
def test_kernels_compile_without_arrays_in_memory(sizes: tuple[int, ...]) -> None:
    for kernel in adam_kernels(sizes, BETAS).values():
        code = compile_cuda_source(kernel, (9, 0)).code
        assert count_instructions(code, LDG) > 0
        assert count_instructions(code, LDL) + count_instructions(code, STL) == 0


def test_a_cpu_has_no_kernels() -> None:
    assert not has_kernels([torch.zeros(3)])


@pytest.mark.gpu
@pytest.mark.parametrize("max_norm", [None, 0.5])
def test_kernels_on_a_gpu_equal_the_fused_operation(max_norm: float | None, gpu: str) -> None:
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=generator) for shape in ((16, 4, 3, 3), (16,), (128, 1024), (128,), (7, 128))]
    flag = torch.zeros((), device=gpu)
    optimizers = []
    for uses_kernels in (True, False):
        optimizer = Adam([p.clone().to(gpu) for p in start], torch.tensor(0.01, device=gpu), eps=1e-5)
        assert optimizer._has_kernels
        optimizer._has_kernels, optimizer.found_inf = uses_kernels, flag
        optimizers.append(optimizer)
    for is_skipped in (0.0, 1.0, 0.0):
        flag.fill_(is_skipped)
        gradients = [torch.randn(p.shape, generator=generator) for p in start]
        norms = []
        for optimizer in optimizers:
            for p, gradient in zip(optimizer.state, gradients, strict=True):
                p.grad = gradient.to(gpu)
            norms.append(optimizer.step(max_norm))
        torch.testing.assert_close(*norms)
    for p, q in zip(*(optimizer.state for optimizer in optimizers), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
        assert optimizers[0].state[p]["step"].item() == 2.0
