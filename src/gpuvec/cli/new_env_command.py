"""`gpuvec new-env`."""

from __future__ import annotations

import importlib.util
import keyword
import re
import shutil
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import tyro

import gpuvec

NAME = re.compile("[a-z]([a-z0-9_]*[a-z0-9])?")
TAKEN = ("src", "tests")  # folders that stand beside or around it


def new_env(
    name: Annotated[str, tyro.conf.Positional], multi_agent: bool = False, cuda_c: bool = False, to: Path | None = None
) -> int:
    """Write a package with a new environment to start from: a small game, its tests, and a README.

    Importing the package registers the environment. Its tests pass before you change anything.

    Args:
        name: the name of the package, such as lunar_rover. The environment is then lunar_rover/LunarRover-v0.
        multi_agent: write an environment with many agents that share a world, instead of one agent.
        cuda_c: add functions in CUDA C++ for `backend="cuda-c"`, and a test that compares them with the Python functions.
        to: the folder to make. By default one with the name of the package, in the working folder.
    """
    require_name(name)
    folder = to or Path(name)
    title = "".join(word.capitalize() for word in name.split("_"))
    write(folder, package(name, title, "multi_agent" if multi_agent else "single_agent", cuda_c))
    print(f"wrote      {folder}: the environment {name}/{title}-v0 is in {folder / 'src' / name / 'env.py'}")
    print(f'next       cd {folder} && pip install -e ".[test]" && pytest')
    return 0


def require_name(name: str) -> None:
    """Raises ValueError unless a new package can have that name."""
    if not NAME.fullmatch(name):
        words = re.findall("[A-Z]*[a-z0-9]+|[A-Z]+", name)
        near = "_".join(words).lower()
        hint = f" such as {near!r}" if NAME.fullmatch(near) else ""
        rule = "lower case letters, digits and underscores, a letter first and no underscore last"
        raise ValueError(f"{name!r} cannot be a package's name: give {rule}{hint}.")
    if keyword.iskeyword(name):
        raise ValueError(f"{name!r} is a keyword of Python, so no package can be imported by it: give another name.")
    found = importlib.util.find_spec(name)
    if name in TAKEN or (found is not None and found.origin is not None):  # a folder without code has no origin
        where = f", in {found.origin}" if found is not None and found.origin is not None else ""
        raise ValueError(f"there is a package {name!r} already{where}: give another name.")


def package(name: str, title: str, kind: str, cuda_c: bool = False) -> dict[str, str]:
    """{path: text} of the files of a package with an environment of that kind ("single_agent" or "multi_agent")."""
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
    words = {"my_game": name, "my-game": name.replace("_", "-"), "MyGame": title, "GPUVEC": gpuvec.__version__}
    pattern = re.compile("|".join(words))
    texts = {path: (templates / source).read_text("utf-8") for path, source in sources.items()}
    if cuda_c:  # the environment names its file
        env = f"src/{name}/env.py"
        texts[env] = re.sub(r"(\s+)(max_episode_steps=)", r'\1cuda_c="env.cu",\1\2', texts[env])
    return {path: pattern.sub(lambda word: words[word[0]], text) for path, text in texts.items()}


def write(folder: Path, texts: dict[str, str]) -> None:
    """Writes all files or none.

    Raises:
        FileNotFoundError: there is no folder to make it in.
        ValueError: it is there and not an empty folder, or the one where we are, which cannot be replaced.
    """
    if not folder.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {folder.parent} to make {folder.name} in: make it first.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is there already and not an empty folder: name a new one with --to.")
    if folder.exists() and folder.samefile(Path.cwd()):
        raise ValueError(f"{folder} is the folder where we are: name a new one with --to.")
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        for path, text in texts.items():
            (draft / path).parent.mkdir(parents=True, exist_ok=True)
            (draft / path).write_text(text, "utf-8")
        draft.chmod(0o755)  # a temporary folder is its owner's alone
        draft.replace(folder)
    except BaseException:
        shutil.rmtree(draft)
        raise
