"""Tests that `gpuvec new-env` writes a package whose tests pass, and leaves no files if it cannot be written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("tyro")

from tests.support.cuda_c_functions import needs_host_compiler

import gpuvec
from gpuvec.cli import main
from gpuvec.cli import new_env_command as new_env
from gpuvec.engine.backends import device as devices

# No installed package has these names.
ROVER, BOAT = "gpuvec_trial_rover", "gpuvec_trial_boat"
HAS_GPU = devices._cuda_problem() is None


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Changes to an empty working folder."""
    monkeypatch.chdir(tmp_path)


def run(*arguments, cwd):
    """Runs Python in `cwd` with the import path of this process and returns its output."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    process = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


@pytest.mark.parametrize(
    # The second case includes that of --multi-agent alone. The third one runs the tests of the first one again; the next test
    # compares its functions.
    "options",
    [[], ["--multi-agent", "--cuda-c"], pytest.param(["--cuda-c"], marks=pytest.mark.slow)],
    ids=" ".join,
)
def test_the_tests_of_a_new_package_pass(options, capsys):
    assert main(["new-env", ROVER, *options]) == 0
    assert f"the environment {ROVER}/GpuvecTrialRover-v0 is in {ROVER}/src/{ROVER}/env.py" in capsys.readouterr().out
    in_cuda_c = {f"{ROVER}/src/{ROVER}/env.cu", f"{ROVER}/tests/test_{ROVER}_cuda_c.py"}
    assert {str(p) for p in Path().rglob("*") if p.is_file()} == {
        f"{ROVER}/README.md",
        f"{ROVER}/pyproject.toml",
        f"{ROVER}/src/{ROVER}/__init__.py",
        f"{ROVER}/src/{ROVER}/env.py",
        f"{ROVER}/tests/test_{ROVER}.py",
    } | (in_cuda_c if "--cuda-c" in options else set())
    texts = "".join(p.read_text() for p in Path(ROVER).rglob("*.*") if p.is_file())
    assert not any(word in texts for word in ("my_game", "my-game", "MyGame", "GPUVEC"))
    printed = run("-W", "error", "-m", "pytest", "-p", "no:cacheprovider", "tests", cwd=ROVER)
    counts = {what: int(count) for count, what in re.findall(r"(\d+) (passed|skipped)", printed)}
    assert sum(counts.values()) == 4 + ("--cuda-c" in options), printed
    assert counts.get("skipped", 0) == (not HAS_GPU and "--cuda-c" in options), printed


COMPARISON = f"""
import numpy as np
from gpuvec import VectorEnv
from {ROVER}.env import ENV

options = {{"device": "cpu", "output": "numpy", "autoreset_mode": "SameStep", "max_episode_steps": 9}}
envs = [VectorEnv(ENV, 5, backend=backend, **options) for backend in ("numba", "cuda-c")]
np.testing.assert_allclose(*(env.reset(seed=1)[0] for env in envs), rtol=1e-5)
envs[0].action_space.seed(1)
for _ in range(30):
    action = envs[0].action_space.sample()
    for results in zip(*(env.step(action)[:4] for env in envs), strict=True):
        np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-6)
"""


@needs_host_compiler
def test_functions_of_a_new_package_in_cuda_c_compute_what_python_does():
    assert main(["new-env", ROVER, "--cuda-c"]) == 0
    run("-W", "error", "-c", COMPARISON, cwd=f"{ROVER}/src")


def test_a_new_package_can_be_built():
    pytest.importorskip("hatchling")
    assert main(["new-env", BOAT, "--to", "elsewhere"]) == 0
    project = tomllib.loads(Path("elsewhere/pyproject.toml").read_text())["project"]
    assert (project["name"], project["dependencies"]) == (BOAT.replace("_", "-"), [f"gpuvec>={gpuvec.__version__}"])
    run("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "./elsewhere", cwd=".")
    (wheel,) = Path().glob("*.whl")
    assert {f"{BOAT}/__init__.py", f"{BOAT}/env.py"} <= set(zipfile.ZipFile(wheel).namelist())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("LunarRover", "'LunarRover' cannot be the name of a package: give lower case letters, .* such as 'lunar_rover'"),
        ("lunar-rover", "such as 'lunar_rover'"),
        ("3d", "'3d' cannot be the name of a package"),
        ("rover_", "no underscore last such as 'rover'"),
        ("../rover", "such as 'rover'"),
        ("", "'' cannot be the name of a package"),
        ("class", "'class' is a keyword of Python"),
        ("random", "there is a package 'random' already, in .*random.py: give another name"),
        ("gpuvec", "there is a package 'gpuvec' already"),
        ("tests", "there is a package 'tests' already"),
        ("conftest", "there is a package 'conftest' already"),
    ],
)
def test_invalid_package_names_are_refused(name, message, capsys, tmp_path):
    with pytest.raises(ValueError, match=message):
        new_env.require_name(name)
    assert main(["new-env", "--to", "there", "--", name]) == 1
    assert capsys.readouterr().err.startswith("gpuvec: ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("to", "message"),
    [
        ("full", "full exists and is not an empty folder: name a new one with --to."),
        ("full/file", "full/file exists and is not an empty folder"),
        ("nowhere/boat", "there is no folder nowhere in which to create boat: create it first."),
        ("empty", "empty is the working folder"),
    ],
)
def test_folders_that_cannot_be_written_are_refused(to, message, capsys, tmp_path, monkeypatch):
    for name in ("full", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    if to == "empty":
        monkeypatch.chdir("empty")
        to = str(tmp_path / "empty")
    before = sorted(tmp_path.rglob("*"))
    assert main(["new-env", BOAT, "--to", to]) == 1
    assert message in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "full" / "file").read_text() == "mine"


def test_an_empty_folder_is_accepted(tmp_path):
    Path(BOAT).mkdir()
    assert main(["new-env", BOAT]) == 0
    assert (tmp_path / BOAT / "src" / BOAT / "env.py").exists()


def test_a_failed_write_leaves_no_files(tmp_path):
    with pytest.raises(IsADirectoryError):
        new_env.write_files(Path("boat"), {"a/b.py": "", "a": "a file in place of a folder"})
    assert not list(tmp_path.iterdir())
