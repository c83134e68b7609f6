"""Functions in CUDA C++ that are wrong: what is told of them, and that `gpuvec check` finds what compiles all the same."""

import importlib
import itertools
import re
from contextlib import nullcontext

import pytest
from tests.support.cuda_c_functions import OBSERVE, ON_CPU, STEP, needs_host_compiler, own
from tests.support.env_sources import DRIFT, RING

from gpuvec.engine.backends.cuda.cpp.cuda_functions import make_cuda_functions
from gpuvec.engine.backends.cuda.cpp.definitions import find_definitions, refuse_shared_variables
from gpuvec.errors import AuthoringError, CompilerWarning
from gpuvec.testing import check_env
from gpuvec.testing.cuda_cpp_check import check_cuda_source
from gpuvec.testing.target_check.target_comparison import ComparisonJob, compare
from gpuvec.vector.env import VectorEnv

WRONG = {  # {what is wrong: (old, new, what is said of it)}
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
@pytest.mark.parametrize(("old", "new", "message"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_told_with_its_line(old, new, message, tmp_path):
    assert old in STEP
    file = tmp_path / "own.cu"
    file.write_text(STEP.replace(old, new, 1))
    with pytest.raises(AuthoringError, match=message):
        check_cuda_source(own(file))


@pytest.mark.compile
@pytest.mark.parametrize("numbers", ["s.x", "s.x, 0.0f, 0.0f"], ids=["few", "many"])
def test_a_tuple_of_another_length_is_refused(numbers, tmp_path):
    file = tmp_path / "own.cu"
    file.write_text(OBSERVE.replace("s.x, s.odd ? 1.0f : 0.0f", numbers))
    with pytest.raises(AuthoringError, match=r"own.cu\(1\): error: "):
        check_cuda_source(own(file))


@pytest.mark.compile
def test_other_warnings_are_passed_on(tmp_path):
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
def test_variables_that_threads_share_are_refused(declaration, refused, tmp_path):
    file = tmp_path / "own.cu"
    text = f"// a file\n{declaration}\n"
    with pytest.raises(AuthoringError, match=r"own.cu, line 2, .*share") if refused else nullcontext():
        refuse_shared_variables(file, text)


def test_an_included_file_may_not_share_variables_either(tmp_path):
    (tmp_path / "own.cu").write_text('#include "calls.cuh"\n' + STEP)
    (tmp_path / "calls.cuh").write_text("\n\n__device__ int calls;\n")
    with pytest.raises(AuthoringError, match=r"calls.cuh, line 3, `__device__ int calls;`"):
        make_cuda_functions(own(tmp_path / "own.cu"), ())


@needs_host_compiler
def test_a_variable_without_a_value_is_refused_on_a_cpu_too(tmp_path):
    file = tmp_path / "own.cu"
    file.write_text(STEP.replace("const float x = s.x +", "float x;\n    x +="))
    with pytest.raises(AuthoringError, match=r"(?s)own.cu reads a variable that has no value yet; .*uninitialized"):
        VectorEnv(own(file), 2, **ON_CPU).reset(seed=0)


@needs_host_compiler
def test_what_a_cpu_cannot_compile_is_named_with_its_line(tmp_path):
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


# The checker's own environments, with functions in C++ that are wrong.

DRIFTING = """
__device__ State reset(const Key& key, const Params& p) {
    return {uniform(key, 0, -1.0f, 1.0f), uniform(key, 1, -0.1f, 0.1f), 0.0f, 0};
}
__device__ Step step(State s, Action action, const Key& key, const Params& p) {
    const float v = 0.9f * s.v + (action == 1 ? p.push : -p.push) + 0.01f * uniform(key, 0, -1.0f, 1.0f), x = s.x + v;
    return {{x, v, s.age + 0.1f, s.turns + 1}, 1.0f - fabsf(x), s.turns + 1 >= p.horizon};
}
"""
TURNING = """
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
DRAWN = ("uniform(key, 0, -1.0f, 1.0f)", "uniform(key, 1, -0.1f, 0.1f)")
FORGOTTEN = r"step 9: environment 0, agent 0, state gained is 0\.0 on cpu and 8"
PLANTED = {  # {fault: (source, old, new, where it is found)}
    "nothing": (DRIFTING, "", "", ""),
    "nothing either": (TURNING, "", "", ""),
    "swapped fields": (DRIFTING, ", ".join(DRAWN), ", ".join(reversed(DRAWN)), "the first reset: .*state x is"),
    "horizon": (DRIFTING, ">= p", "> p", "step 5: environment 0, terminated is True on cpu and False on"),
    "draw": (DRIFTING, "key, 1, -0.1f", "key, 2, -0.1f", "the first reset: environment 0, state v is"),
    "missing barrier": (TURNING, "s.last[(i + 1)", "s.x[(i + 1)", r"step 1: environment 0, agent \d, state x is"),
    "float64": (DRIFTING, "0.9f * s.v", "0.9 * s.v", ""),
    "forgotten field": (TURNING, "    s.gained[i] = 0.0f;\n", "", FORGOTTEN),
}
MODULES = itertools.count()


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """planted(source, old, new) -> the name of a module whose environment has these functions."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(source, old, new):
        name = f"twins_{next(MODULES)}"
        (tmp_path / f"{name}.cu").write_text(source.replace(old, new) if old else source)
        text = (DRIFT if source is DRIFTING else RING).replace("max_episode_steps=", f'cuda_c="{name}.cu", max_episode_steps=')
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        return name

    return write


def asked(name, **options):
    job = ComparisonJob(
        f"{name}:tests/{name}-v0", "cuda-c", options, {}, 3, episodes=2, max_episode_steps=8, modes=("NextStep",)
    )
    return compare(job)


@needs_host_compiler
@pytest.mark.parametrize(("source", "old", "new", "where"), PLANTED.values(), ids=PLANTED)
def test_planted_faults_are_found(planted, source, old, new, where):
    """As `gpuvec check` finds them on a GPU; a float64 is found before anything plays."""
    name = planted(source, old, new)
    module = importlib.import_module(name)
    if "0.9 *" in new:
        with pytest.raises(AuthoringError, match=r"const float v = .*computes in float64"):
            check_cuda_source(module.ENV)
        return
    found = asked(name, output="numpy", **ON_CPU).difference
    assert re.match(f"NextStep, in {where}", found) if where else not found, found


@needs_host_compiler
def test_check_env_compares_values_without_a_gpu(planted):
    right = importlib.import_module(planted(DRIFTING, "", "")).ENV
    (found,) = (check for check in check_env(right, 5, 12, kernels=False) if check.name == "CUDA C++")
    assert found.ran
    assert "results are bit-identical to Python's" in found.detail
    wrong = importlib.import_module(planted(DRIFTING, ", ".join(DRAWN), ", ".join(reversed(DRAWN)))).ENV
    with pytest.raises(AuthoringError, match=r"its results in CUDA C\+\+ differ: .*first reset: .*state x is"):
        check_env(wrong, 5, 12, kernels=False)


@needs_host_compiler
def test_exchanged_fields_are_red_without_a_gpu(planted, capfd):
    pytest.importorskip("tyro")
    from gpuvec.cli import main

    name = planted(DRIFTING, ", ".join(DRAWN), ", ".join(reversed(DRAWN)))
    sizes = ["--num-envs", "3", "--episodes", "2", "--max-episode-steps", "8"]
    assert main(["check", f"{name}:tests/{name}-v0", "--targets", "cuda-c-cpu", *sizes]) == 1
    assert re.search("FAIL  .*the first reset: .*state x is", capfd.readouterr().out)


# There threads in step read before any of them writes, and a float64 is found before anything plays.
ON_A_GPU = {k: p for k, p in PLANTED.items() if k not in ("missing barrier", "float64")}


@pytest.mark.gpu
@pytest.mark.parametrize(("source", "old", "new", "where"), ON_A_GPU.values(), ids=ON_A_GPU)
def test_planted_faults_are_red_on_a_gpu(gpu, planted, source, old, new, where):
    found = asked(planted(source, old, new), device=gpu, output="cupy", backend="cuda-c").difference
    assert re.match(f"NextStep, in {where}", found) if where else not found, found
