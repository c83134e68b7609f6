"""Functions in CUDA C++ that are wrong: what is told of them, and that `gpuvec check` finds what compiles all the same."""

import importlib
import itertools
import re

import pytest
from tests.sources import DRIFT, RING
from tests.twins import STEP, own, twin_on_cpu

from gpuvec.engine.cpp.definitions import defined
from gpuvec.errors import AuthoringError
from gpuvec.testing.consistency import Job, compare
from gpuvec.testing.kernels import check_source

WRONG = {  # {what is wrong: (old, new, what is said of it)}
    "misnamed": ("Step step(", "Step stepp(", r"own.cu, line 1, `.*`: nothing calls stepp, .* did you mean step\?"),
    "type": (
        "Action action,",
        "float action,",
        r"(?s)own.cu\(1\): error: .*step is to be: Step step\(State s, Action action, const",
    ),
    "missing argument": (", const Params& p)", ")", r"(?s)own.cu\(1\): error: .*step is to be: Step step\(State s, Action"),
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
    "syntax": ("};\n}", "}\n}", r"own.cu\(4\): error: expected a"),
}


@pytest.mark.compile
@pytest.mark.parametrize(("old", "new", "message"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_told_with_its_line(old, new, message, tmp_path):
    assert old in STEP
    file = tmp_path / "own.cu"
    file.write_text(STEP.replace(old, new, 1))
    with pytest.raises(AuthoringError, match=message):
        check_source(own(file))


def test_definitions_are_found_behind_comments_and_attributes(tmp_path):
    lines = (
        "/* __device__ int a() {}",
        "*/ // __device__ int b() {}",
        "static __device__ __forceinline__ Floats<3> c(int x = f(1)) {}",
        "__device__ int d();",
        "__device__",
        "int e() { return d(); }",
    )
    assert defined(tmp_path / "a.cu", "\n".join(lines), {"a", "b", "c", "d", "e"}, ()) == {"c": 3, "e": 6}


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
    job = Job(f"{name}:tests/{name}-v0", "cuda-c", options, {}, 3, episodes=2, max_episode_steps=8, modes=("NextStep",))
    return compare(job)


@pytest.mark.parametrize(("source", "old", "new", "where"), PLANTED.values(), ids=PLANTED)
def test_planted_faults_are_found(planted, source, old, new, where, tmp_path, monkeypatch):
    """As `gpuvec check` finds them on a GPU; a float64 is found before anything plays."""
    name = planted(source, old, new)
    module = importlib.import_module(name)
    if "0.9 *" in new:
        with pytest.raises(AuthoringError, match=r"const float v = .*computes in float64"):
            check_source(module.ENV)
        return
    monkeypatch.setattr(module, "WRONG", twin_on_cpu(module.ENV, tmp_path, monkeypatch), raising=False)
    found = asked(name, device="cpu", output="numpy", env=f"{name}:WRONG").difference
    assert re.match(f"NextStep, in {where}", found) if where else not found, found


ON_A_GPU = {k: p for k, p in PLANTED.items() if k != "missing barrier"}  # there threads in step read before any of them writes


@pytest.mark.gpu
@pytest.mark.parametrize(("source", "old", "new", "where"), ON_A_GPU.values(), ids=ON_A_GPU)
def test_planted_faults_are_red_on_a_gpu(gpu, planted, source, old, new, where, capfd):
    pytest.importorskip("tyro")
    from gpuvec.cli import main

    name = planted(source, old, new)
    sizes = ["--num-envs", "3", "--episodes", "2", "--max-episode-steps", "8"]
    status = main(["check", f"{name}:tests/{name}-v0", "--backends", "cuda-c", *sizes])
    out = capfd.readouterr().out
    assert status == (1 if new or where else 0), out
    assert re.search(f"RED  .*{where}" if where else "computes in float64" if new else "cuda-c +ok", out), out
