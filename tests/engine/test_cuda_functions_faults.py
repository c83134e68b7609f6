"""Wrong functions in CUDA C++: the error messages, and the faults that compile and that `gpuvec check` reports."""

import importlib
import itertools
import re
from contextlib import nullcontext

import pytest
from gymnasium.vector import AutoresetMode
from tests.support.cuda_c_functions import OBSERVE, ON_CPU, STEP, needs_host_compiler, own
from tests.support.env_sources import DRIFT, RING

from gpuvec.engine.backends.cuda.cpp.cuda_functions import make_cuda_functions
from gpuvec.engine.backends.cuda.cpp.source import find_definitions, refuse_shared_variables
from gpuvec.engine.layout.buffer_layout import make_kernel_spec
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.errors import AuthoringError, CompilerWarning
from gpuvec.testing import check_env
from gpuvec.testing.environment_check import check_cuda_source
from gpuvec.testing.target_check.target_comparison import ComparisonJob, compare
from gpuvec.vector.env import VectorEnv

COMPILE_ERRORS = {  # {fault: (old, new, message)}
    "misnamed": ("Step step(", "Step stepp(", r"own.cu, line 1, `.*`: nothing calls stepp, .* did you mean step\?"),
    "type": (
        "Action action,",
        "float action,",
        r"(?s)own.cu\(1\): error: .*step must have the type: Step step\(State s, Action action, const",
    ),
    "missing argument": (
        ", const Params& p)",
        ")",
        r"(?s)own.cu\(1\): error: .*step must have the type: Step step\(State s, Action",
    ),
    "field": ("s.count + 1,", "s.cuont + 1,", r'own.cu\(3\): error: class "State" has no member "cuont"'),
    "parameter": ("p.most", "p.least", r'own.cu\(3\): error: class "Params" has no member "least"'),
    "float64": ("-0.5f)", "-0.5)", r"own.cu, line 2, `const float x = .*`: computes in float64; write numbers as 0.5f"),
    "no device": ("__device__ Step", "Step", "own.cu has none of the environment's functions; write some as __device__ func"),
    "recursion": (
        "    const float x",
        "    step(s, action, key, p);\n    const float x",
        "own.cu, line 1, `.*`: step calls itself",
    ),
    "container": ("    const float x", "    std::vector<int> v;\n    const float x", r"own.cu\(2\): error: "),
    "one initialiser too few": ("s.count + 1, !s.odd}", "s.count + 1}", r"own.cu\(3\): error: .*"),
    "no initialiser": (
        "const float x",
        "State next;\n    const float x",
        r"own.cu\(2\): error: no default constructor",
    ),
    "exchanged types": ("{x, s.count + 1,", "{s.count + 1, x,", r"own.cu\(3\): error: invalid narrowing"),
    "exchanged results": ("s.odd ? x : 0.0f, fabsf", "fabsf", r"own.cu\(3\): error: "),
    "without a value": (
        "const float x = s.x +",
        "float x;\n    x +=",
        r'(?s)own.cu reads a variable that has no value yet; .*own.cu\(3\): warning.*"x" is used before its value is set',
    ),
    "shared variable": (
        "__device__ Step",
        "__device__ int calls = 0;\n__device__ Step",
        "own.cu, line 1, `__device__ int calls = 0;`: is a variable that the threads of all environments share: make it const",
    ),
    "syntax": ("};\n}", "}\n}", r"own.cu\(4\): error: expected a"),
}


@pytest.mark.compile
@pytest.mark.parametrize(("old", "new", "message"), COMPILE_ERRORS.values(), ids=COMPILE_ERRORS)
def test_compile_error_names_file_line_and_fault(old, new, message, tmp_path):
    assert old in STEP
    file = tmp_path / "own.cu"
    file.write_text(STEP.replace(old, new, 1))
    with pytest.raises(AuthoringError, match=message):
        check_cuda_source(own(file))


@pytest.mark.compile
@pytest.mark.parametrize("numbers", ["s.x", "s.x, 0.0f, 0.0f"], ids=["too few", "too many"])
def test_tuple_of_another_length_is_refused(numbers, tmp_path):
    file = tmp_path / "own.cu"
    file.write_text(OBSERVE.replace("s.x, s.odd ? 1.0f : 0.0f", numbers))
    with pytest.raises(AuthoringError, match=r"own.cu\(1\): error: "):
        check_cuda_source(own(file))


@pytest.mark.compile
def test_other_compiler_warnings_are_shown(tmp_path):
    file = tmp_path / "own.cu"
    file.write_text(STEP.replace("    const float x", "    int unused;\n    const float x"))
    with pytest.warns(CompilerWarning, match=r"own.cu\(2\): warning.*unused"):
        check_cuda_source(own(file))


