"""Runs of a user's own environment: the commands of the README, and which module a run folder may import."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import pytest

pytest.importorskip("torch")
pytest.importorskip("tyro")

from gpuvec.cli import main
from gpuvec.cli.env_lookup import module_file
from gpuvec.engine.backends.cache.store import is_file_remembered

README = (Path(__file__).parents[2] / "README.md").read_text()
HOVER = next(code for code in re.findall(r"^```python\n(.*?)^```$", README, re.M | re.S) if code.startswith('"""Hover'))
BLOCK = next(code for code in re.findall(r"^```console\n(.*?)^```$", README, re.M | re.S) if "hover:my/Hover-v0" in code)
SMALL = {
    "check": "--targets sim --num-envs 2 --episodes 1 --max-episode-steps 2",
    "train": "--device cpu --num-envs 4 --num-steps 256 --total-steps 2048 --episodes 3",  # whole episodes of 200 steps
    "eval": "--device cpu --episodes 3",
}
OWN = """
from gpuvec_envs.cartpole import ENV
from gpuvec import register
{action}
register("own/Pole-v0", "gpuvec_envs.cartpole:ENV")
"""


def readme_commands() -> list[list[str]]:
    """Returns the words of the commands in the README's block, without comments."""
    return [shlex.split(line, comments=True) for line in BLOCK.splitlines()]


@pytest.mark.slow
def test_the_commands_of_the_readme_run_one_after_the_other(tmp_path: Path) -> None:
    """Each in a process of its own, as a user calls them, with sizes that make them quick."""
    for package in ("onnx", "matplotlib"):
        pytest.importorskip(package)
    (tmp_path / "hover.py").write_text(HOVER)
    commands = readme_commands()
    assert [words[1] for words in commands] == ["check", "train", "eval", "export", "plot", "compare", "new-env"]
    for words in commands:
        runs = [str(path) for path in tmp_path.glob("runs/*")]
        arguments = [runs[0] if word == "runs/<run>" else word for word in words[1:]]
        command = [sys.executable, "-m", "gpuvec", *arguments, *SMALL.get(words[1], "").split()]
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert result.returncode == 0, (words, result.stdout, result.stderr)
    assert {"hover.onnx", "learning_curves.png", "lunar_rover"} <= {path.name for path in tmp_path.iterdir()}


@pytest.fixture
def own_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run of a module in tmp_path/"own", which this process has forgotten again; nothing of it is on the search path."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "own_pole.py").write_text(OWN.format(action=""))
    with monkeypatch.context() as patch:
        patch.syspath_prepend(folder)
        command = f"train --env own_pole:own/Pole-v0 --runs {tmp_path / 'runs'} {SMALL['train']}"
        assert main(command.split()) == 0
    forget()
    (run,) = (tmp_path / "runs").iterdir()
    return run


def forget() -> None:
    """Makes this process forget the module and its environment."""
    sys.modules.pop("own_pole", None)
    gym.registry.pop("own/Pole-v0", None)


def test_a_run_of_the_users_own_module_needs_no_trust(
    own_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path / "own")
        # Also after a change, as the file is the user's own.
        (tmp_path / "own" / "own_pole.py").write_text(OWN.format(action="changed = True"))
        assert main(["eval", str(own_run), *SMALL["eval"].split()]) == 0
        assert sys.modules["own_pole"].changed
    forget()


def test_the_same_run_imports_no_other_file(
    own_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder of a stranger has a module of that name, and a package in which it is a submodule."""
    other = tmp_path / "other"
    (other / "package").mkdir(parents=True)
    for file in (other / "own_pole.py", other / "package" / "__init__.py", other / "package" / "own_pole.py"):
        file.write_text(OWN.format(action=f"open({str(tmp_path / 'imported')!r}, 'w')"))
    link = tmp_path / "link"
    link.mkdir()
    (link / "own_pole.py").symlink_to(tmp_path / "own" / "own_pole.py")
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path / "own")
        patch.syspath_prepend(other)
        assert main(["eval", str(own_run), *SMALL["eval"].split()]) == 1
        assert "importing it runs its code. If you trust it, give --trust" in capsys.readouterr().err
        assert module_file("package.own_pole") == other / "package" / "own_pole.py"
        assert not is_file_remembered(other / "package" / "own_pole.py")
    assert not (tmp_path / "imported").exists()
    assert "own_pole" not in sys.modules
    with monkeypatch.context() as patch:  # a link leads to the file that the user has run
        patch.syspath_prepend(link)
        assert main(["eval", str(own_run), *SMALL["eval"].split()]) == 0
    forget()


def test_without_a_folder_of_the_user_nothing_is_remembered(
    own_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "own" / "own_pole.py"
    assert is_file_remembered(file)
    monkeypatch.setenv("GPUVEC_CACHE", "off")
    assert not is_file_remembered(file)
    monkeypatch.setenv("GPUVEC_CACHE", str(tmp_path / "cache"))
    assert not is_file_remembered(file)
    (tmp_path / "cache" / "gpuvec-kernels").chmod(0o755)  # open to others, who could have written into it
    with pytest.warns(UserWarning, match="open to other users"):
        assert not is_file_remembered(file)


@pytest.mark.parametrize("name", ["", "..", "a b", "os.path.join", "no_such_module_at_all", "json.no_such", "../x", "__main__"])
def test_names_that_lead_to_no_file_of_a_user(name: str) -> None:
    file = module_file(name)
    assert file is None or not is_file_remembered(file)
