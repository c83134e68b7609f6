#!/usr/bin/env python3
"""Runs other people's programs on gpuvec's environments, each in an environment of its own, and writes docs/guides/clients.md.

    python3 clients/run.py                         runs every check
    python3 clients/run.py stable_baselines3 skrl  runs these
    python3 clients/run.py --list                  lists them
    python3 clients/run.py --table                 writes the table from clients/results.json and runs nothing

A check is a file `check_NAME.py` beside this one; a file with the client's own name would hide the client from `import`. It is
a small program that uses gpuvec with one client on the CPU and fails if that does not work. Its first lines say what it needs,
as inline script metadata (PEP 723), and what the table says of it, under [tool.client]. What it prints as "evidence: ..." and
"lines: ..." goes into the table.

Packages come from the index that pip is configured for. Plain torch for Linux brings CUDA's libraries along, so torch is
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

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RESULTS = HERE / "results.json"
PAGE = ROOT / "docs/guides/clients.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
TORCH = "torch==2.13.0"
SECONDS = 3600  # a check that takes longer hangs; it is a limit, and no expectation


class Client(NamedTuple):
    """What a check's metadata say."""

    name: str
    title: str
    dependencies: list[str]  # pinned requirements; the first is the client itself
    unchecked: list[str]  # pinned requirements that are installed without their own dependencies
    change: str  # what a user changes, in Markdown
    lines: int | None  # how many lines that are; None if the check counts them
    missing: str  # why the check cannot run without --source; "" if it can

    @property
    def script(self) -> Path:
        """The check."""
        return HERE / f"check_{self.name}.py"


def load_client(script: Path) -> Client:
    """Reads the metadata at the beginning of a check."""
    match = re.search(r"^# /// script\n((?:#.*\n)+?)# ///$", script.read_text(), re.MULTILINE)
    if match is None:
        sys.exit(f"{script} has no '# /// script' block, which names what it needs.")
    block = tomllib.loads("".join(line[2:] or "\n" for line in match[1].splitlines(keepends=True)))
    table = block["tool"]["client"]
    return Client(
        script.stem.removeprefix("check_"), table["title"], block["dependencies"], table.get("without-dependencies", []),
        table["change"], table.get("lines"), table.get("missing", ""),
    )  # fmt: skip


def distribution(requirement: str) -> str:
    """The normalised name of what a requirement or a line of constraints is about."""
    return re.split(r"[\[<>=!~; @]", requirement.strip(), maxsplit=1)[0].lower().replace("_", "-").replace(".", "-")


def project_versions(without: set[str]) -> list[str]:
    """The project's own versions of what gpuvec itself needs, but for the distributions `without`."""
    text = (ROOT / "constraints.txt").read_text()
    section = text.partition("# gpuvec itself\n")[2].partition("\n\n")[0]
    return [line for line in section.splitlines() if distribution(line) not in without]


def make_environment(place: Path, below: Path | None, installs: list[list[str]], versions: list[str], log: Any) -> bool:
    """Makes an environment, on top of the packages of the one `below`, by calls of pip; whether all went well.

    An environment that was made for the same calls and versions is taken as it is.
    """
    wanted = hashlib.sha256(json.dumps([str(ROOT), installs, versions]).encode()).hexdigest()
    stamp = place / "installed"
    if stamp.exists() and stamp.read_text() == wanted:
        return True
    subprocess.run([sys.executable, "-m", "venv", "--clear", *(["--without-pip"] if below else []), place], check=True)
    if below:
        # What a client pins is installed into its own folder, which comes first on the path. A plain line of a path would
        # leave out the .pth files below, of which gpuvec's own installation is one.
        line = f"import site; site.addsitedir({str(packages_of(below))!r})\n"
        (packages_of(place) / "below.pth").write_text(line)
    pins = place / "constraints.txt"
    pins.write_text("\n".join(versions) + "\n")
    pip = [(below or place) / "bin/python", "-m", "pip", "--disable-pip-version-check", "--python", place / "bin/python"]
    for arguments in installs:
        command = [*pip, "install", "--quiet", "--no-compile", *arguments, "-c", pins]
        if subprocess.run(command, check=False, stdout=log, stderr=subprocess.STDOUT).returncode:
            return False
    stamp.write_text(wanted)
    return True


