"""The kernel that trains a population: its machine code, its limits and its choice."""

from __future__ import annotations

import dataclasses
import importlib
import logging
import re
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gymnasium.vector import AutoresetMode
from tests.support.machine_code import BAR, HGMMA, LDS, count_instructions
from tests.support.population_emulation import VARIANTS, require_variant

from gpuvec.learners.config.training_config import PPOArgs
from gpuvec.learners.policy import leaves
from gpuvec.learners.population import population_training
from gpuvec.learners.population.kernel.population_kernel import HOPPER, KernelVariant, PopulationShape
from gpuvec.learners.population.population_args import METRICS, PopulationArgs
from gpuvec.learners.population.population_training import make_population, train_population

CARTPOLE = PopulationShape(4, 2, 1, False, 2, False, True, 4, 128, 4, 4, 500)
PENDULUM = PopulationShape(3, 1, 1, True, 2, False, True, 4, 128, 4, 4, 200)
SHARED_KILOBYTES = {(8, 0): 163, (8, 6): 99, (8, 9): 99, (9, 0): 227, (10, 0): 227, (12, 0): 99}  # of a block


def compile_kernel(env_name: str, shape: PopulationShape, cc: tuple[int, int]) -> Any:
    """Returns the machine code of the kernel in a bundled environment."""
    from gpuvec.engine.backends.cuda import nvrtc
    from gpuvec.engine.backends.cuda.linked_functions import link_env_functions
    from gpuvec.engine.layout.buffer_layout import make_kernel_spec
    from gpuvec.engine.layout.buffers import KernelOptions
    from gpuvec.learners.population.kernel.population_kernel import population_kernel

    env = importlib.import_module(f"gpuvec_envs.{env_name}").ENV
    spec = make_kernel_spec(env, KernelOptions(AutoresetMode.SAME_STEP, 100))
    return nvrtc.compile_cuda_source(population_kernel(shape, link_env_functions(spec, cc, has_shared_envs=True)), cc)


def number_of_products(shape: PopulationShape) -> int:
    """The products of a warpgroup in the code: of a tile for the values, and of the tiles of a minibatch for its gradient.

    With four environments the code for values is there twice: for those during a rollout, and for those after it.

    Of shapes with at most 7 features and 4 outputs.
    """
    tiles = 2 if shape.minibatch_size == 128 else 1
    forward = 1 + 4 + (1 + 4 if shape.layers == 2 else 0)
    backward = 1 + (4 if shape.layers == 2 else 0)
    weight_gradients = 4 * (4 if shape.layers == 2 else 3)  # of both or all weights, and of the last biases
    return (2 if shape.num_envs == 4 else 1) * forward + tiles * (forward + backward + weight_gradients)


@pytest.mark.compile
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("cartpole", CARTPOLE),
        pytest.param("cartpole", CARTPOLE._replace(layers=1, relu=True), marks=pytest.mark.slow),
        pytest.param("cartpole", CARTPOLE._replace(num_minibatches=8), marks=pytest.mark.slow),
        ("pendulum", PENDULUM),
    ],
)
def test_the_code_has_all_products_and_no_spills(name, shape) -> None:
    """An assembler was seen to drop the second of two products into the same registers without a warning."""
    kernel = compile_kernel(name, shape, (9, 0))
    assert count_instructions(kernel.code, HGMMA) == number_of_products(shape)
    assert kernel.spill_bytes == 0
    assert "(C75" not in kernel.log  # notes of the assembler that it delays products