@pytest.mark.parametrize(
    ("declaration", "refused"),
    [
        ("__device__ float last;", True),
        ("__device__ float table[2] = {1.0f, 2.0f};", True),
        ("static __device__ int calls{};", True),
        ("__managed__ int calls;", True),
        ("__device__ const float* place;", True),
        ("__device__ int next() { static int calls = 0; return ++calls; }", True),
        ("__device__ int sum() { __shared__ int parts[32]; return parts[0]; }", True),
        ("__device__ const float table[2] = {1.0f, 2.0f};", False),
        ("static constexpr float HALF = 0.5f;", False),
        ("__device__ constexpr int SIZES[] = {1, 2};", False),
        ("__constant__ float table[2];", False),
        ("__device__ const float* const place = nullptr;", False),
        ("static __device__ __forceinline__ float half(float x) { return 0.5f * x; }", False),
        ("struct Row { float at[2]; __device__ float operator[](int k) const { return at[k]; } };", False),
        ("struct One { int k; __device__ One& operator=(int j) { k = j; return *this; } };", False),
        ("// __device__ int calls;", False),
    ],
)
def test_variables_shared_by_threads_are_refused(declaration, refused, tmp_path):
    file = tmp_path / "own.cu"
    text = f"// a file\n{declaration}\n"
    with pytest.raises(AuthoringError, match=r"own.cu, line 2, .*share") if refused else nullcontext():
        refuse_shared_variables(file, text)


def test_shared_variable_in_an_included_file_is_refused(tmp_path):
    (tmp_path / "own.cu").write_text('#include "calls.cuh"\n' + STEP)
    (tmp_path / "calls.cuh").write_text("\n\n__device__ int calls;\n")
    with pytest.raises(AuthoringError, match=r"calls.cuh, line 3, `__device__ int calls;`"):
        make_cuda_functions(make_kernel_spec(own(tmp_path / "own.cu"), KernelOptions(AutoresetMode.DISABLED, None)))


@needs_host_compiler
def test_variable_without_a_value_is_refused_on_cpu(tmp_path):
    file = tmp_path / "own.cu"
    file.write_text(STEP.replace("const float x = s.x +", "float x;\n    x +="))
    with pytest.raises(AuthoringError, match=r"(?s)own.cu reads a variable that has no value yet; .*uninitialized"):
        VectorEnv(own(file), 2, **ON_CPU).reset(seed=0)


@needs_host_compiler
def test_compile_error_on_cpu_names_file_and_line(tmp_path):
    file = tmp_path / "own.cu"
    file.write_text(STEP.replace("s.count + 1,", "s.cuont + 1,"))
    with pytest.raises(AuthoringError, match=r"(?s)own.cu does not compile for a CPU:.*own.cu:3:.*cuont"):
        VectorEnv(own(file), 2, **ON_CPU).reset(seed=0)


def test_definitions_are_found_behind_comments_and_attributes(tmp_path):
    lines = (
        "/* __device__ int a() {}",
        "*/ // __device__ int b() {}",
        "static __device__ __forceinline__ Floats<3> c(int x = f(1)) {}",
        "__device__ int d();",
        "__device__",
        "int e() { return d(); }",
    )
    assert find_definitions(tmp_path / "a.cu", "\n".join(lines), {"a", "b", "c", "d", "e"}, ()) == {"c": 3, "e": 6}


# Environments of the checker's tests, with faulty functions in CUDA C++.

DRIFT_CUDA_C = """
__device__ State reset(const Key& key, const Params& p) {
    return {uniform(key, 0, -1.0f, 1.0f), uniform(key, 1, -0.1f, 0.1f), 0.0f, 0};
}
__device__ Step step(State s, Action action, const Key& key, const Params& p) {
    const float v = 0.9f * s.v + (action == 1 ? p.push : -p.push) + 0.01f * uniform(key, 0, -1.0f, 1.0f), x = s.x + v;
    return {{x, v, s.age + 0.1f, s.turns + 1}, 1.0f - fabsf(x), s.turns + 1 >= p.horizon};
}
"""
RING_CUDA_C = """
__device__ void reset(int i, State& s, const Key& key, const Params& p) {
    s.x[i] = uniform(key, i, -1.0f, 1.0f);
    s.last[i] = 0.0f;
    s.gained[i] = 0.0f;
}
__device__ void move(int i, State& s, Action action, const Key& key, const Params& p) {
    s.x[i] = s.last[(i + 1) % AGENTS];
    s.gained[i] += 1.0f;
}
"""
DRAWS = ("uniform(key, 0, -1.0f, 1.0f)", "uniform(key, 1, -0.1f, 0.1f)")
MISSING_RESET = r"step 9: environment 0, agent 0, state gained is 0\.0 on cpu and 8"
FAULTS = {  # {fault: (source, old, new, reported place)}
    "nothing": (DRIFT_CUDA_C, "", "", ""),
    "nothing either": (RING_CUDA_C, "", "", ""),
    "swapped fields": (DRIFT_CUDA_C, ", ".join(DRAWS), ", ".join(reversed(DRAWS)), "the first reset: .*state x is"),
    "horizon": (DRIFT_CUDA_C, ">= p", "> p", "step 5: environment 0, terminated is True on cpu and False on"),
    "draw": (DRIFT_CUDA_C, "key, 1, -0.1f", "key, 2, -0.1f", "the first reset: environment 0, state v is"),
    "missing barrier": (RING_CUDA_C, "s.last[(i + 1)", "s.x[(i + 1)", r"step 1: environment 0, agent \d, state x is"),
    "float64": (DRIFT_CUDA_C, "0.9f * s.v", "0.9 * s.v", ""),
    "forgotten field": (RING_CUDA_C, "    s.gained[i] = 0.0f;\n", "", MISSING_RESET),
}
MODULE_NUMBERS = itertools.count()


