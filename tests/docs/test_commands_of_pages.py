"""Tests of the commands in pages: those of README.md and docs/start.md run, those of all pages are command lines that exist."""

from __future__ import annotations

import fnmatch
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("tyro")

from gpuvec.cli import parse_command

ROOT = Path(__file__).resolve().parents[2]
FIRST_PAGES = ("README.md", "docs/start.md")
PAGES = [*FIRST_PAGES, *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("[!g]*/*.md")), "docs/tuned.md"]
TESTS = {
    "python3 run.py": "test_a_job_of_run_py_exists",
    "pip install": "test_release.test_the_block_that_installs_runs_as_it_is_written",
    "uvx": "test_the_demo_runs_without_an_installation",
    "gpuvec demo": "test_what_is_shown_can_be_seen",
    "gpuvec check hover:": "test_own_env.test_the_commands_of_the_readme_run_one_after_the_other",
    "gpuvec train CartPole-v1": "test_the_trainings_of_the_start_run_one_after_the_other",
}
"""{beginning of a block of README.md or docs/start.md: the test that runs it}."""
SIZES = "--device cpu --num-envs 4"
SMALL = {
    "CartPole-v1": f"{SIZES} --num-steps 8 --total-steps 64 --episodes 2",
    "TagContinuous-v0": f"{SIZES} --num-steps 16 --total-steps 64 --episodes 2",
    "Pendulum-v1": f"{SIZES} --total-steps 32 --episodes 2",
}


def blocks(page: str) -> list[list[str]]:
    """Returns the lines of each block of commands of a page, without comments."""
    text = re.sub(r"\\\n\s*", "", (ROOT / page).read_text())
    found = re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [[line.partition("  #")[0].strip() for line in block.splitlines() if line.strip()] for block in found]


def block(beginning: str) -> list[list[str]]:
    """Returns the words of the commands of the block of README.md or docs/start.md that begins so."""
    found = [lines for page in FIRST_PAGES for lines in blocks(page) if lines[0].startswith(beginning)]
    assert all(lines == found[0] for lines in found)
    return [shlex.split(line) for line in found[0]]


def run_gpuvec(words: list[str], folder: Path) -> str:
    """Runs a command in a process of its own, as a user does, and returns what it printed."""
    done = subprocess.run([sys.executable, "-m", "gpuvec", *words], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout


@pytest.mark.parametrize("page", FIRST_PAGES)
def test_each_block_is_run_by_a_test(page: str) -> None:
    assert blocks(page)
    for lines in blocks(page):
        assert sum(lines[0].startswith(beginning) for beginning in TESTS) == 1, lines
    code = re.findall(r"^```(\S+)\n", (ROOT / page).read_text(), re.MULTILINE)
    # `test_documentation` runs those in Python of the README, and the builder `doctest` those of the site.
    assert set(code) <= {"console", "python" if page == "README.md" else "{testcode}", "{testoutput}"}


def test_the_tests_of_blocks_exist() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "tests").glob("*/*.py"))
    assert all(f"\ndef {name.rpartition('.')[2]}(" in sources for name in TESTS.values())


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_a_page_exist(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is parsed, and not run. Those that name a module of the user are left to the tests of that page."""
    monkeypatch.chdir(tmp_path)
    for line in [line for lines in blocks(page) for line in lines if re.match(r"gpuvec [a-z]", line)]:
        name, *words = shlex.split(re.split(r" (?:[|&>]|&&) ", line)[0])[1:]
        if not any(re.match(r"[a-z_.]+:", word) for word in words) and "--help" not in words:
            parse_command(name, words)


def test_a_job_of_run_py_exists() -> None:
    parse_arguments = runpy.run_path(str(ROOT / "run.py"))["parse_arguments"]
    assert [parse_arguments(words[2:])[0].job for words in block("python3 run.py")] == ["check", "train", "test"]


@pytest.mark.parametrize(
    "name", ["runs", "demo-CartPole-v1.html", "replay.html", "replay-of-x.html", "learning_curves.png", "episode.mp4"]
)
def test_what_commands_write_into_a_clone_is_no_change_of_it(name: str) -> None:
    """Otherwise `tools/release.py` refuses the clone in which somebody has tried the commands."""
    patterns = [line.strip("/") for line in (ROOT / ".gitignore").read_text().split() if line.startswith("/")]
    assert any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


@pytest.mark.slow  # it downloads 100 MB
def test_the_demo_runs_without_an_installation(tmp_path: Path) -> None:
    if shutil.which("uvx") is None:
        pytest.skip("uvx is not installed")
    subprocess.run(["git", "clone", "--quiet", ROOT, tmp_path / "clone"], check=True)
    ((_, *words),) = block("uvx")
    subprocess.run(["uvx", *words], cwd=tmp_path / "clone", stdin=subprocess.DEVNULL, check=True)
    assert (tmp_path / "clone" / "demo-CartPole-v1.html").stat().st_size > 10_000


@pytest.mark.slow  # each of the commands has tests of its own
def test_what_is_shown_can_be_seen(tmp_path: Path) -> None:
    demo, watch = block("gpuvec demo")
    run_gpuvec([*demo[1:], "--no-open"], tmp_path)
    run_gpuvec(["train", "CartPole-v1", *SMALL["CartPole-v1"].split()], tmp_path)
    (run,) = (tmp_path / "runs").iterdir()
    run_gpuvec([str(run) if word == "runs/<run>" else word for word in [*watch[1:], "--no-open"]], tmp_path)
    assert {"demo-CartPole-v1.html", "replay.html"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.slow  # test_env_lookup.py runs those of the README
def test_the_trainings_of_the_start_run_one_after_the_other(tmp_path: Path) -> None:
    """The last one resumes a training that Ctrl-C has stopped."""
    commands = block("gpuvec train CartPole-v1")
    assert [words[1] for words in commands] == ["train", "eval", "train", "train", "resume"]
    for words in commands[:-1]:
        if words[1] == "train":
            printed = run_gpuvec([*words[1:], *SMALL[words[2]].split()], tmp_path)
        else:
            run_gpuvec([words[1], printed.split()[-1], "--episodes", "2"], tmp_path)
    endless = [*commands[0][1:], *SIZES.split(), "--num-steps", "8", "--total-steps", "1000000000"]
    command = [sys.executable, "-m", "gpuvec", *endless]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while not (line := process.stdout.readline()).startswith("watch "):
            assert line, "the training has ended"
        process.send_signal(signal.SIGINT)
        stopped = process.stdout.read().splitlines()[-1]
    match = re.fullmatch(r"stopped    after (\d+) of \d+ iterations; to continue: gpuvec resume (\S+)", stopped)
    assert match is not None, stopped
    steps = str((int(match[1]) + 1) * 4 * 8)
    run_gpuvec([commands[-1][1], match[2], "--total-steps", steps, "--episodes", "2"], tmp_path)