@pytest.mark.compile
@pytest.mark.parametrize(
    ("name", "shape"),
    # The test above compiles the shape of Pendulum; of what depends on the GPU, both shapes have the same.
    [("cartpole", CARTPOLE), pytest.param("pendulum", PENDULUM, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("cc", SHARED_KILOBYTES, ids="{0[0]}.{0[1]}".format)
def test_the_portable_variant_compiles_for_each_gpu(name, shape, cc) -> None:
    """With instructions that all GPUs have from compute capability 8.0 on, the shared memory of each, and few spills."""
    shape = shape._replace(variant=KernelVariant(True, SHARED_KILOBYTES[cc] * 1024))
    kernel = compile_kernel(name, shape, cc)
    registers = re.search(r"Used (\d+) registers", kernel.log)
    assert registers is not None
    print(f"{name} {cc}: {registers[1]} registers, {kernel.spill_bytes} bytes spilled, {shape.shared_bytes:,} bytes shared")
    assert shape.shared_bytes <= SHARED_KILOBYTES[cc] * 1024
    assert kernel.spill_bytes <= 32
    assert count_instructions(kernel.code, HGMMA) == 0


@pytest.mark.compile
def test_racecheck_gets_a_kernel_that_reads_what_products_read(tmp_path, monkeypatch) -> None:
    """Each planted fault lacks one barrier, and the copy of the kernel has loads and stores in place of all products."""
    from tests.gpu.sanitizer_learners import MISSING_BARRIERS, copy_kernel
    from tests.support.population_emulation import CASES, compile_env_functions

    from gpuvec.engine.backends.cuda import nvrtc
    from gpuvec.engine.backends.cuda.linked_functions import LinkedFunctions
    from gpuvec.learners.population.kernel import population_kernel as module

    for name, (file, before, _) in MISSING_BARRIERS.items():
        assert before + ";" in (copy_kernel(tmp_path / name, name) / file).read_text()
    shape = CASES["two actions"].shape
    constants: dict[str, int | str] = {"NUM_FLOAT_FIELDS": shape.features, "NUM_INT_FIELDS": 0, "LIMIT": "7u", "PERIOD": 11}
    functions = LinkedFunctions((compile_env_functions(shape, constants),), ("state", "start", "final_obs"), constants)
    codes = []
    for folder in (module.SOURCE_FOLDER, copy_kernel(tmp_path / "visible")):
        monkeypatch.setattr(module, "SOURCE_FOLDER", folder)
        kernel = nvrtc.compile_cuda_source(module.population_kernel(shape, functions), (9, 0))
        codes.append(kernel.code)
    usual, visible = codes
    assert count_instructions(usual, HGMMA) > 0
    assert count_instructions(visible, HGMMA) == 0
    assert count_instructions(visible, BAR) == count_instructions(usual, BAR)
    assert count_instructions(visible, LDS) > 1.2 * count_instructions(usual, LDS)


@pytest.mark.compile
def test_a_source_whose_products_are_serialised_is_refused(tmp_path, monkeypatch) -> None:
    from gpuvec.engine.backends.cuda import nvrtc
    from gpuvec.errors import DeviceError

    library, source = tmp_path / "library.cu", tmp_path / "work.cu"
    library.write_text('extern "C" __device__ int value() { return 3; }\n')
    source.write_text('extern "C" __device__ int value();\nextern "C" __global__ void work(Batch b) { *b.out = value(); }\n')
    from cuda.core import Program, ProgramOptions

    options = ProgramOptions(arch="sm_90a", link_time_optimization=True, relocatable_device_code=True)
    code = bytes(Program(library.read_text(), "c++", options).compile("ltoir").code)
    kernel = nvrtc.CudaSource(source, "work", (("out", "int*"),), (), 32, 0, (code,), True)
    assert nvrtc.compile_cuda_source(kernel, (9, 0)).code
    monkeypatch.setattr(nvrtc, "WGMMA_WARNING", "Compiling entry function")  # what each log has
    with pytest.raises(DeviceError, match="serialises"):
        nvrtc.compile_cuda_source(kernel._replace(threads=64), (9, 0))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"features": 65}, "65 features and 2 outputs of the policy; the kernel supports at most 64 and 32"),
        ({"num_steps": 100}, "a minibatch has 100 samples; the kernel needs a multiple of 64, the nearest of which is 128"),
        ({"num_steps": 2**15}, "131,072 samples; the kernel supports at most 65,536"),
        ({"epochs": 1000}, "4000 updates; the kernel supports at most 1024"),
        ({"features": 60, "max_episode_steps": 1}, "bytes of shared memory, and a block has 232,448; "),
        (
            {"features": 64, "outputs": 32, "variant": KernelVariant(True, 99 * 1024)},
            "bytes of shared memory, and a block has 101,376; 53 features fit",
        ),
    ],
)
def test_the_reason_names_the_limit(changes, reason) -> None:
    assert reason in CARTPOLE._replace(**changes).reason_not_supported()


