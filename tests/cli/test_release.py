"""Tests of the files of a release, and of the tool that makes it; those that install packages run with `--all` alone."""

from __future__ import annotations

import hashlib
import re
import runpy
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()


@pytest.fixture
def release() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "tools/release.py"))["main"].__globals__


def test_the_version_is_the_same_in_all_files(release: dict[str, Any]) -> None:
    assert release["find_problems"](allow_changes=True) == []


@pytest.mark.parametrize("file", ["src/gpuvec/__init__.py", "CITATION.cff", "CHANGELOG.md"])
def test_another_version_is_a_problem_that_names_the_file(release: dict[str, Any], tmp_path: Path, file: str) -> None:
    for name in ("pyproject.toml", *release["PATTERNS"]):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / name).read_text()
        version = release["project"]()["version"]
        (tmp_path / name).write_text(text.replace(version, "7.0.0") if name == file else text)
    release["ROOT"] = tmp_path
    assert any("is not known" in problem for problem in release["find_problems"](allow_changes=False))
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    problems = release["find_problems"](allow_changes=True)
    assert problems == [f"{file} names the version 7.0.0, pyproject.toml {version}"]
    assert any("the working tree has changes" in problem for problem in release["find_problems"](allow_changes=False))


def test_a_folder_with_other_files_is_refused(release: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "old.whl").touch()
    with pytest.raises(SystemExit, match=r"is not empty: remove the files of other releases"):
        release["main"](["--allow-changes", "--output", str(tmp_path)])


def test_the_wheel_comes_before_the_source_distribution(release: dict[str, Any], tmp_path: Path) -> None:
    def build(command: list[str], name: str, log: Path) -> None:
        for file in ("gpuvec-0.2.0.tar.gz", "gpuvec-0.2.0-py3-none-any.whl"):
            (Path(command[command.index("--outdir") + 1]) / file).touch()

    release["SCRIPT"] = {"run_quietly": build}
    files = release["build_files"]("python", tmp_path, tmp_path / "log")
    assert [file.name for file in files] == ["gpuvec-0.2.0-py3-none-any.whl", "gpuvec-0.2.0.tar.gz"]


def test_checksums_are_those_of_sha256sum(release: dict[str, Any], tmp_path: Path) -> None:
    files = [tmp_path / "a.whl", tmp_path / "b.tar.gz"]
    for file in files:
        file.write_text(file.name)
    lines = release["write_checksums"](files).read_text().splitlines()
    assert lines == [f"{hashlib.sha256(file.name.encode()).hexdigest()}  {file.name}" for file in files]


def test_the_steps_name_each_place_of_publication(release: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "s.tar.gz").write_text("x")
    text = release["publishing_steps"]("0.2.0", tmp_path / "s.tar.gz")
    assert all(word in text for word in ("git tag", "trusted publishing", "conda-forge", "third_party_environments.md"))
    assert hashlib.sha256(b"x").hexdigest() in text


# ---- the Dockerfile, which is not built here


def test_the_dockerfile_copies_files_that_exist_and_all_that_is_installed() -> None:
    copied = [word for line in re.findall(r"^COPY (.*)$", DOCKERFILE, re.MULTILINE) for word in line.split()[:-1]]
    assert copied
    assert all((ROOT / name).exists() for name in copied)
    pyproject = (ROOT / "pyproject.toml").read_text()
    packages = re.search(r"^packages = \[(.*)\]$", pyproject, re.MULTILINE)
    assert packages is not None
    assert {name.strip(' "').partition("/")[0] for name in packages[1].split(",")} <= set(copied)
    assert {"run.py", "pyproject.toml", "README.md", "LICENSE"} | {path.name for path in ROOT.glob("constraints*.txt")} <= set(
        copied
    )


@pytest.mark.parametrize("driver", ["none", "13.0"])
def test_the_dockerfile_runs_a_job_of_run_py_with_options_that_exist(driver: str) -> None:
    command = re.search(r"^RUN .*?python run\.py (.*?) \\$", DOCKERFILE, re.MULTILINE)
    assert command is not None
    script = runpy.run_path(str(ROOT / "run.py"))
    options, arguments = script["parse_arguments"](shlex.split(command[1].replace("$DRIVER", driver)))
    assert (options.job, options.driver, arguments) == ("check", driver, ["--device", "cpu"])
    assert "ARG DRIVER=none" in DOCKERFILE
    (smoke_test, _), *_ = script["commands"](options.job, "python", True, arguments)
    assert smoke_test[1] in DOCKERFILE


def test_a_docker_build_without_a_network_says_what_is_needed() -> None:
    command = DOCKERFILE.partition("RUN ")[2].partition("\n\n")[0].replace("python run.py", f"{sys.executable} -c 'exit(1)'")
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "The build needs PyPI and https://download.pytorch.org/whl/cpu" in done.stderr


# ---- with an installation


def test_the_pages_name_the_same_installation() -> None:
    blocks = [installation_of(page) for page in ("README.md", "docs/start.md")]
    assert blocks[0] == blocks[1]
    assert "--index-url https://download.pytorch.org/whl/cpu" in blocks[0][0]


def installation_of(page: str) -> list[str]:
    """The commands of the block of a page that installs gpuvec, without comments."""
    blocks = re.findall(r"^```console\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    (block,) = [block for block in blocks if block.startswith("pip install")]
    return [line.partition("  #")[0].strip() for line in block.splitlines()]


@pytest.mark.slow  # it downloads 300 MB; the gate has no such network
@pytest.mark.parametrize("page", ["README.md", "docs/start.md"])
def test_the_block_that_installs_runs_as_it_is_written(page: str, tmp_path: Path) -> None:
    try:
        socket.create_connection(("download.pytorch.org", 443), timeout=15).close()
    except OSError as error:
        pytest.skip(f"PyTorch's index cannot be reached: {error}")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    subprocess.run(["git", "clone", "--quiet", ROOT, tmp_path / "clone"], check=True)
    (tmp_path / "home").mkdir()
    script = "\n".join(["set -e", *installation_of(page)])
    environment = {"PATH": f"{tmp_path / 'venv/bin'}:/usr/bin:/bin", "HOME": str(tmp_path / "home")}
    done = subprocess.run(
        ["sh", "-c", script], cwd=tmp_path / "clone", env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"device +cpu +ok", done.stdout)
