"""Tests that registering an environment or an algorithm adds it to the tests, the benchmarks and the documentation."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

LISTS_PROGRAM = """
import json, sys
from pathlib import Path
from tests.support.bundled_envs import BUNDLED_ENVS, MULTI_AGENT, SINGLE_AGENT, WITH_CUDA_C
from benchmarks.cases import cuda_c_step, env_step, memory_per_env, solve
from benchmarks.tools.sources import source_hashes
print(json.dumps({
    "bundled": list(BUNDLED_ENVS), "single-agent": list(SINGLE_AGENT), "multi-agent": list(MULTI_AGENT),
    "env_step": list(env_step.ENVS), "memory_per_env": list(memory_per_env.GAMES), "cuda_c_step": list(cuda_c_step.ENVS),
    "sources": list(source_hashes(Path(sys.argv[1]))),
}))
"""
PAGE_PROGRAM = """
import environment_pages, repository_pages
(file,) = (file for file in repository_pages.PAGES if file.name == "second_pole.py")
print(repository_pages.PAGES[file].name)
print(environment_pages.table())
print(environment_pages.page(repository_pages.ENVIRONMENTS[file], "second_pole.py"))
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with the package, the bundled environments and one further environment."""
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "src").symlink_to(ROOT / "src")
    shutil.copytree(ROOT / "envs", folder / "envs", ignore=shutil.ignore_patterns("__pycache__"))
    envs = folder / "envs" / "gpuvec_envs"
    (envs / "second_pole.py").write_text((envs / "cartpole.py").read_text())
    with (envs / "__init__.py").open("a") as file:
        file.write('register("gpuvec/SecondPole-v0", "gpuvec_envs.second_pole:ENV")\n')
    return folder


def run(*command: str, paths: list[Path]) -> str:
    """Returns what a Python process prints that looks for modules in these folders first."""
    path = os.pathsep.join(map(str, [*paths, ROOT / "src", ROOT / "envs", ROOT, ROOT / "docs" / "_ext"]))
    process = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": path},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def collect(test: str, *options: str, paths: list[Path]) -> list[str]:
    """Returns the ids of the variants that pytest collects of a test."""
    command = ["-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *options, test]
    return [line.partition("[")[2].rstrip("]") for line in run(*command, paths=paths).splitlines() if "[" in line]


class TestRegisteredEnvironment:
    def test_tests_benchmarks_and_records_list_a_registered_environment(self, checkout: Path) -> None:
        lists = json.loads(run("-c", LISTS_PROGRAM, str(checkout), paths=[checkout / "envs"]))
        assert {name for name, envs in lists.items() if "SecondPole-v0" in envs} == lists.keys() - {"multi-agent"}
        assert "SecondPole-v0/cuda-c" in lists["sources"]

    def test_parametrised_tests_include_a_registered_environment(self, checkout: Path) -> None:
        test = "tests/vector/test_make_vec.py::test_both_forms_of_an_id"
        assert "SecondPole-v0" in collect(test, paths=[checkout / "envs"])
        assert "SecondPole-v0" not in collect(test, paths=[])

    def test_documentation_has_a_page_of_a_registered_environment(self, checkout: Path) -> None:
        pytest.importorskip("PIL", reason="extra `render`")
        page = run("-c", PAGE_PROGRAM, paths=[checkout / "envs"])
        assert page.startswith("SecondPole-v0.md\n")
        assert "| [gpuvec/SecondPole-v0](environments/SecondPole-v0.md): " in page
        assert "# SecondPole-v0\n" in page


class TestRegisteredAlgorithm:
    """The plugin registers PPO a second time, with another class of settings."""

    PLUGIN = """
from dataclasses import dataclass
from gpuvec.learners.algorithms import register_algorithm
from gpuvec.learners.config.training_config import PPOArgs

@dataclass(frozen=True)
class SecondArgs(PPOArgs):
    pass

register_algorithm("second", SecondArgs, "gpuvec.learners.ppo:PPO")
"""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        (tmp_path / "second_algorithm.py").write_text(self.PLUGIN)
        return tmp_path

    def test_parametrised_tests_include_a_registered_algorithm(self, folder: Path) -> None:
        pytest.importorskip("torch")
        pytest.importorskip("tyro")
        test = "tests/learners/test_checkpoint.py::test_a_killed_run_resumes_as_if_uninterrupted"
        variants = collect(test, "-p", "second_algorithm", paths=[folder])
        assert {variant.rpartition("-")[2] for variant in variants} == {"ppo", "a2c", "ddpg", "td3", "second_algorithm:second"}

    def test_command_line_lists_a_registered_algorithm(self, folder: Path) -> None:
        pytest.importorskip("tyro")
        program = "import second_algorithm, sys; from gpuvec.cli import main; sys.exit(main(['train', '--help']))"
        assert "second" in run("-c", program, paths=[folder])
