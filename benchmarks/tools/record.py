r"""Makes the record of a GPU run: what was measured, on what, and from which sources.

    python benchmarks/tools/record.py --figures figures.jsonl --tests tests.xml --to gpu-results/h200.json \
        --csv benchmarks/results

With `--csv` each benchmark's figures are also written as a table, from which `figures.py` draws.
A document quotes a figure by naming record and figure in a comment right behind it, on the same line:

    | CartPole-v1, 1 M envs | 49.8 G steps/s <!-- h200.json env_step.CartPole-v1.same_step.1048576 --> |

`tests/docs/test_gpu_results.py` then holds the document to it: the number is the record's, and the sources that the figure
hangs on are still those that were measured. Comments, docstrings and layout do not count as sources.
"""

from __future__ import annotations

import argparse
import ast
import csv
import datetime
import hashlib
import importlib.metadata
import json
import platform
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "numpy", "numba", "numba-cuda", "cuda-core", "cuda-bindings", "cupy-cuda12x", "cupy-cuda13x",
    "torch", "jax", "gymnasium", "gymnax", "jaxmarl", "vmas", "rl-warp-drive", "envpool",
)  # fmt: skip
AUTHORING = ("angles.py", "random.py")  # what environments call and kernels contain
WHERE_CALLED = {"fraction": "fractions.py"}  # likewise, {name: file}: of the environments alone that name it
NOT_COMPILED = ("checks", "pictures")  # modules of gpuvec_envs that run on the host
CURVES = ("ppo_end_to_end", "solve", "time_to_return")  # benchmarks that write their curves into CSV files of these names
COMMENT = re.compile(r"//.*")  # of CUDA C++
CUDA_C_FILE = re.compile(r'cuda_c="([^"]+)"')  # the declaration of an environment's file in CUDA C++
IGNORED = ("ctx", "kind", "type_comment", "type_ignores")  # of a syntax tree: follows from the rest, or says nothing


def canonical(node: Any) -> str:
    """A syntax tree without docstrings, as text that is the same under every version of Python."""
    if isinstance(node, ast.AST):
        fields = [f"{k}={canonical(v)}" for k, v in ast.iter_fields(node) if k not in IGNORED and v is not None and v != []]
        return f"{type(node).__name__}({', '.join(fields)})"
    if isinstance(node, list):
        return f"[{', '.join(canonical(n) for n in node if not is_text(n))}]"
    return repr(node)


def is_text(node: Any) -> bool:
    """Whether it is a statement that consists of a string."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def digest(files: Iterable[Path]) -> str:
    """One hash of what the files say, in Python or CUDA C++."""
    found = hashlib.sha256()
    for file in files:
        text = file.read_text()
        if file.suffix == ".py":
            found.update(f"{file.stem}: {canonical(ast.parse(text))}\n".encode())
        else:
            found.update(f"{file.name}: {' '.join(COMMENT.sub('', text).split())}\n".encode())
    return found.hexdigest()[:16]


def with_imports(module: str, folder: Path) -> set[str]:
    """`module` of gpuvec_envs and those that are compiled together with it."""
    text, found = (folder / f"{module}.py").read_text(), {module}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "gpuvec_envs":
            _, _, name = (node.module or "").partition(".")
            for other in [name] if name else [alias.name for alias in node.names]:
                if other not in NOT_COMPILED:
                    found |= with_imports(other, folder)
    return found


def mentions(file: Path, name: str) -> bool:
    """Whether the file imports that name."""
    nodes = ast.walk(ast.parse(file.read_text()))
    return any(alias.name == name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names)


def sources(root: Path = ROOT) -> dict[str, str]:
    """{name: hash}: of each environment's kernels (its own files and the engine's), of the vector layer and the learners."""
    package, folder = root / "src/gpuvec", root / "envs/gpuvec_envs"
    engine = sorted((package / "engine").rglob("*.py"))
    kinds = {kind: [file for file in engine if kind in file.parts] for kind in ("single_agent", "multi_agent", "cpp")}
    common = [file for file in engine if not any(file in files for files in kinds.values())]
    common += [package / name for name in AUTHORING]
    calls = re.findall(r'register\(\s*"gpuvec/([\w-]+)",\s*"?(?:gpuvec_envs\.)?(\w+)', (folder / "__init__.py").read_text())
    found = {}
    for name, module in calls:
        own = [folder / f"{m}.py" for m in sorted(with_imports(module, folder))]
        own += [package / file for called, file in WHERE_CALLED.items() if any(mentions(one, called) for one in own)]
        declaration = (folder / f"{module}.py").read_text()
        many = "MultiAgentEnv(" in declaration
        everything = [*common, *kinds["multi_agent" if many else "single_agent"], *own]
        found[name] = digest(everything)
        if cuda_c := CUDA_C_FILE.search(declaration):
            cuda_c_files = [*kinds["cpp"], *sorted((package / "engine").rglob("*.cuh")), folder / cuda_c[1]]
            found[f"{name}/cuda-c"] = digest([*everything, *cuda_c_files])
    for layer in ("vector", "learners"):
        found[layer] = digest(sorted(file for file in (package / layer).rglob("*") if file.suffix in (".py", ".cu", ".cuh")))
    return found


def stale(record: dict[str, Any], now: dict[str, str]) -> set[str]:
    """The names of the record's sources that have changed since."""
    return {name for name, known in record["sources"].items() if now.get(name) != known}


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    from gpuvec.doctor import find_driver

    found = find_driver()
    if isinstance(found, str):
        return {"device": None, "driver": found}
    return {"device": found.gpus[0].name, "driver": found.driver_version, "cuda": "{}.{}".format(*found.cuda_version)}


