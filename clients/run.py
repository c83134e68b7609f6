#!/usr/bin/env python3
"""Runs programs of other projects on gpuvec's environments, each in its own virtual environment, and writes a table of them.

    python3 clients/run.py                         runs every check
    python3 clients/run.py stable_baselines3 skrl  runs these
    python3 clients/run.py --list                  lists them
    python3 clients/run.py --table                 writes the table from clients/results.json and runs nothing

The table is in docs/guides/clients.md. A check is a file `check_NAME.py` in this folder; a file with the name of the client
would hide the client from `import`. A check is a small program that uses gpuvec with one client on the CPU and fails if that
does not work. Inline script metadata (PEP 723) list its dependencies and, under [tool.client], the entries of the table. The
lines "evidence: ..." and "lines: ..." that it prints are entries as well. A check that trains reports returns by `learning.py`,
and is run with each of three seeds, in one thread, so that another machine has the same numbers.

Packages come from the index that pip is configured for. The default torch for Linux includes CUDA's libraries, so torch is
installed first and alone: PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS may name a place with the CPU build of the same version.
"""

import argparse
import datetime
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent
RESULTS = FOLDER / "results.json"
PAGE = ROOT / "docs/guides/clients.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
TORCH = "torch==2.13.0"
TIME_LIMIT = 3600  # seconds; a check that takes longer does not end
SEEDS = (1, 2, 3)  # of a check that trains


class Client(NamedTuple):
    """The metadata of a check.

    Attributes:
        name: of the check.
        title: of its row in the table.
        dependencies: pinned requirements; the first is the client itself.
        without_dependencies: pinned requirements that are installed without their own dependencies.
        change: what a user changes, in Markdown.
        lines: how many lines that are; None if the check counts them.
        missing: why the check cannot run without --source; "" if it can.
    """

    name: str
    title: str
    dependencies: list[str]
    without_dependencies: list[str]
    change: str
    lines: int | None
    missing: str

    @property
    def script(self) -> Path:
        """The file of the check."""
        return FOLDER / f"check_{self.name}.py"


def load_client(script: Path) -> Client:
    """Returns the metadata at the beginning of the file `script`."""
    match = re.search(r"^# /// script\n((?:#.*\n)+?)# ///$", script.read_text(), re.MULTILINE)
    if match is None:
        sys.exit(f"{script} has no '# /// script' block, which lists its dependencies.")
    block = tomllib.loads("".join(line[2:] or "\n" for line in match[1].splitlines(keepends=True)))
    table = block["tool"]["client"]
    return Client(
        script.stem.removeprefix("check_"), table["title"], block["dependencies"], table.get("without-dependencies", []),
        table["change"], table.get("lines"), table.get("missing", ""),
    )  # fmt: skip


def distribution(requirement: str) -> str:
    """Returns the normalised name of the distribution of a `requirement` or of a line of constraints."""
    return re.split(r"[\[<>=!~; @]", requirement.strip(), maxsplit=1)[0].lower().replace("_", "-").replace(".", "-")


def project_versions(without: set[str]) -> list[str]:
    """Returns the lines of constraints.txt for the requirements of gpuvec itself, except the distributions `without`."""
    text = (ROOT / "constraints.txt").read_text()
    section = text.partition("# gpuvec itself\n")[2].partition("\n\n")[0]
    return [line for line in section.splitlines() if distribution(line) not in without]


def make_venv(folder: Path, base: Path | None, installs: list[list[str]], versions: list[str], log: Any) -> bool:
    """Creates a virtual environment, unless the folder has one for the same arguments.

    Args:
        folder: of the virtual environment.
        base: the folder of another one, whose packages can be imported as well.
        installs: the arguments of each call of `pip install`.
        versions: constraints of all calls.
        log: file to which pip writes.

    Returns:
        Whether all packages could be installed.
    """
    digest = hashlib.sha256(json.dumps([str(ROOT), installs, versions]).encode()).hexdigest()
    stamp = folder / "installed"
    if stamp.exists() and stamp.read_text() == digest:
        return True
    subprocess.run([sys.executable, "-m", "venv", "--clear", *(["--without-pip"] if base else []), folder], check=True)
    if base:
        # The packages of the client come first on the path. A .pth file with a plain path would not read the .pth files of the
        # base, one of which is that of gpuvec.
        line = f"import site; site.addsitedir({str(site_packages(base))!r})\n"
        (site_packages(folder) / "base.pth").write_text(line)
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(versions) + "\n")
    pip = [(base or folder) / "bin/python", "-m", "pip", "--disable-pip-version-check", "--python", folder / "bin/python"]
    for arguments in installs:
        command = [*pip, "install", "--quiet", "--no-compile", *arguments, "-c", constraints]
        if subprocess.run(command, check=False, stdout=log, stderr=subprocess.STDOUT).returncode:
            return False
    stamp.write_text(digest)
    return True


