"""The sources that a figure depends on, as hashes: a recorded figure counts as long as they are the same.

A source is an environment with all modules that its kernels are compiled from ("CartPole-v1", and "CartPole-v1/cuda-c" with its
functions in CUDA C++), or a layer of the package ("vector", "learners"). Comments, docstrings and layout do not change a hash.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LAYERS = {"vector", "learners"}
AUTHORING_MODULES = ("angles.py", "random.py")  # called by environments, so kernels contain them
# Modules that kernels contain only where an environment imports the name: {name: module}.
OPTIONAL_MODULES = {"fraction": "fractions.py"}
HOST_MODULES = ("checks", "pictures")  # modules of gpuvec_envs that no kernel contains
REGISTRATION = re.compile(r'register\(\s*"gpuvec/([\w-]+)",\s*"?(?:gpuvec_envs\.)?(\w+)')
CUDA_C_FILE = re.compile(r'cuda_c="([^"]+)"')
CUDA_COMMENT = re.compile(r"//.*")
# Fields of a syntax tree that follow from the other fields or do not change what the code does.
IGNORED_FIELDS = ("ctx", "kind", "type_comment", "type_ignores")

# The environments of the Tag games, by the first word of a case's name.
GAMES = {"grid": "TagGridWorld-v0", "open": "TagContinuous-v0"}
# The layers that a benchmark measures in addition to kernels of environments.
MEASURED_LAYERS = {
    **{benchmark: {"vector"} for benchmark in ("cold_start", "cpu_step", "eager_latency", "memory_per_env", "tag_small")},
    **dict.fromkeys(("game_training", "learners", "live_view", "multi_gpu", "population", "ppo_end_to_end", "solve"), LAYERS),
    **dict.fromkeys(("population_seeds", "tag_training", "time_to_return"), LAYERS),
    "learner_kernels": {"learners"},
}
CUDA_C_BENCHMARKS = ("cuda_c_step", "twins")  # earlier records have the second name
WITHOUT_ENVS = ("learner_kernels", "sanitizer")  # benchmarks whose figures need no environment
# Figures that depend on no source of this project: the bandwidth, other libraries, and planted faults.
WITHOUT_SOURCES = re.compile(
    r"peers\..*|\w+\.((cuda|cpu)\.)?add|env_step\.peer\..*|cpu_step\.(gymnasium|sync|envpool)\..*|learner_kernels\.torch\..*|"
    r"sanitizer\.\w+\.planted"
)


def canonical_text(node: Any) -> str:
    """Returns a syntax tree without docstrings as text that is the same in every version of Python.

    Args:
        node: a node of the tree, a list of nodes, or the value of a field.
    """
    if isinstance(node, ast.AST):
        fields = ((name, value) for name, value in ast.iter_fields(node) if name not in IGNORED_FIELDS)
        texts = [f"{name}={canonical_text(value)}" for name, value in fields if value is not None and value != []]
        return f"{type(node).__name__}({', '.join(texts)})"
    if isinstance(node, list):
        return f"[{', '.join(canonical_text(item) for item in node if not is_docstring(item))}]"
    return repr(node)


@functools.cache  # most files are part of the hashes of many environments
def canonical_code(text: str) -> str:
    """Returns the code of a Python file, `text`, as `canonical_text` writes its syntax tree."""
    return canonical_text(ast.parse(text))


def is_docstring(node: Any) -> bool:
    """Returns whether `node` is a statement that consists of a string."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def hash_files(files: Iterable[Path]) -> str:
    """Returns one hash, 16 hexadecimal digits, of what the code in `files` does; they are in Python or CUDA C++."""
    digest = hashlib.sha256()
    for file in files:
        text = file.read_text()
        if file.suffix == ".py":
            digest.update(f"{file.stem}: {canonical_code(text)}\n".encode())
        else:
            digest.update(f"{file.name}: {' '.join(CUDA_COMMENT.sub('', text).split())}\n".encode())
    return digest.hexdigest()[:16]


