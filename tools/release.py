#!/usr/bin/env python3
"""Makes and checks the files of a release in `dist`, and prints what a person does to publish them:

    python3 tools/release.py

It builds the wheel and the source distribution, installs each into an empty environment outside of the checkout, runs the
smoke test there, and writes an SBOM (CycloneDX, JSON) of the environment of the wheel and SHA-256 checksums. It needs Python
>= 3.11 and a package index, publishes nothing, and ends with status 1 at the first thing that is wrong.
"""

import argparse
import hashlib
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = runpy.run_path(str(ROOT / "run.py"))
SMOKE_TEST = ROOT / "tools" / "smoke_test.py"
PATTERNS = {  # file: how it names the version of this release
    "src/gpuvec/__init__.py": r'^__version__ = "(.+)"$',
    "CITATION.cff": r"^version: (.+)$",
    "CHANGELOG.md": r"^## \[(\d.*?)\]",  # the first one
}


def project() -> dict[str, Any]:
    """The table `project` of pyproject.toml."""
    return dict(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"])


def find_problems(allow_changes: bool) -> list[str]:
    """What must be mended before a release.

    Args:
        allow_changes: whether the working tree may have changes that are not committed.
    """
    version, problems = project()["version"], []
    for file, pattern in PATTERNS.items():
        found = re.search(pattern, (ROOT / file).read_text(), re.MULTILINE)
        if found is None or found[1] != version:
            problems.append(f"{file} names the version {found[1] if found else 'nowhere'}, pyproject.toml {version}")
    if allow_changes:
        return problems
    git = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=False)
    if git.returncode:
        problems.append(f"whether the working tree has changes is not known, give --allow-changes: {git.stderr.rstrip()}")
    if git.stdout:
        problems.append(f"the working tree has changes, commit them or give --allow-changes:\n{git.stdout.rstrip()}")
    return problems


def build_files(python: str, folder: Path, log: Path) -> list[Path]:
    """Builds the wheel and the source distribution, and returns their paths in this order.

    Args:
        python: the path of an interpreter with `build`.
        folder: an empty folder.
        log: the file for what the build prints.
    """
    SCRIPT["run_quietly"]([python, "-m", "build", "--outdir", str(folder), str(ROOT)], "build", log)
    return sorted(folder.iterdir(), key=lambda file: file.suffix != ".whl")


def check_file(file: Path, folder: Path) -> str:
    """Installs a file with the extra `train` into an empty environment, runs the smoke test, and returns its Python.

    Args:
        file: a wheel or a source distribution.
        folder: an empty folder outside of the checkout.
    """
    python, log = SCRIPT["make_venv"](folder / "venv"), folder / "pip.log"
    cuda_version, _ = SCRIPT["find_cuda_version"](None)
    target = SCRIPT["pip_target"]("check", cuda_version)
    extras = ",".join(filter(None, ("train", target.cuda_extra)))
    torch = [] if target.cuda_extra or sys.platform != "linux" else [SCRIPT["cpu_torch"](python, target.constraints, log)]
    requirement = f"gpuvec[{extras}] @ {file.as_uri()}"
    SCRIPT["run_quietly"]([python, "-m", "pip", "install", requirement, *torch, "-c", target.constraints], "install", log)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    shutil.copy(SMOKE_TEST, folder)
    where = [python, "-c", "import gpuvec, gpuvec_envs; print(gpuvec.__file__, gpuvec_envs.__file__)"]
    places = subprocess.run(where, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout.split()
    if not all(place.startswith(str(folder)) for place in places):
        sys.exit(f"the smoke test would import gpuvec from {places}, not from {folder}")
    subprocess.run([python, SMOKE_TEST.name], cwd=folder, env=environment, check=True)
    return str(python)


def write_checksums(files: list[Path]) -> Path:
    """Writes SHA256SUMS beside the files, which `sha256sum --check` reads, and returns its path."""
    sums = files[0].parent / "SHA256SUMS"
    sums.write_text("".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files))
    return sums


def publishing_steps(version: str, sdist: Path) -> str:
    """What a person does with the files, in order."""
    digest = hashlib.sha256(sdist.read_bytes()).hexdigest()
    return f"""
To publish {version}:
  1. Tag the commit and push the tag:
         git tag --annotate v{version} --message "gpuvec {version}" && git push origin v{version}
  2. PyPI, with trusted publishing: on https://pypi.org/manage/account/publishing/ name the repository, a workflow and an
     environment `pypi`. The workflow has `permissions: id-token: write`, runs this script, copies wheel and sdist alone into a
     folder, and ends with pypa/gh-action-pypi-publish, which needs no token. Then, and not before, this is true for everybody:
         pip install "gpuvec[train]"      uvx --from "gpuvec[demo]" gpuvec demo
  3. Release page of the repository: attach all files of dist, SHA256SUMS and the SBOM included.
  4. conda-forge: `grayskull pypi gpuvec=={version}` writes a recipe; compare its requirements with pyproject.toml (noarch:
     python, host: hatchling), set `sha256: {digest}` of the sdist,
     and open a pull request to conda-forge/staged-recipes.
  5. Gymnasium's list of external environments: open a pull request to Farama-Foundation/Gymnasium that adds gpuvec to
     docs/environments/third_party_environments.md, with the versions of Gymnasium that are supported.
  6. CITATION.cff: after an archive such as Zenodo gave the release a DOI, add it.
"""


def main(arguments: list[str]) -> int:
    """Makes the release; returns 0 if all checks passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--allow-changes", action="store_true", help="build what is not committed, to try this script")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="an empty folder for the files; dist by default")
    options = parser.parse_args(arguments)
    dist, version = options.output.resolve(), project()["version"]
    problems = find_problems(options.allow_changes)
    if dist.exists() and any(dist.iterdir()):
        problems.append(f"{dist} is not empty: remove the files of other releases, or name another folder by --output")
    if problems:
        sys.exit("gpuvec cannot be released:\n" + "\n".join(problems))
    dist.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpuvec-release-") as temporary:
        folder = Path(temporary).resolve()
        print(f"1 of 4  build gpuvec {version}", flush=True)
        builder, log = SCRIPT["make_venv"](folder / "builder"), folder / "log"
        tools = project()["optional-dependencies"]["release"]
        SCRIPT["run_quietly"]([builder, "-m", "pip", "install", *tools, "-c", "constraints.txt"], "install", log)
        wheel, sdist = build_files(builder, dist, log)
        for number, file in enumerate((wheel, sdist), 2):
            print(f"{number} of 4  install {file.name} ({file.stat().st_size / 1e6:.1f} MB) and run the smoke test", flush=True)
            (folder / file.suffix).mkdir()
            python = check_file(file, folder / file.suffix)
            if file == wheel:
                sbom = dist / f"gpuvec-{version}.cdx.json"
                options_of_sbom = ["--output-reproducible", "--of", "JSON", "--pyproject", "pyproject.toml", "-o", str(sbom)]
                command = [builder, "-m", "cyclonedx_py", "environment", *options_of_sbom, python]
                SCRIPT["run_quietly"](command, "SBOM", log)
    components = json.loads(sbom.read_text())["components"]
    sums = write_checksums([wheel, sdist, sbom])
    print(f"4 of 4  {sbom.name} has {len(components)} components; {sums.name}:\n{sums.read_text()}", end="")
    print(publishing_steps(version, sdist))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except subprocess.CalledProcessError as error:
        sys.exit(
            f"{error.output or ''}\n{' '.join(map(str, error.cmd))} ended with status {error.returncode}; nothing is published."
        )