def site_packages(folder: Path) -> Path:
    """Returns the folder of the packages of the virtual environment in `folder`."""
    return next(folder.glob("lib/python*/site-packages"))


def install(client: Client, cache: Path, log: Any) -> str:
    """Creates the virtual environment of a client.

    gpuvec and torch are installed once in a base for all clients, since torch takes a minute and 700 MB.

    Args:
        client: the metadata of the check.
        cache: the folder of all virtual environments.
        log: file to which pip writes.

    Returns:
        The interpreter, or "" if a package could not be installed.
    """
    base = cache / "gpuvec"
    if not make_venv(base, None, [[TORCH], ["-e", str(ROOT)]], [*project_versions(set()), TORCH], log):
        return ""
    pinned = {distribution(requirement) for requirement in client.dependencies}
    versions = [*project_versions(pinned), TORCH, *(r for r in client.dependencies if "[" not in r)]
    installs = [client.dependencies]
    if client.without_dependencies:
        installs.append(["--no-deps", "--ignore-requires-python", *client.without_dependencies])
    folder = cache / client.name
    return str(folder / "bin/python") if make_venv(folder, base, installs, versions, log) else ""


def installed_versions(interpreter: str, client: Client) -> dict[str, str]:
    """Returns {distribution: version} of the requirements of a `client` and of gpuvec, as the `interpreter` imports them."""
    program = "import importlib.metadata as m, json; print(json.dumps([(d.name, d.version) for d in m.distributions()]))"
    distributions = json.loads(subprocess.run([interpreter, "-c", program], check=True, capture_output=True, text=True).stdout)
    # If a distribution is installed twice, the first one on the path is imported.
    versions = {distribution(name): version for name, version in reversed(distributions)}
    names = [distribution(r) for r in [*client.without_dependencies, *client.dependencies]]
    names += ["gymnasium", "numpy", "numba", "torch"]
    return {name: versions[name] for name in dict.fromkeys(names) if name in versions}