def packages_of(place: Path) -> Path:
    """The folder of an environment's packages."""
    return next(place.glob("lib/python*/site-packages"))


def install(client: Client, cache: Path, log: Any) -> str:
    """Makes the client's environment and returns its interpreter, or "" if something could not be installed.

    gpuvec and torch are installed once, below all clients: torch takes a minute and 700 MB. Neither is ever changed there.
    """
    below = cache / "gpuvec"
    if not make_environment(below, None, [[TORCH], ["-e", str(ROOT)]], [*project_versions(set()), TORCH], log):
        return ""
    own = {distribution(requirement) for requirement in client.dependencies}
    versions = [*project_versions(own), TORCH, *(r for r in client.dependencies if "[" not in r)]
    installs = [client.dependencies]
    if client.unchecked:
        installs.append(["--no-deps", "--ignore-requires-python", *client.unchecked])
    place = cache / client.name
    return str(place / "bin/python") if make_environment(place, below, installs, versions, log) else ""


def versions_of(interpreter: str, client: Client) -> dict[str, str]:
    """{distribution: version} of the client's own requirements, and of what gpuvec works with."""
    program = "import importlib.metadata as m, json; print(json.dumps([(d.name, d.version) for d in m.distributions()]))"
    listed = json.loads(subprocess.run([interpreter, "-c", program], check=True, capture_output=True, text=True).stdout)
    # The first of a name on the path is the one that is imported.
    found = {distribution(name): version for name, version in reversed(listed)}
    names = [distribution(r) for r in [*client.unchecked, *client.dependencies]]
    return {name: found[name] for name in dict.fromkeys([*names, "gymnasium", "numpy", "numba", "torch"]) if name in found}


def last_line(log: Path, prefix: str = "") -> str:
    """The last line of a log that has the prefix, without it."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    return next((line.removeprefix(prefix).strip() for line in reversed(lines) if line and line.startswith(prefix)), "")


def run_check(client: Client, cache: Path, source: Path | None) -> dict[str, Any]:
    """Installs and runs one check; what the table needs of it."""
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
    result["versions"] = versions_of(interpreter, client)
    environment = {**os.environ, "PYTHONPATH": "", "GPUVEC_CLIENT_SOURCE": str(source or "")}
    with log.open("w") as file, tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [interpreter, str(client.script)], stdout=file, stderr=subprocess.STDOUT, cwd=folder, env=environment
        )
        try:
            status = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
    if status:
        return {**result, "outcome": "fails", "evidence": last_line(log)}
    counted = last_line(log, "lines:")
    result["lines"] = int(counted) if counted else client.lines
    return {**result, "outcome": "works", "evidence": last_line(log, "evidence:")}


def verdict(result: dict[str, Any]) -> str:
    """Whether it works, and after how many changed lines."""
    if result["outcome"] != "works":
        return {"fails": "does not", "not installed": "could not be installed", "not run": "not run"}[result["outcome"]]
    lines = result["lines"]
    return f"with {lines} line{'s' * (lines != 1)}" if lines else "as it is"


def table(results: dict[str, dict[str, Any]]) -> str:
    """The results as a Markdown table."""
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
    """Puts the table between the page's markers."""
    head, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, tail = rest.partition(END)
    PAGE.write_text(f"{head}{BEGIN}\n{table(results)}\n{END}{tail}")


def main() -> None:
    """Runs the checks that the command line names."""
    clients = {client.name: client for client in map(load_client, sorted(HERE.glob("check_*.py")))}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="checks to run; all without a name")
    parser.add_argument("--cache", type=Path, help="folder for the environments (about 1.5 GB each); a temporary one without")
    parser.add_argument("--source", type=Path, help="folder with scripts that are on no package index: leanrl/*.py")
    parser.add_argument("--list", action="store_true", help="list the checks")
    parser.add_argument("--table", action="store_true", help="write the table from the results at hand")
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
