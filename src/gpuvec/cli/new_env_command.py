"""The command `gpuvec new-env`."""

from __future__ import annotations

import importlib.util
import keyword
import re
import shutil
import tempfile
from importlib.machinery import ModuleSpec
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import tyro

import gpuvec
from gpuvec.cli.terminal import print_lines

PACKAGE_NAME = re.compile("[a-z]([a-z0-9_]*[a-z0-9])?")
RESERVED_NAMES = ("src", "tests", "conftest")  # other folders of the new project, and the module that pytest imports


def new_env(
    name: Annotated[str, tyro.conf.Positional], multi_agent: bool = False, cuda_c: bool = False, to: Path | None = None
) -> int:
    """Write a package with a small environment to start from, its tests, and a README.

    Importing the package registers the environment. Its tests pass before you change anything.

    Args:
        name: the name of the package, such as lunar_rover. The environment is then lunar_rover/LunarRover-v0.
        multi_agent: write an environment with many agents that share a world, instead of one agent.
        cuda_c: add functions in CUDA C++ for `backend="cuda-c"`, and a test that compares them with the Python functions.
        to: the folder to create. By default it has the name of the package and is in the working folder.
    """
    require_name(name)
    folder = to or Path(name)
    title = "".join(word.capitalize() for word in name.split("_"))
    write_files(folder, package_files(name, title, "multi_agent" if multi_agent else "single_agent", cuda_c))
    print_lines(f"wrote      {folder}: the environment {name}/{title}-v0 is in {folder / 'src' / name / 'env.py'}")
    print_lines(f'next       cd {folder} && pip install -e ".[test]" && pytest')
    return 0


def require_name(name: str) -> None:
    """Checks that a new package can have a name.

    Raises:
        ValueError: it is not a valid name, a keyword of Python, or the name of a package that exists.
    """
    if not PACKAGE_NAME.fullmatch(name):
        words = re.findall("[A-Z]*[a-z0-9]+|[A-Z]+", name)
        suggestion = "_".join(words).lower()
        hint = f" such as {suggestion!r}" if PACKAGE_NAME.fullmatch(suggestion) else ""
        rule = "lower case letters, digits and underscores, a letter first and no underscore last"
        raise ValueError(f"{name!r} cannot be the name of a package: give {rule}{hint}.")
    if keyword.iskeyword(name):
        raise ValueError(f"{name!r} is a keyword of Python, so a package of this name cannot be imported: give another name.")
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # a module that is loaded and has no spec, whose name a package must not have
        spec = ModuleSpec(name, None, origin="a module that is loaded")
    if name in RESERVED_NAMES or (spec is not None and spec.origin is not None):  # a folder without code has no origin
        location = f", in {spec.origin}" if spec is not None and spec.origin is not None else ""
        raise ValueError(f"there is a package {name!r} already{location}: give another name.")


def package_files(name: str, title: str, kind: str, cuda_c: bool = False) -> dict[str, str]:
    """Fills in the templates of a package.

    Args:
        name: the name of the package, such as lunar_rover.
        title: the name of the environment, such as LunarRover.
        kind: "single_agent" or "multi_agent".
        cuda_c: whether the package contains functions in CUDA C++.

    Returns:
        {path in the package's folder: text}.
    """
    templates = files("gpuvec.cli") / "templates"
    sources = {
        "pyproject.toml": "pyproject.in",
        "README.md": "README.in",
        f"src/{name}/__init__.py": "package.py",
        f"src/{name}/env.py": f"{kind}.py",
        f"tests/test_{name}.py": f"{kind}_tests.py",
    }
    if cuda_c:
        sources |= {f"src/{name}/env.cu": f"{kind}.cu", f"tests/test_{name}_cuda_c.py": "cuda_c_tests.py"}
    replacements = {"my_game": name, "my-game": name.replace("_", "-"), "MyGame": title, "GPUVEC": gpuvec.__version__}
    pattern = re.compile("|".join(replacements))
    texts = {path: (templates / source).read_text("utf-8") for path, source in sources.items()}
    if cuda_c:
        env_path = f"src/{name}/env.py"
        texts[env_path] = re.sub(r"(\s+)(max_episode_steps=)", r'\1cuda_c="env.cu",\1\2', texts[env_path])
    return {path: pattern.sub(lambda match: replacements[match[0]], text) for path, text in texts.items()}


def write_files(folder: Path, texts: dict[str, str]) -> None:
    """Creates a folder with files. If a file cannot be written, no folder is left.

    Args:
        folder: the path of the folder, which must not exist or must be empty.
        texts: {path in the folder: text}.

    Raises:
        FileNotFoundError: the parent folder does not exist.
        ValueError: the folder exists and is not empty, or is the working folder, which cannot be replaced.
    """
    if not folder.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {folder.parent} in which to create {folder.name}: create it first.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} exists and is not an empty folder: name a new one with --to.")
    if folder.exists() and folder.samefile(Path.cwd()):
        raise ValueError(f"{folder} is the working folder: name a new one with --to.")
    temporary_folder = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        for path, text in texts.items():
            (temporary_folder / path).parent.mkdir(parents=True, exist_ok=True)
            (temporary_folder / path).write_text(text, "utf-8")
        temporary_folder.chmod(0o755)  # mkdtemp gives permissions to the owner alone
        temporary_folder.replace(folder)
    except BaseException:
        shutil.rmtree(temporary_folder)
        raise