def test_what_does_not_fit_into_shared_memory_is_in_global_memory() -> None:
    large, wide = CARTPOLE._replace(num_envs=64), CARTPOLE._replace(features=24)
    widest = CARTPOLE._replace(features=64, outputs=32, num_envs=16)
    assert CARTPOLE.memory.samples
    assert large.memory.small
    assert not large.memory.samples
    assert not wide.memory.small
    assert wide.memory.tiles == 2
    assert widest.memory.tiles == 1
    for shape in (CARTPOLE, PENDULUM, large, wide, widest, CARTPOLE._replace(features=6, outputs=3)):
        assert shape.reason_not_supported() == ""
        assert shape.shared_bytes <= HOPPER.max_shared_bytes


@pytest.mark.parametrize("kilobytes", [227, 163, 99])
def test_an_agent_of_usual_shapes_fits_into_the_shared_memory_of_each_gpu(kilobytes) -> None:
    variant = KernelVariant(True, kilobytes * 1024)
    layouts = []
    for shape in (CARTPOLE, PENDULUM, CARTPOLE._replace(num_envs=64), CARTPOLE._replace(features=50, outputs=20)):
        portable = shape._replace(variant=variant)
        assert portable.reason_not_supported() == ""
        assert portable.shared_bytes <= variant.max_shared_bytes
        layouts.append(portable.memory)
    on_cartpole = layouts[0]
    assert on_cartpole.tiles == 2
    assert on_cartpole.second_moments == (kilobytes > 99)
    assert on_cartpole.d2 == on_cartpole.owned == (kilobytes == 227)


@pytest.mark.parametrize(
    ("capability", "expected"), [((9, 0), HOPPER), ((8, 6), KernelVariant(True, 5)), ((10, 0), KernelVariant(True, 5))]
)
def test_each_gpu_has_a_variant(capability, expected, monkeypatch) -> None:
    from gpuvec.learners.population.kernel import kernel_population

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(kernel_population, "parse_device", lambda device: device)
    monkeypatch.setattr(kernel_population, "max_shared_memory", {"cuda:0": 5}.get)
    assert kernel_population.device_variant("cuda:0") == expected
    assert kernel_population.reason_without_kernel(PopulationArgs(PPOArgs()).resolved("cuda:0")) == ""


def test_a_gpu_without_the_instructions_is_refused(monkeypatch) -> None:
    from gpuvec.errors import DeviceError
    from gpuvec.learners.population.kernel.kernel_population import reason_without_kernel

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    reason = "the compute capability is 7.5, and the kernel needs 8.0 or newer"
    assert reason_without_kernel(PopulationArgs(PPOArgs(fused="auto")).resolved("cuda:0")) == reason
    with pytest.raises(DeviceError, match=reason):
        make_population(PopulationArgs(PPOArgs(fused=True)).resolved("cuda:0"))


def test_fused_on_a_cpu_is_refused() -> None:
    base = PPOArgs(env="gpuvec/CartPole-v1", num_envs=4, num_steps=16, total_steps=64, device="cpu", fused=True)
    with pytest.raises(ValueError, match="fused=True, but the kernel cannot be used: the device is cpu"):
        make_population(PopulationArgs(base=base).resolved("cpu"))
    make_population(PopulationArgs(base=dataclasses.replace(base, fused="auto")).resolved("cpu")).close()


