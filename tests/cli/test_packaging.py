"""Tests of the contents of the wheel, the cost of importing it, and the imports and calls that each module may have."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpuvec
from gpuvec import errors
from gpuvec.policies import policy_names

ROOT = Path(__file__).parents[2]
ENVS = ROOT / "envs" / "gpuvec_envs"
SOURCES = {
    path.relative_to(root).as_posix(): path for root in (ROOT / "src", ROOT / "envs") for path in sorted(root.rglob("*.py"))
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


# ---- the cost of importing

PROBE = """
import json, sys
import gpuvec
from gpuvec import errors
print(json.dumps(sorted(sys.modules)))
"""


def test_importing_gpuvec_imports_no_large_package() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "envs"), *sys.path])}
    output = subprocess.run([sys.executable, "-c", PROBE], env=environment, capture_output=True, check=True, text=True)
    modules = json.loads(output.stdout)
    packages = {name.partition(".")[0] for name in modules}
    assert "gymnasium" in packages
    assert (
        not {"numba", "llvmlite", "cupy", "torch", "jax", "PIL", "tyro", "rich", "tensorboard", "matplotlib", "plotly"}
        & packages
    )
    ours = {name.split(".")[1] for name in modules if name.startswith("gpuvec.")}
    assert not {"cli", "doctor", "engine", "episode", "learners", "testing", "vector"} & ours, "these import a compiler"


def test_version_is_the_same_in_package_and_project() -> None:
    assert gpuvec.__version__ == PROJECT["version"]
    assert f"## [{gpuvec.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


# ---- the contents of the wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("needs hatchling, which builds the wheel: extra `test`")
    wheel_folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    process = subprocess.run([*pip, "--wheel-dir", wheel_folder, ROOT], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    (file,) = wheel_folder.glob("*.whl")
    return zipfile.ZipFile(file)


def test_wheel_contains_both_packages_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    data = {"gpuvec/py.typed", "gpuvec_envs/py.typed", *(f"gpuvec/cli/templates/{k}.in" for k in ("README", "pyproject"))}
    data |= {f"gpuvec_envs/{path.relative_to(ENVS).as_posix()}" for path in (ENVS / "data").iterdir()}
    data |= {f"gpuvec/policies/{name}{suffix}" for name in policy_names() for suffix in (".safetensors", ".md")}
    assert "gpuvec/policies/CartPole-v1.safetensors" in data
    data |= {f"gpuvec/replay/player/{path.name}" for path in (ROOT / "src/gpuvec/replay/player").iterdir()}
    assert {"gpuvec/replay/player/index.html", "gpuvec/replay/player/main.js"} <= data
    assert names >= set(SOURCES) | data
    assert {name.partition("/")[0] for name in names} == {"gpuvec", "gpuvec_envs"}
    assert not [name for name in names if "test_" in name or name.endswith(".pyc")]


def test_wheel_declares_licence_python_and_command(wheel: zipfile.ZipFile) -> None:
    info = f"gpuvec-{PROJECT['version']}.dist-info"
    metadata = wheel.read(f"{info}/METADATA").decode()
    assert "License-Expression: Apache-2.0" in metadata
    assert "Requires-Python: >=3.11" in metadata
    assert f"{info}/licenses/LICENSE" in wheel.namelist()
    assert "gpuvec = gpuvec.cli:main" in wheel.read(f"{info}/entry_points.txt").decode()


def test_constraints_pin_every_requirement_within_its_range() -> None:
    packaging = pytest.importorskip("packaging.requirements")
    extras = PROJECT["optional-dependencies"]
    for major, other in (("12", "cuda13"), ("13", "cuda12")):
        lines = (ROOT / "constraints.txt").read_text() + (ROOT / f"constraints-cuda{major}.txt").read_text()
        pins: dict[str, list[str]] = {}
        for line in lines.splitlines():
            text = line.partition("#")[0].strip()
            if text and not text.startswith("-c"):
                pin = packaging.Requirement(text)
                pins.setdefault(pin.name, []).append(str(pin.specifier).removeprefix("=="))
        requirements = [*PROJECT["dependencies"], *(line for extra in extras if extra != other for line in extras[extra])]
        for requirement in map(packaging.Requirement, requirements):
            assert pins.get(requirement.name), f"{requirement.name} has no pin for CUDA {major}"
            assert all(requirement.specifier.contains(pin) for pin in pins[requirement.name]), requirement.name


# ---- allowed imports; import-linter checks the layers, but not submodules of other distributions

AUTHORING = set(gpuvec.__all__) - {"VectorEnv", "autoscale", "fetch_episode", "load_policy", "parallel_env"}


def imports(source: str) -> Iterator[tuple[str, bool]]:
    """Yields the dotted name of each import and whether it is at the top of the module; `from a import b` gives "a.b"."""
    tree = ast.parse(source)
    top = {
        id(node)
        for statement in tree.body
        if not isinstance(statement, ast.FunctionDef | ast.ClassDef)
        for node in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) in top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((f"{node.module}.{alias.name}", id(node) in top) for alias in node.names)


NUMBA_CUDA = tuple(f"gpuvec/engine/backends/cuda/{name}.py" for name in ("numba_cuda", "numba_cuda_target"))


def misplaced_imports(module: str, source: str) -> list[str]:
    """Returns the imports that the module with this path must not have."""
    wrong = []
    for name, at_top in imports(source):
        parts = name.split(".")
        if parts[:2] == ["numba", "cuda"] and module not in NUMBA_CUDA:
            wrong.append(f"{name}: numba.cuda belongs to {NUMBA_CUDA} alone")
        if parts[0] == "torch" and not module.startswith("gpuvec/learners/") and module != "gpuvec/vector/torch_.py":
            wrong.append(f"{name}: torch belongs to gpuvec.learners and gpuvec.vector.torch_")
        if parts[0] == "cupy" and at_top:
            wrong.append(f"{name}: CuPy is imported where it is first needed, in a function")
        if module.startswith("gpuvec_envs/") and parts[0] == "gpuvec" and (len(parts) != 2 or parts[1] not in AUTHORING):
            wrong.append(f"{name}: environments use the authoring names of gpuvec, {sorted(AUTHORING)}")
    return wrong


@pytest.mark.parametrize("module", SOURCES)
def test_no_import_is_misplaced(module: str) -> None:
    assert misplaced_imports(module, SOURCES[module].read_text()) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("gpuvec/engine/single_agent/step.py", "from numba import cuda"),
        ("gpuvec/engine/single_agent/step.py", "def f():\n    import numba.cuda.types"),
        ("gpuvec/vector/env.py", "from torch.utils import dlpack"),
        ("gpuvec/engine/backends/cuda/numba_cuda.py", "if True:\n    import cupy as cp"),
        ("gpuvec_envs/cartpole.py", "from gpuvec.engine.compiler import functions"),
        ("gpuvec_envs/cartpole.py", "from gpuvec import VectorEnv"),
        ("gpuvec_envs/cartpole.py", "import gpuvec"),
    ],
)
def test_a_misplaced_import_is_reported(module: str, source: str) -> None:
    assert len(misplaced_imports(module, source)) == 1


# ---- no source runs code that came as data

LOADERS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}


# A check hands the environment of its process, lambdas included, to a process that it starts, through a folder of its own.
OWN_PROCESSES = ("cloudpickle", "pickle")


def unsafe_calls(module: str, source: str) -> list[str]:
    """Returns the calls and imports that would run code from a file or a string."""
    allowed = OWN_PROCESSES if module == "gpuvec/testing/worker_process.py" else ()
    wrong = [f"imports {name}" for name, _ in imports(source) if name.partition(".")[0] in LOADERS and name not in allowed]
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        literal = {word.arg: word.value.value for word in node.keywords if isinstance(word.value, ast.Constant)}
        keywords = {word.arg for word in node.keywords}
        if name == "eval" or name in {"os.system", "os.popen", "yaml.load", "yaml.unsafe_load"}:
            wrong.append(f"calls {name}")
        # That module writes out functions whose shape follows an environment's fields.
        if name == "exec" and module != "gpuvec/engine/compiler/functions.py":
            wrong.append("calls exec")
        if name == "torch.load" and literal.get("weights_only") is not True:
            wrong.append("torch.load without weights_only=True")
        if "allow_pickle" in keywords and literal.get("allow_pickle") is not False:
            wrong.append(f"{name} with allow_pickle")
        if "shell" in keywords and literal.get("shell") is not False:
            wrong.append(f"{name} with shell")
    return wrong


@pytest.mark.parametrize("module", SOURCES)
def test_no_source_runs_data_as_code(module: str) -> None:
    assert unsafe_calls(module, SOURCES[module].read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from cloudpickle import loads",
        "eval('1')",
        "exec('1')",
        "os.system('true')",
        "yaml.load(text)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "torch.load(path, weights_only=flag)",
        "np.load(path, allow_pickle=True)",
        "subprocess.run(line, shell=True)",
    ],
)
def test_running_data_as_code_is_reported(source: str) -> None:
    assert len(unsafe_calls("gpuvec/vector/env.py", source)) == 1


# ---- how messages say to install an extra


def command_of(folder: Path, monkeypatch: pytest.MonkeyPatch, direct_url: dict[str, object] | None) -> str:
    """What `install_command` returns for a gpuvec in a folder of installed packages, with the record of PEP 610, if any."""

    class Distribution:
        def read_text(self, name: str) -> str | None:
            return json.dumps(direct_url) if name == "direct_url.json" and direct_url is not None else None

    monkeypatch.setattr(errors, "__file__", str(folder / "gpuvec" / "errors.py"))
    monkeypatch.setattr(errors, "distribution", lambda name: Distribution())
    return errors.install_command("train,onnx")


def test_in_a_checkout_extras_are_installed_from_it() -> None:
    assert errors.install_command("train") == f'pip install -e "{ROOT}[train]"'
    assert errors.install_command() == f'pip install -e "{ROOT}"'


@pytest.mark.parametrize(
    ("direct_url", "command"),
    [
        (None, 'pip install "gpuvec[train,onnx]"'),  # from a package index
        ({"url": "file:///home/me/a%20b", "dir_info": {}}, 'pip install "/home/me/a b[train,onnx]"'),
        (
            {"url": "file:///tmp/gpuvec-0.2.0-py3-none-any.whl", "archive_info": {}},
            'pip install "gpuvec[train,onnx] @ file:///tmp/gpuvec-0.2.0-py3-none-any.whl"',
        ),
        (
            {"url": "https://example.org/gpuvec", "vcs_info": {"vcs": "git", "commit_id": "1234"}},
            'pip install "gpuvec[train,onnx] @ git+https://example.org/gpuvec@1234"',
        ),
    ],
)
def test_an_installed_gpuvec_names_the_place_that_it_was_installed_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, direct_url: dict[str, object] | None, command: str
) -> None:
    assert command_of(tmp_path / "site-packages", monkeypatch, direct_url) == command


def test_no_text_tells_to_install_extras_from_an_index_that_has_no_gpuvec() -> None:
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *SOURCES.values()]
    for folder, suffixes in {"docs": (".md", ".py"), "examples": (".py", ".yaml", ".sh"), "clients": (".py",)}.items():
        files += [
            path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in suffixes and "generated" not in path.parts
        ]
    wrong = re.compile(r"""(install|--from) ["']?gpuvec(\[[\w,]+\])?["'\s.]""")
    exempt = ROOT / "src/gpuvec/errors.py"  # which says it where gpuvec was installed from an index
    assert [
        f"{path.relative_to(ROOT)}: {line}" for path in files if path != exempt for line in wrong.findall(path.read_text())
    ] == []
    assert wrong.search('pip install "gpuvec[train]"')
    assert wrong.search("uvx --from 'gpuvec[demo]' gpuvec demo")