def versions() -> dict[str, str]:
    """Of Python and the packages that matter."""
    installed = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def commit() -> str | None:
    """The commit that is checked out, if this is a checkout."""
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()


def tests(files: Iterable[Path]) -> dict[str, int]:
    """How many tests passed, failed and were skipped, from JUnit files."""
    total = {"passed": 0, "failed": 0, "skipped": 0}
    for file in files:
        for suite in ElementTree.parse(file).iter("testsuite"):  # noqa: S314  # pytest wrote it a moment ago
            count = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")}
            bad = count["failures"] + count["errors"]
            total["failed"] += bad
            total["skipped"] += count["skipped"]
            total["passed"] += count["tests"] - bad - count["skipped"]
    return total


def figures(file: Path) -> tuple[dict[str, Any], list[str]]:
    """({name: figure}, the names of those that failed), from the lines that the benchmarks wrote."""
    found, failed = {}, []
    for line in file.read_text().splitlines():
        row = json.loads(line)
        name = f"{row.pop('benchmark')}.{row.pop('name')}"
        if "failed" in row:
            failed.append(f"{name}: {row['failed'][:300]}")
        else:
            found[name] = row
    return found, failed


def tables(record: dict[str, Any], folder: Path) -> None:
    """A CSV file for each benchmark of a record: a row for each figure, with its details, device and commit."""
    folder.mkdir(parents=True, exist_ok=True)
    of: dict[str, list[dict[str, Any]]] = {}
    for full, figure in record["figures"].items():
        benchmark, _, name = full.partition(".")
        row = {"name": name, "value": figure["value"], "unit": figure["unit"], **figure["details"]}
        of.setdefault(benchmark, []).append({**row, "device": record["device"], "commit": record["commit"]})
    for benchmark, rows in of.items():
        if benchmark not in CURVES:
            columns = list(dict.fromkeys(name for row in rows for name in row))
            with (folder / f"{benchmark}.csv").open("w", newline="") as file:
                table = csv.DictWriter(file, columns)
                table.writeheader()
                table.writerows(rows)


def main() -> None:
    """Writes the record."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--figures", type=Path, required=True)
    p.add_argument("--tests", type=Path, nargs="*", default=[])
    p.add_argument("--to", type=Path, required=True)
    p.add_argument("--csv", type=Path, metavar="FOLDER", help="write the figures there as tables too")
    given = p.parse_args()
    measured, failed = figures(given.figures) if given.figures.exists() else ({}, ["nothing was measured"])
    record = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit(),
        **machine(),
        "versions": versions(),
        "sources": sources(),
        "tests": tests(file for file in given.tests if file.exists()),
        "figures": measured,
        "failed": failed,
    }
    given.to.parent.mkdir(parents=True, exist_ok=True)
    given.to.write_text(json.dumps(record, indent=1) + "\n")
    if given.csv is not None:
        tables(record, given.csv)
    print(f"{given.to}: {len(measured)} figures, {len(failed)} failed, tests {record['tests']}")


if __name__ == "__main__":
    main()