@pytest.mark.parametrize("fused", ["auto", False])
@pytest.mark.parametrize("reason", ["", "hidden layers are large"])
def test_auto_selects_the_kernel_on_a_gpu_that_supports_the_training(
    fused: Any, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module = importlib.import_module("gpuvec.learners.population.kernel.kernel_population")
    kernel, batched = SimpleNamespace(name="the kernel"), SimpleNamespace(name="operations")
    monkeypatch.setattr(module, "make_kernel_population", lambda args: reason or kernel)
    monkeypatch.setattr(population_training, "BatchedPopulation", lambda args: batched)
    args = PopulationArgs(PPOArgs(fused=fused), 3).resolved("cuda:0")
    with caplog.at_level(logging.INFO):
        assert make_population(args) is (kernel if fused == "auto" and not reason else batched)
    expected = ["The kernel for populations is not used: hidden layers are large."] if reason and fused == "auto" else []
    expected.append(f"3 agents are trained by {make_population(args).name}.")
    assert [record.getMessage() for record in caplog.records[: len(expected)]] == expected


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_states_are_exchanged_with_batched_operations(env, monkeypatch) -> None:
    """On a CPU, where launches are recorded."""
    from gpuvec.engine.backends.cuda.linked_functions import LinkedFunctions
    from gpuvec.learners.population.batched.batched_population import BatchedPopulation
    from gpuvec.learners.population.kernel import kernel_population
    from gpuvec.learners.population.kernel.population_kernel import MEMBERS

    launches = []
    functions = LinkedFunctions((), ("state",), {"NUM_FLOAT_FIELDS": 4, "NUM_INT_FIELDS": 0})
    monkeypatch.setattr(kernel_population, "link_env", lambda *_, **__: (functions, {"env_state": 5}))
    monkeypatch.setattr(kernel_population, "make_tensor_launcher", lambda *_: lambda *grid, **members: launches.append(members))
    sizes = {"num_envs": 2, "num_steps": 64, "num_minibatches": 2, "total_steps": 512, "hidden": (24, 40)}
    args = PopulationArgs(base=PPOArgs(env=f"gpuvec/{env}", device="cpu", **sizes), num_agents=3).resolved("cpu")
    first, second = BatchedPopulation(args), BatchedPopulation(args)
    first.advance(2)
    population_env = kernel_population.make_population_env(args)
    shape = kernel_population.make_shape(args, population_env, HOPPER)
    assert isinstance(shape, PopulationShape)
    population = kernel_population.KernelPopulation(args, population_env, shape)
    population.load_state_dict(first.state_dict())
    second.load_state_dict(population.state_dict())
    assert torch.equal(population.evaluate(), first.evaluate())
    assert torch.equal(first.advance(1).nan_to_num(-1.0), second.advance(1).nan_to_num(-1.0))
    for name, x in first.tensors()["parameters"].items():
        assert torch.equal(second.tensors()["parameters"][name], x)
    assert population.advance(3).shape == (3, len(METRICS), 3)
    members = {*MEMBERS, "env_state"} - {"gradient", "records"}
    assert launches[0].keys() == (members if env.startswith("Pendulum") else members - {"low", "high"})
    assert (launches[0]["first_iteration"], population.iteration) == (2, 5)
    for each in (first, second, population):
        each.close()


# Limits of different lengths, so that episodes end at different steps of a rollout.
ENVS = {"CartPole-v1": 30, "Pendulum-v1": 25, "Acrobot-v1": 20, "MountainCar-v0": 17, "MountainCarContinuous-v0": 9}


@pytest.fixture(params=VARIANTS)
def variant(request, gpu, monkeypatch) -> str:
    """Makes kernels on a GPU those of a variant."""
    from gpuvec.learners.population.kernel import kernel_population

    require_variant(request.param)
    monkeypatch.setattr(kernel_population, "device_variant", lambda device: VARIANTS[request.param])
    return request.param


def make_pair(env: str, gpu: str, **changes):
    """The same population by the kernel and by batched operations."""
    from gpuvec.learners.population.batched.batched_population import BatchedPopulation

    settings = {"num_envs": 4, "num_steps": 128, "total_steps": 5120, "update_epochs": 4, "num_minibatches": 4} | changes
    base = PPOArgs(env=f"gpuvec/{env}", params={"max_episode_steps": ENVS[env]}, device=f"{gpu}:0", fused=True, **settings)
    args = PopulationArgs(base=base, num_agents=3, settings={"learning_rate": (1e-3, 3e-4, 1e-2)}).resolved(f"{gpu}:0")
    return make_population(args), BatchedPopulation(args)


@pytest.mark.gpu
@pytest.mark.parametrize("env", ENVS)
def test_an_iteration_equals_that_of_batched_operations(env, variant, gpu) -> None:
    """With FP16 operands the parameters differ; actions are the same but where rounding decides."""
    kernel, batched = make_pair(env, gpu, update_epochs=1, num_minibatches=1)
    saved = batched.state_dict()
    kernel.load_state_dict(saved)
    actual, expected = kernel.advance(1), batched.advance(1)
    assert torch.equal(actual[0, 0], expected[0, 0])  # the number of episodes that ended
    torch.testing.assert_close(actual[0, 1:], expected[0, 1:], rtol=0.02, atol=0.02, equal_nan=True)
    tensors, wanted = kernel.tensors(), batched.tensors()
    for name, x in wanted["parameters"].items():
        change, error = (x - saved["tensors"]["parameters"][name]).norm(), (tensors["parameters"][name] - x).norm()
        assert error < 0.05 * change, name
    for population in (kernel, batched):
        population.close()


@pytest.mark.gpu
def test_launches_and_repeated_runs_change_no_bit_on_a_gpu(variant, gpu) -> None:
    first, _ = make_pair("CartPole-v1", gpu)
    second, _ = make_pair("CartPole-v1", gpu)
    metrics = first.advance(4)
    saved = second.state_dict()
    parts = torch.cat([second.advance(1), second.advance(3)])
    assert torch.equal(metrics.nan_to_num(-1.0), parts.nan_to_num(-1.0))
    second.load_state_dict(saved)
    second.advance(4)
    for name, x in first.tensors()["parameters"].items():
        assert torch.equal(x, second.tensors()["parameters"][name])


@pytest.mark.gpu
def test_other_agents_change_no_bit_on_a_gpu(variant, gpu) -> None:
    """An agent alone has the bits that it has among so many that each multiprocessor trains several."""
    sizes: dict[str, Any] = {"num_envs": 4, "num_steps": 128, "total_steps": 5120, "num_minibatches": 4}
    base = PPOArgs(env="gpuvec/CartPole-v1", device=f"{gpu}:0", fused=True, **sizes)
    args, results = PopulationArgs(base, 600).resolved(f"{gpu}:0"), []
    for agents in (range(600), (599,), (3, 599)):
        population = make_population(args.select(agents))
        metrics = population.advance(5)[:, :, -1]
        results.append([metrics.nan_to_num(-1.0), *(x[-1] for x in population.tensors()["parameters"].values())])
        population.close()
    for other in results[1:]:
        assert all(torch.equal(x, y) for x, y in zip(results[0], other, strict=True))


@pytest.mark.gpu
def test_agents_learn_cartpole_on_a_gpu(variant, gpu) -> None:
    """Nearly all of 64 agents, with the settings and steps that PureJaxRL publishes."""
    settings: dict[str, Any] = {
        "num_envs": 4, "num_steps": 128, "update_epochs": 4, "num_minibatches": 4, "learning_rate": 2.5e-4,
        "anneal_lr": True, "gamma": 0.99, "gae_lambda": 0.95, "clip": 0.2, "clip_value": True, "ent_coef": 0.01,
        "vf_coef": 0.5, "max_grad_norm": 0.5, "normalize": False, "total_steps": 976 * 512,
    }  # fmt: skip
    base = PPOArgs(env="gpuvec/CartPole-v1", device=f"{gpu}:0", fused=True, **settings)
    returns = train_population(PopulationArgs(base, 64)).history.metrics["last_return"][-20:].mean(0)
    assert (returns > 400.0).mean() > 0.9


@pytest.mark.gpu
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "Acrobot-v1"])
def test_full_barriers_change_no_bit(env, variant, gpu, monkeypatch) -> None:
    """Products that overlap others, and barriers of a warpgroup alone, leave nothing to chance (design/0048)."""
    from gpuvec.engine.backends.cuda.nvrtc import load_or_compile_source
    from gpuvec.learners.population.kernel import kernel_population

    sources, make_kernel = [], kernel_population.population_kernel
    sizes: dict[str, Any] = {"num_envs": 4, "num_steps": 128, "total_steps": 5 * 512, "num_minibatches": 4}
    base = PPOArgs(env=f"gpuvec/{env}", params={"max_episode_steps": ENVS[env]}, device="cuda:0", fused=True, **sizes)
    args = PopulationArgs(base=base, num_agents=1000).resolved("cuda:0")
    results = []
    for has_full_barriers in (0, 1):

        def population_kernel(*arguments: Any) -> Any:
            kernel = make_kernel(*arguments)
            sources.append(kernel._replace(constants=(*kernel.constants, ("FULL_BARRIERS", has_full_barriers))))  # noqa: B023
            return sources[-1]

        monkeypatch.setattr(kernel_population, "population_kernel", population_kernel)
        population = make_population(args)
        results.append([population.advance(5), *leaves(population.tensors())])
        population.close()
    usual, full = (count_instructions(load_or_compile_source(source, (9, 0)).code, BAR) for source in sources)
    assert full > 2 * usual or variant != "own"  # other variants have no products to wait for
    for x, y in zip(*results, strict=True):
        assert torch.equal(x.nan_to_num(-1.0), y.nan_to_num(-1.0))
