"""The kernel of the gradient of a bias, emulated on a CPU and compared with torch's operations."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

from tests.support.cuda_emulator import emulate

from gpuvec.engine.backends.cuda.nvrtc import compile_cuda_source
from gpuvec.learners.networks.linear import MIN_COMPUTE_CAPABILITY, Linear, LinearReLU, bias_gradient, bias_gradient_kernels


@pytest.mark.compile
@pytest.mark.parametrize("has_relu", [True, False])
@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "threads"),
    [
        pytest.param(67, 8, torch.bfloat16, 32, id="a vector a row"),
        pytest.param(50, 24, torch.bfloat16, 64, id="threads without a column"),
        pytest.param(5, 128, torch.float32, 128, id="less rows than threads"),
    ],
)
def test_kernel_equals_torch(rows, columns, dtype, threads, has_relu, tmp_path) -> None:
    generator = torch.Generator().manual_seed(rows)
    out_gradient = torch.randn(rows, columns, generator=generator).to(dtype)
    out = torch.randn(rows, columns, generator=generator).relu().to(dtype) if has_relu else None
    if has_relu:
        out[0, 0] = torch.nan  # its gradient passes
    expected = torch.ops.aten.threshold_backward(out_gradient, out, 0) if has_relu else out_gradient
    expected_sums = expected.double().sum(0)
    on_cpu = bias_gradient(out_gradient, out)
    assert torch.equal(on_cpu[0], expected)
    assert torch.equal(on_cpu[1], expected.sum(0))

    kernel = emulate(bias_gradient_kernels(columns, dtype, has_relu, threads)["bias_gradient"], tmp_path)
    gradient, sums, blocks = torch.full_like(out_gradient, 7.0), torch.full((columns,), 7.0, dtype=dtype), 3
    block_sums, num_finished_blocks = torch.full((blocks, columns), 7.0), torch.zeros((), dtype=torch.int32)
    for _ in range(2):  # the counter is 0 again after a launch
        kernel(
            (blocks,), out_gradient=out_gradient, out=out if has_relu else 0, gradient=gradient, bias_gradient=sums,
            block_sums=block_sums, num_finished_blocks=num_finished_blocks, num_rows=rows,
        )  # fmt: skip
    if has_relu:
        assert torch.equal(gradient, expected)
    torch.testing.assert_close(sums.double(), expected_sums, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-4)


@pytest.mark.compile
@pytest.mark.parametrize(("columns", "dtype"), [(128, torch.bfloat16), (1024, torch.float32)])
def test_kernel_compiles(columns, dtype) -> None:
    for has_relu in (True, False):
        assert compile_cuda_source(
            bias_gradient_kernels(columns, dtype, has_relu)["bias_gradient"], MIN_COMPUTE_CAPABILITY
        ).code


@pytest.mark.gpu
@pytest.mark.parametrize("layer_class", [Linear, LinearReLU])
def test_gradients_of_a_layer_on_a_gpu_equal_those_of_torch_each_time(layer_class, gpu) -> None:
    generator = torch.Generator().manual_seed(3)
    layer = layer_class(16, 8)
    layer.load_state_dict({"weight": torch.randn(8, 16, generator=generator), "bias": torch.randn(8, generator=generator)})
    layer.to(gpu)
    for rows in (3, 40_000, 3):  # the counter of blocks is 0 again
        x = torch.randn(rows, 16, generator=generator).to(gpu)
        expected = torch.nn.functional.linear(x, layer.weight, layer.bias)
        expected = expected.relu() if layer_class is LinearReLU else expected
        gradients = [torch.autograd.grad(out.square().mean(), (layer.weight, layer.bias)) for out in (layer(x), expected)]
        for actual, wanted in zip(*gradients, strict=True):
            torch.testing.assert_close(actual, wanted, rtol=5e-3, atol=5e-3 * float(wanted.abs().max()))
        counter = layer.block_counter(x.device)
        assert counter is layer.block_counter(x.device)
        assert int(counter) == 0


@pytest.mark.gpu
def test_threads_pass_their_own_arguments(gpu) -> None:
    """Trainings in two threads of a process, as those of a search may be, launch the same kernels."""

    def launch_often(k: int) -> list[torch.Tensor]:
        out_gradient = torch.full((rows, columns), float(k), device=gpu)
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
            sums = [bias_gradient(out_gradient)[1] for _ in range(500)]
            torch.cuda.current_stream().synchronize()
        return sums

    rows, columns = 3, 8
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(2) as threads:
            results = list(threads.map(launch_often, (1, 2)))
    finally:
        sys.setswitchinterval(interval)
    for k, sums in zip((1, 2), results, strict=True):
        assert torch.equal(torch.stack(sums), torch.full((500, columns), float(rows * k), device=gpu))


def test_layers_on_a_cpu_need_no_counter_of_blocks() -> None:
    layer = LinearReLU(4, 4)
    assert layer.block_counter(torch.device("cpu")) is None
    assert list(layer.state_dict()) == ["weight", "bias"]