@pytest.fixture
def write_module(tmp_path, monkeypatch):
    """write_module(source, old, new) -> the name of a module whose environment has these functions."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(source, old, new):
        name = f"cuda_c_env_{next(MODULE_NUMBERS)}"
        (tmp_path / f"{name}.cu").write_text(source.replace(old, new) if old else source)
        text = (DRIFT if source is DRIFT_CUDA_C else RING).replace(
            "max_episode_steps=", f'cuda_c="{name}.cu", max_episode_steps='
        )
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        return name

    return write


def compare_targets(name, **options):
    """The comparison of the functions in Python on the CPU with those in CUDA C++."""
    job = ComparisonJob(
        f"{name}:tests/{name}-v0", "cuda-c", options, {}, 3, episodes=2, max_episode_steps=8, modes=("NextStep",)
    )
    return compare(job)


@needs_host_compiler
@pytest.mark.parametrize(("source", "old", "new", "where"), FAULTS.values(), ids=FAULTS)
def test_faults_are_reported_on_cpu(write_module, source, old, new, where):
    """The comparison reports a fault on a CPU as `gpuvec check` does on a GPU; a float64 is refused before the first step."""
    name = write_module(source, old, new)
    module = importlib.import_module(name)
    if "0.9 *" in new:
        with pytest.raises(AuthoringError, match=r"const float v = .*computes in float64"):
            check_cuda_source(module.ENV)
        return
    difference = compare_targets(name, output="numpy", **ON_CPU).difference
    assert re.match(f"NextStep, in {where}", difference) if where else not difference, difference


@needs_host_compiler
def test_check_env_compares_values_without_a_gpu(write_module):
    correct = importlib.import_module(write_module(DRIFT_CUDA_C, "", "")).ENV
    (result,) = (check for check in check_env(correct, 5, 12, kernels=False) if check.name == "CUDA C++")
    assert result.ran
    assert "results are bit-identical to Python's" in result.detail
    wrong = importlib.import_module(write_module(DRIFT_CUDA_C, ", ".join(DRAWS), ", ".join(reversed(DRAWS)))).ENV
    with pytest.raises(AuthoringError, match=r"its results in CUDA C\+\+ differ: .*first reset: .*state x is"):
        check_env(wrong, 5, 12, kernels=False)


@needs_host_compiler
def test_gpuvec_check_reports_exchanged_fields_without_a_gpu(write_module, capfd):
    pytest.importorskip("tyro")
    from gpuvec.cli import main

    name = write_module(DRIFT_CUDA_C, ", ".join(DRAWS), ", ".join(reversed(DRAWS)))
    sizes = ["--num-envs", "3", "--episodes", "2", "--max-episode-steps", "8"]
    assert main(["check", f"{name}:tests/{name}-v0", "--targets", "cuda-c-cpu", *sizes]) == 1
    assert re.search("FAIL  .*the first reset: .*state x is", capfd.readouterr().out)


# On a GPU the threads of a warp all read before one of them writes, and a float64 is refused before the first step.
GPU_FAULTS = {k: p for k, p in FAULTS.items() if k not in ("missing barrier", "float64")}


@pytest.mark.gpu
@pytest.mark.parametrize(("source", "old", "new", "where"), GPU_FAULTS.values(), ids=GPU_FAULTS)
def test_faults_are_reported_on_gpu(gpu, write_module, source, old, new, where):
    difference = compare_targets(write_module(source, old, new), device=gpu, output="cupy", backend="cuda-c").difference
    assert re.match(f"NextStep, in {where}", difference) if where else not difference, difference