def compiled_modules(module: str, folder: Path) -> set[str]:
    """Returns `module` and the other modules of gpuvec_envs, in `folder`, that are compiled together with it."""
    text, modules = (folder / f"{module}.py").read_text(), {module}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "gpuvec_envs":
            _, _, name = (node.module or "").partition(".")
            for imported in [name] if name else [alias.name for alias in node.names]:
                if imported not in HOST_MODULES:
                    modules |= compiled_modules(imported, folder)
    return modules


def imports_name(file: Path, name: str) -> bool:
    """Returns whether the Python `file` imports `name` from some module."""
    nodes = ast.walk(ast.parse(file.read_text()))
    return any(alias.name == name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names)


def source_hashes(root: Path = ROOT) -> dict[str, str]:
    """Returns {source: hash} of all sources of the checkout at `root`."""
    package, folder = root / "src/gpuvec", root / "envs/gpuvec_envs"
    engine = sorted((package / "engine").rglob("*.py"))
    parts = {part: [file for file in engine if part in file.parts] for part in ("single_agent", "multi_agent", "cpp")}
    common = [file for file in engine if not any(file in files for files in parts.values())]
    common += [package / name for name in AUTHORING_MODULES]
    headers = sorted((package / "engine").rglob("*.cuh"))
    hashes = {}
    for env, module in REGISTRATION.findall((folder / "__init__.py").read_text()):
        own = [folder / f"{name}.py" for name in sorted(compiled_modules(module, folder))]
        own += [package / file for name, file in OPTIONAL_MODULES.items() if any(imports_name(module, name) for module in own)]
        declaration = (folder / f"{module}.py").read_text()
        # An environment with one agent and arrays is compiled by the program for many agents.
        is_single_agent, has_arrays = "MultiAgentEnv(" not in declaration, "Annotated[" in declaration
        programs = [("single_agent", is_single_agent), ("multi_agent", not is_single_agent or has_arrays)]
        program = [file for part, is_used in programs if is_used for file in parts[part]]
        hashes[env] = hash_files([*common, *program, *own])
        if cuda_c := CUDA_C_FILE.search(declaration):
            hashes[f"{env}/cuda-c"] = hash_files([*common, *program, *own, *parts["cpp"], *headers, folder / cuda_c[1]])
    for layer in sorted(LAYERS, reverse=True):
        files = sorted((package / layer).rglob("*"))
        hashes[layer] = hash_files(file for file in files if file.suffix in (".py", ".cu", ".cuh"))
    return hashes


def changed_sources(recorded: Mapping[str, str], current: Mapping[str, str]) -> set[str]:
    """Returns the names in `recorded` whose hash is not that of `current`; both are {source: hash}."""
    return {source for source, known in recorded.items() if current.get(source) != known}


def missing_sources(figure: str, named: Iterable[str], recorded: Mapping[str, str], current: Mapping[str, str]) -> set[str]:
    """Returns what a figure was measured from and does not name, or names without a hash in its record.

    A figure with missing sources does not count: nothing shows which kernels it was measured with.

    Args:
        figure: the full name of the figure, such as "env_step.CartPole-v1.same_step.4096".
        named: the sources that the figure names.
        recorded: {source: hash} of the record.
        current: {source: hash} of the checkout.
    """
    if WITHOUT_SOURCES.fullmatch(figure):
        return set()
    benchmark, *parts = figure.split(".")
    named = set(named)
    if not named:
        return {"any source"}
    language = "/cuda-c" if benchmark in CUDA_C_BENCHMARKS else ""
    envs = {GAMES.get(part, part) for part in parts if part in GAMES or part in current}
    required = {f"{env}{language}" for env in envs} | MEASURED_LAYERS.get(benchmark, set())
    if benchmark not in WITHOUT_ENVS and named <= LAYERS:
        required.add("an environment")
    implied = {source.partition("/")[0] for source in named}
    return (required - named - implied) | (named - recorded.keys())
