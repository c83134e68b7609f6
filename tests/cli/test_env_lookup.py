"""Runs of a user's own environment: the commands of the README, and which module a run folder may import."""

from __future__ import annotations

import importlib.util
import py_compile
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import gymnasium as gym
import pytest

pytest.importorskip("torch")
pytest.importorskip("tyro")

import gpuvec
from gpuvec.cli import main
from gpuvec.cli.env_lookup import find_own_env
from gpuvec.cli.train_command import torchrun_command
from gpuvec.errors import CheckpointError, StateError
from gpuvec.learners.runs.trusted_code import Signature, import_code, module_file, sign

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
    for name in [name for name in sys.modules if name.partition(".")[0] in ("own_pole", "own_package", "helper")]:
        del sys.modules[name]
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


def test_a_policy_file_and_a_copied_checkpoint_need_no_trust(
    own_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The signature is in the file. One that has changed, or that another user wrote, imports nothing, also in Python."""
    pytest.importorskip("safetensors")
    (checkpoint,) = own_run.glob("checkpoint-*.pt")
    copy, file = tmp_path / "copy.pt", tmp_path / "pole.safetensors"
    shutil.copy(checkpoint, copy)
    monkeypatch.syspath_prepend(tmp_path / "own")
    assert main(["export", str(own_run), "--format", "safetensors", "--to", str(file)]) == 0
    assert "trust" not in capsys.readouterr().out
    for path in (copy, file):
        forget()
        assert gpuvec.load_policy(path).env == "own_pole:own/Pole-v0"
        forget()
        assert main(["eval", str(path), *SMALL["eval"].split()]) == 0
    forget()
    for path in (copy, file):
        content = path.read_bytes()
        at = len(content) - (1 if path is file else 2000)  # the last weight, or the list of the archive's entries
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(CheckpointError, match=r"has changed since it was signed|cannot be (read|used)"):
            gpuvec.load_policy(path)
        assert "own_pole" not in sys.modules
        path.write_bytes(content)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another user"))
    for path in (own_run, copy, file):
        with pytest.raises(CheckpointError, match="you have no key"):
            gpuvec.load_policy(path)
        assert "own_pole" not in sys.modules


@pytest.mark.parametrize(
    "command",
    [
        "train --population 2 --num-envs 2 --num-steps 256 --total-steps 1024",
        "sweep --param learning_rate log 1e-4 1e-2 --trials 4 --reduction 2 --halvings 1 --confirm 2 --confirmation-seeds 2 "
        "--num-envs 2 --num-steps 256 --total-steps 1024",
    ],
)
def test_populations_and_searches_of_this_user_need_no_trust(
    own_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their readers import the module before they check the settings."""
    from gpuvec.learners.population.results.population_folder import load_population
    from gpuvec.learners.population.search.sweep import load_sweep
    from gpuvec.learners.runs.folder import RunFolder

    monkeypatch.syspath_prepend(own_folder)
    runs = tmp_path / "runs"
    assert main([*command.split(), "--env", f"{FILE}:own/Pole-v0", "--device", "cpu", "--runs", str(runs)]) == 0, (
        capsys.readouterr()
    )
    (run,) = runs.iterdir()

    def read() -> None:
        forget()
        if command.startswith("train"):
            load_population(run)
        else:
            try:
                with RunFolder(run) as folder:
                    load_sweep(folder)
            except StateError as error:
                if not str(error).endswith("is complete: start another search."):
                    raise

    read()
    assert FILE in sys.modules
    for path in (*run.glob("best*"),):
        forget()
        assert gpuvec.load_policy(path).env
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another user"))
    with pytest.raises(CheckpointError, match="you have no key"):
        read()
    assert FILE not in sys.modules


def test_a_run_from_python_needs_no_trust_and_warns_without_a_key(
    own_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpuvec.learners.config.training_config import PPOArgs
    from gpuvec.learners.training import train

    monkeypatch.syspath_prepend(own_folder)
    args = PPOArgs(env=f"{FILE}:own/Pole-v0", device="cpu", num_envs=4, num_steps=8, total_steps=32)
    train(args, run_folder=tmp_path / "run")
    forget()
    assert gpuvec.load_policy(tmp_path / "run").env == args.env
    (tmp_path / "config").write_text("no folder")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with pytest.warns(UserWarning, match="cannot be read.* will need --trust for what is written now"):
        train(args, run_folder=tmp_path / "unsigned")
    forget()
    with pytest.raises(CheckpointError, match="is not signed"):
        gpuvec.load_policy(tmp_path / "unsigned")


def test_the_same_run_imports_no_other_file(
    own_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder of a stranger has a module of that name, and a package in which it is a submodule."""
    other = tmp_path / "other"
    (other / "package").mkdir(parents=True)
    for file in (other / "own_pole.py", other / "package" / "__init__.py", other / "package" / "own_pole.py"):
        file.write_text(OWN.format(action=f"open({str(tmp_path / 'imported')!r}, 'w')"))
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path / "own")
        patch.syspath_prepend(other)
        assert main(["eval", str(own_run), *SMALL["eval"].split()]) == 1
        error = capsys.readouterr().err
        assert f"The name leads to {other / 'own_pole.py'}, and led to another file" in error
        assert "If you trust it, give --trust" in error
        assert module_file("package.own_pole") == other / "package" / "own_pole.py"
    assert not (tmp_path / "imported").exists()
    assert "own_pole" not in sys.modules


FILE, SUBMODULE = "own_pole", "own_package.inner.pole"


@pytest.fixture
def own_folder(tmp_path: Path) -> Iterator[Path]:
    """The user's folder tmp_path/"own", with a module and a package, and the link tmp_path/"current" to it."""
    own = tmp_path / "own"
    (own / "own_package" / "inner").mkdir(parents=True)
    for file in ("own_package/__init__.py", "own_package/inner/__init__.py", "helper.py"):
        (own / file).touch()
    for module in (FILE, SUBMODULE):
        (own / f"{module.replace('.', '/')}.py").write_text(OWN.format(action="import helper"))
    (tmp_path / "current").symlink_to(own)
    yield own
    forget()


def sign_from(folder: Path, module: str) -> str:
    """Imports a module from a folder as the user's command line does, and returns the signature of a training's file."""
    forget()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        find_own_env(f"{module}:own/Pole-v0")
        return sign({"all": {"env": f"{module}:own/Pole-v0"}}, b"")


def import_from(folder: Path, module: str, signature: str) -> None:
    """Imports a module from a folder as a file with the signature does."""
    forget()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        import_code({"all": {"env": f"{module}:own/Pole-v0"}}, "run", False, Signature(signature, bytes))
        assert gym.spec("own/Pole-v0")


def write_hostile(folder: Path, file: str) -> None:
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(OWN.format(action=f"open({str(folder / 'imported')!r}, 'w')"))


def compile_beside_link(own: Path, foreign: Path) -> None:
    """Compiled code that Python takes for that of a linked file without a look at its source."""
    write_hostile(foreign, "other.py")
    code = importlib.util.cache_from_source(str(foreign / f"{FILE}.py"))
    py_compile.compile(str(foreign / "other.py"), code, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    (foreign / f"{FILE}.py").symlink_to(own / f"{FILE}.py")


def compile_beside_linked_folder(own: Path, foreign: Path) -> None:
    """The user changes a link in his own path, so that it leads to the folder of a stranger."""
    compile_beside_link(own, foreign)
    (foreign.parent / "current").unlink()
    (foreign.parent / "current").symlink_to(foreign)


def link_submodule(own: Path, foreign: Path) -> None:
    for package in ("own_package", "own_package/inner"):
        write_hostile(foreign, f"{package}/__init__.py")
    (foreign / "own_package" / "inner" / "pole.py").symlink_to(own / "own_package" / "inner" / "pole.py")


def link_inner_package(own: Path, foreign: Path) -> None:
    write_hostile(foreign, "own_package/__init__.py")
    (foreign / "own_package" / "inner").symlink_to(own / "own_package" / "inner")


def link_package(own: Path, foreign: Path) -> None:
    """The user's package would import another file beside it."""
    write_hostile(foreign, "helper.py")
    (foreign / "own_package").symlink_to(own / "own_package")


@pytest.mark.parametrize(
    ("module", "attack"),
    [
        (FILE, compile_beside_link),
        (FILE, compile_beside_linked_folder),
        (SUBMODULE, link_submodule),
        (SUBMODULE, link_inner_package),
        (SUBMODULE, link_package),
    ],
)
def test_links_to_the_files_of_a_training_run_nothing(
    own_folder: Path, tmp_path: Path, module: str, attack: Callable[[Path, Path], None]
) -> None:
    signatures = [sign_from(own_folder, module), sign_from(tmp_path / "current", module)]
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    attack(own_folder, foreign)
    for folder in (foreign, tmp_path / "current") if attack is compile_beside_linked_folder else (foreign,):
        for signature in signatures:
            with pytest.raises(CheckpointError, match="If you trust it, give --trust"):
                import_from(folder, module, signature)
            assert not (foreign / "imported").exists()
    import_from(own_folder, module, signatures[0])


@pytest.mark.parametrize("place", ["own", "current", "zip", "namespace", "user's link"])
@pytest.mark.parametrize("module", [FILE, SUBMODULE])
def test_the_users_own_files_are_imported_again(own_folder: Path, tmp_path: Path, module: str, place: str) -> None:
    folder = tmp_path / place if place == "current" else own_folder
    if place == "zip":
        folder = Path(shutil.make_archive(str(tmp_path / "archive"), "zip", own_folder))
    elif place == "namespace":
        (own_folder / "own_package" / "__init__.py").unlink()
        (tmp_path / "own_package").mkdir()
    elif place == "user's link":
        for link in (own_folder / f"{FILE}.py", own_folder / "own_package" / "inner"):
            link.symlink_to(link.rename(tmp_path / link.name))
    import_from(folder, module, sign_from(folder, module))


SEARCHES = """
import sys
from pathlib import Path
import gpuvec
from gpuvec.cli import main

class Recorder:
    def find_spec(self, name, path=None, target=None):
        if path is None and not name.startswith("own_") and str(Path.cwd()) in sys.path:
            searched.append(name)

searched = []
sys.meta_path.insert(0, Recorder())
SIZES = "--device cpu --num-envs 4 --num-steps 8 --total-steps 64 --episodes 1".split()
assert main(["train", *SIZES]) == 0
assert main(["eval", *map(str, Path("runs").iterdir()), "--device", "cpu", "--episodes", "1"]) == 0
print("searched:", searched)
assert main(["envs", "own_pole"]) == 0
"""


def test_packages_that_are_not_installed_are_not_searched_in_the_working_folder(tmp_path: Path) -> None:
    """Libraries import others if they can, such as pynvml, whose names the files of a stranger may have."""
    (tmp_path / f"{FILE}.py").write_text(OWN.format(action=""))
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "gpuvec"  # the folder of an installed command is first on the path
    script.write_text(SEARCHES)
    process = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert "searched: []" in process.stdout
    assert "own/Pole-v0" in process.stdout


INSTALLED = ("json", "typing", "pickle", "random", "subprocess", "numpy", "numba", "torch", "gymnasium", "cloudpickle")


@pytest.fixture
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder with the user's own module, and with files of the names of modules that are installed."""
    for name in INSTALLED:
        write_hostile(tmp_path, f"{name}.py")
    (tmp_path / f"{FILE}.py").write_text(OWN.format(action=""))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    forget()


@pytest.mark.parametrize(
    "command",
    [
        "train --population 17 --threads 2 --device cpu --num-envs 4 --num-steps 8 --total-steps 64 --env own_pole:own/Pole-v0",
        "train --watch 1000 --device cpu --num-envs 4 --num-steps 8 --total-steps 64 --episodes 1 --env own_pole:own/Pole-v0",
        pytest.param(
            "check own_pole:own/Pole-v0 --targets sim --num-envs 2 --episodes 1 --max-episode-steps 2",
            marks=pytest.mark.slow,  # one function makes the commands of all processes
        ),
    ],
)
def test_processes_take_only_own_modules_from_the_working_folder(
    working_folder: Path, command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A process that trains agents, that records replays, that checks compiled code, and that runs a target."""
    assert main(command.split()) == 0, capfd.readouterr()
    assert "no more live replays" not in capfd.readouterr().err
    assert not (working_folder / "imported").exists()


def test_torchrun_takes_only_own_modules_from_the_working_folder(working_folder: Path) -> None:
    process = subprocess.run(torchrun_command(["envs", FILE], 1, 0), capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert "own/Pole-v0" in process.stdout
    assert not (working_folder / "imported").exists()


def test_without_a_key_a_training_says_so_and_its_run_needs_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message comes before the training, which may take hours."""
    (tmp_path / f"{FILE}.py").write_text(OWN.format(action=""))
    (tmp_path / "config").write_text("no folder")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--env", f"{FILE}:own/Pole-v0", *SMALL["train"].split()]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("trust ")
    assert "will need --trust" in lines[0]
    (run,) = (tmp_path / "runs").iterdir()
    forget()
    assert main(["eval", str(run), *SMALL["eval"].split()]) == 1
    assert "is not signed" in capsys.readouterr().err
    assert main(["eval", str(run), *SMALL["eval"].split(), "--trust"]) == 0
    forget()


@pytest.mark.parametrize("name", ["", "..", "a b", "os.path.join", "no_such_module_at_all", "json.no_such", "../x", "__main__"])
def test_names_that_lead_to_no_file_of_a_user(name: str) -> None:
    file = module_file(name)  # of "__main__" that of pytest, in `python -m pytest`
    installed = [sysconfig.get_path(folder) for folder in ("stdlib", "purelib")]
    assert file is None or any(map(file.is_relative_to, installed)), "import_code may be called with any text"