def lines_of(log: Path, prefix: str = "") -> list[str]:
    """Returns the lines of a `log` that begin with `prefix`, without the prefix; empty lines are left out."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    return [line.removeprefix(prefix).strip() for line in lines if line and line.startswith(prefix)]


def last_line(log: Path, prefix: str = "") -> str:
    """Returns the last line of a `log` that begins with `prefix`, without the prefix; "" if there is none."""
    return next(reversed(lines_of(log, prefix)), "")


def run_check(client: Client, cache: Path, source: Path | None) -> dict[str, Any]:
    """Installs and runs one check.

    Args:
        client: the metadata of the check.
        cache: the folder of all virtual environments and logs.
        source: the folder of scripts that no package index has.

    Returns:
        The entry of results.json.
    """
    result: dict[str, Any] = {"title": client.title, "change": client.change, "lines": client.lines, "versions": {}}
    result["date"] = datetime.datetime.now(datetime.UTC).date().isoformat()
    result["python"] = platform.python_version()
    if client.missing and source is None:
        return {**result, "outcome": "not run", "evidence": client.missing}
    log = cache / f"{client.name}.log"
    with log.open("w") as file:
        interpreter = install(client, cache, file)
    if not interpreter:
        return {**result, "outcome": "not installed", "evidence": last_line(log, "ERROR:")}
    result["versions"] = installed_versions(interpreter, client)
    learned: list[tuple[str, float, float, str]] = []
    for seed in SEEDS:
        status = run_script(interpreter, client.script, log, source, seed)
        if status:
            return {**result, "outcome": "fails", "evidence": last_line(log)}
        of_seed = [tuple(json.loads(line)) for line in lines_of(log, "learned:")]
        learned += of_seed
        if not of_seed:  # nothing in it depends on the seed
            break
    lines = last_line(log, "lines:")
    result["lines"] = int(lines) if lines else client.lines
    evidence = [text for text in (last_line(log, "evidence:"), *describe_returns(learned)) if text]
    return {**result, "outcome": "works", "evidence": "; ".join(evidence), "learned": learned}


def run_script(interpreter: str, script: Path, log: Path, source: Path | None, seed: int) -> int:
    """Runs a check in a temporary folder and returns its exit status.

    Args:
        interpreter: of its virtual environment.
        script: the check.
        log: file to which it prints.
        source: the folder of scripts that no package index has.
        seed: of what it trains.
    """
    variables = {"PYTHONPATH": "", "GPUVEC_CLIENT_SOURCE": str(source or ""), "GPUVEC_CLIENT_SEED": str(seed)}
    environment = {**os.environ, **variables, "OMP_NUM_THREADS": "1"}
    with log.open("w") as file, tempfile.TemporaryDirectory() as folder:
        command = [interpreter, str(script)]
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, cwd=folder, env=environment)
        try:
            return process.wait(TIME_LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


def describe_returns(learned: list[tuple[str, float, float, str]]) -> list[str]:
    """Returns what was learned as texts: means over the seeds, and the lowest and the highest return at last.

    Args:
        learned: what was trained, the mean return at first, the mean return at last, and after how many steps, of each seed.
    """
    texts = []
    for what, when in dict.fromkeys((what, when) for what, _, _, when in learned):
        of_what = [(first, last) for name, first, last, time in learned if (name, time) == (what, when)]
        before, after = zip(*of_what, strict=True)
        mean, low, high = sum(after) / len(after), min(after), max(after)
        texts.append(
            f"{what}: mean return {sum(before) / len(before):.0f} at first and {mean:.0f} ({low:.0f} to {high:.0f}) {when}, "
            f"{len(after)} seeds"
        )
    return texts


def verdict(result: dict[str, Any]) -> str:
    """Returns whether the client of a `result` works, and after how many changed lines, as the table says it."""
    if result["outcome"] != "works":
        return {"fails": "does not", "not installed": "could not be installed", "not run": "not run"}[result["outcome"]]
    lines = result["lines"]
    return f"with {lines} line{'s' * (lines != 1)}" if lines else "as it is"


def table(results: dict[str, dict[str, Any]]) -> str:
    """Returns the `results`, {name: result}, as a Markdown table."""
    rows = ["| client | works | what changes | what the check saw | command |", "| --- | --- | --- | --- | --- |"]
    for name, result in sorted(results.items(), key=lambda item: item[1]["title"].lower()):
        version = next(iter(result["versions"].items()), None)
        title = f"{result['title']}, {version[0]} {version[1]}" if version else result["title"]
        evidence = result["evidence"].replace("|", "\\|")
        rows.append(f"| {title} | {verdict(result)} | {result['change']} | {evidence} | `python3 clients/run.py {name}` |")
    days = sorted({result["date"] for result in results.values()})
    when = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    pythons = " and ".join(sorted({result["python"] for result in results.values()}))
    return "\n".join([*rows, "", f"Run on {when} with Python {pythons} on a CPU; versions are in `clients/results.json`."])


def write_page(results: dict[str, dict[str, Any]]) -> None:
    """Writes the table of `results` between the markers of the page."""
    head, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, tail = rest.partition(END)
    PAGE.write_text(f"{head}{BEGIN}\n{table(results)}\n{END}{tail}")


def main() -> None:
    """Runs the checks that the command line names."""
    clients = {client.name: client for client in map(load_client, sorted(FOLDER.glob("check_*.py")))}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="checks to run; all without a name")
    parser.add_argument(
        "--cache", type=Path, help="folder of the virtual environments (about 1.5 GB each); by default temporary"
    )
    parser.add_argument("--source", type=Path, help="folder with scripts that no package index has: leanrl/*.py")
    parser.add_argument("--list", action="store_true", help="list the checks")
    parser.add_argument("--table", action="store_true", help="write the table from clients/results.json")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - clients.keys()
    if unknown:
        parser.error(f"there is no check {', '.join(sorted(unknown))}; there are {', '.join(clients)}.")
    if arguments.list:
        print(*(f"{name:24}{client.title}" for name, client in clients.items()), sep="\n")
        return
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    failed = []
    with tempfile.TemporaryDirectory() as temporary:
        cache = (arguments.cache or Path(temporary)).resolve()
        cache.mkdir(parents=True, exist_ok=True)
        for name in [] if arguments.table else arguments.names or clients:
            print(f"{name}: ...", flush=True)
            result = run_check(clients[name], cache, arguments.source and arguments.source.resolve())
            results = {**(json.loads(RESULTS.read_text()) if RESULTS.exists() else {}), name: result}
            print(f"{name}: {verdict(results[name])}. {results[name]['evidence']}", flush=True)
            RESULTS.write_text(json.dumps(dict(sorted(results.items())), indent=1) + "\n")
            failed += [name] if results[name]["outcome"] in ("fails", "not installed") else []
    write_page({name: result for name, result in results.items() if name in clients})
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; see the logs in {arguments.cache or 'a folder given as --cache'}.")


if __name__ == "__main__":
    main()
