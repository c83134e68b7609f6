"""Signatures: which code a file may import without --trust, and the key of the user with which files are signed.

Attacks on the paths of modules are in tests/cli/test_env_lookup.py.
"""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

from gpuvec.errors import CheckpointError
from gpuvec.learners.runs.archives import archive_signature, write_npz, write_signed
from gpuvec.learners.runs.trusted_code import (
    Signature,
    code_modules,
    digest_of,
    import_code,
    others_may_write,
    sign,
    signing_problem,
)
from gpuvec.signing_key import KEY_BYTES, KeyUnusable, key_path, read_key, read_or_create_key

NAMES = ("signed_pole", "other_pole")
POLICIES = {"all": {"env": "signed_pole:own/Pole-v0"}}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration folder of a new user."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config"


@pytest.fixture
def modules(tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with two modules of the user, which are not imported."""
    folder = tmp_path / "own"
    folder.mkdir()
    for name in NAMES:
        (folder / f"{name}.py").write_text("")
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name in NAMES:
        sys.modules.pop(name, None)


def archive(seed: float = 0.0, policies: Any = POLICIES) -> bytes:
    """A signed file of arrays."""
    file = io.BytesIO()
    write_signed(file, partial(write_npz, arrays={"x": np.full(1000, seed)}), policies)
    return file.getvalue()


def read(content: bytes, policies: Any = POLICIES) -> None:
    """Imports what a file may import."""
    import_code(policies, "file.npz", False, archive_signature(io.BytesIO(content)))


def comment(content: bytes) -> bytes:
    return zipfile.ZipFile(io.BytesIO(content)).comment


def with_comment(content: bytes, new: bytes) -> bytes:
    """The archive with another comment."""
    return content[: -len(comment(content)) - 2] + len(new).to_bytes(2, "little") + new


def edited(content: bytes, edit: Callable[[dict[str, Any]], Any]) -> bytes:
    """The archive with a signature in which something was changed."""
    record = json.loads(comment(content))
    edit(record)
    return with_comment(content, json.dumps(record).encode())


def flipped(content: bytes, position: int) -> bytes:
    return content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]


def refused(content: bytes, message: str, policies: Any = POLICIES) -> None:
    with pytest.raises(CheckpointError, match=message) as error:
        read(content, policies)
    assert "give --trust, or in Python `import" in str(error.value)
    assert str(error.value).startswith("file.npz names the module")
    assert not set(NAMES) & set(sys.modules)


# ---- what a signature allows


def test_a_signed_file_imports_its_module(modules: Path) -> None:
    content = archive()
    np.testing.assert_array_equal(np.load(io.BytesIO(content))["x"], np.zeros(1000))
    read(content)
    assert "signed_pole" in sys.modules


def test_a_module_that_changed_is_imported(modules: Path) -> None:
    content = archive()
    (modules / "signed_pole.py").write_text("changed = True")
    read(content)
    assert sys.modules["signed_pole"].changed


def test_only_policies_that_name_code_are_signed(modules: Path, config: Path) -> None:
    for policies in ({"all": {"env": "gpuvec/CartPole-v1"}}, {}, None, {"all": 1}, {"all": {"env": 3}}):
        assert code_modules(policies) == ()
        assert sign(policies, b"") == ""
        assert signing_problem(policies) == ""
    assert not config.exists(), "a user of bundled environments has no key"


@pytest.mark.parametrize("name", ["no_such_module:a/B-v0", "json.no_such:a/B-v0", "signed_pole.inner:a/B-v0", "..:x"])
def test_trust_does_not_find_a_module_that_is_not_here(modules: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match=r"^runs/a names the module .* change to the folder that has it"):
        import_code({"all": {"env": name}}, "runs/a", True)


def test_a_module_whose_own_import_fails_says_what_is_missing(modules: Path) -> None:
    (modules / "signed_pole.py").write_text("import no_such_library")
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        import_code(POLICIES, "runs/a", True)


def test_trust_imports_what_is_not_signed(modules: Path) -> None:
    import_code(POLICIES, "file", True)
    assert "signed_pole" in sys.modules


def test_imported_modules_need_no_signature(modules: Path) -> None:
    __import__("signed_pole")
    import_code(POLICIES, "file", False)


# ---- attacks on signatures

OTHER = {"all": {"env": "other_pole:own/Pole-v0"}}
ATTACKS: Mapping[str, tuple[Callable[[], bytes], str]] = {
    "none": (lambda: with_comment(archive(), b""), "is not signed"),
    "another comment": (lambda: with_comment(archive(), b"hello"), "signature of the file is damaged"),
    "deeply nested": (lambda: with_comment(archive(), b"[" * 60_000), "signature of the file is damaged"),
    "of another file": (lambda: with_comment(archive(1.0), comment(archive(0.0))), "has changed since it was signed"),
    "of another file of this user": (lambda: with_comment(archive(), comment(archive(0.0, OTHER))), "signed for other modules"),
    "truncated": (lambda: with_comment(archive(), comment(archive())[:-9]), "signature of the file is damaged"),
    "without the end": (lambda: edited(archive(), lambda r: r.update(mac=r["mac"][:-1])), "is damaged"),
    "without a mac": (lambda: edited(archive(), lambda r: r.pop("mac")), "is damaged"),
    "a mac of another type": (lambda: edited(archive(), lambda r: r.update(mac=[1])), "is damaged"),
    "not ASCII": (lambda: edited(archive(), lambda r: r.update(mac="\u00e9" * 64)), "is damaged"),
    "another place": (lambda: edited(archive(), lambda r: r["modules"].update(signed_pole="0" * 64)), "is damaged"),
    "another content": (lambda: edited(archive(), lambda r: r.update(content="0" * 64)), "is damaged"),
    "an addition": (lambda: edited(archive(), lambda r: r.update(more=1)), "is damaged"),
    "without a key": (lambda: edited(archive(), lambda r: r.pop("key")), "with another key"),
    "a changed number": (lambda: flipped(archive(), 500), "has changed since it was signed"),
    "a changed directory": (lambda: flipped(archive(), len(archive()) - len(comment(archive())) - 10), "changed|not a zip"),
    "bytes before": (lambda: b"x" + archive(), "has changed since it was signed"),
    "bytes behind": (lambda: archive() + b"x", "has changed since it was signed"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_on_a_signature_import_nothing(name: str, modules: Path) -> None:
    attack, message = ATTACKS[name]
    try:
        refused(attack(), message)
    except zipfile.BadZipFile:
        assert "zip" in message


def test_every_byte_of_a_file_is_signed(modules: Path) -> None:
    """Also those that no reader of archives looks at."""
    content = archive()
    size = len(content) - len(comment(content)) - 2
    digests = {archive_signature(io.BytesIO(content)).digest()}
    for k in range(0, size, 7):
        file = io.BytesIO(flipped(content, k))
        signature = Signature(None, bytes)
        try:
            signature = archive_signature(file)
        except zipfile.BadZipFile:
            continue
        digests.add(signature.digest())
    assert len(digests) > 1000


def test_a_signature_is_for_the_modules_that_it_names(modules: Path) -> None:
    """A reader that took other names from the file than the writer would import nothing else."""
    refused(archive(), "signed for other modules", OTHER)


def test_a_file_of_another_key_imports_nothing(modules: Path, config: Path) -> None:
    content = archive()
    (config / "gpuvec" / "key").unlink()
    refused(content, "you have no key .*gpuvec/key that could have signed it")
    archive()  # creates another key
    refused(content, "is signed with another key than yours")


def test_a_module_that_is_gone_is_reported(modules: Path) -> None:
    content = archive()
    (modules / "signed_pole.py").unlink()
    refused(content, "There is no such module here")


# ---- places that other users may write to


@pytest.mark.parametrize(
    ("place", "mode"),
    [("own/signed_pole.py", 0o666), ("own/signed_pole.py", 0o646), ("own", 0o777), ("own", 0o1777), (".", 0o777)],
)
def test_a_place_that_others_may_write_to_needs_trust(place: str, mode: int, modules: Path) -> None:
    content = archive()
    (modules.parent / place).chmod(mode)
    try:
        refused(content, f"Other users may write to {(modules.parent / place).resolve()} ")
        assert f"{mode:03o}" in signing_problem_of_import(modules)
    finally:
        (modules.parent / place).chmod(0o700)


def signing_problem_of_import(modules: Path) -> str:
    """What a training with the module prints at its beginning."""
    problem = signing_problem(POLICIES)
    assert "will need --trust" in problem
    return problem


def test_a_sticky_folder_around_the_modules_is_safe(modules: Path) -> None:
    """As /tmp, where others can only create files of their own."""
    content = archive()
    modules.parent.chmod(0o1777)
    assert signing_problem(POLICIES) == ""
    read(content)


def test_a_group_of_the_user_alone_may_write(modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules.chmod(0o775)
    monkeypatch.setattr("gpuvec.learners.runs.trusted_code._is_private_group", lambda gid: False)
    assert "Other users may write to" in others_may_write(modules / "signed_pole.py", "signed_pole")
    monkeypatch.setattr("gpuvec.learners.runs.trusted_code._is_private_group", lambda gid: True)
    assert others_may_write(modules / "signed_pole.py", "signed_pole") == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_files_of_another_user_need_trust(modules: Path) -> None:
    content = archive()
    os.chown(modules / "signed_pole.py", 12345, -1)
    refused(content, r"signed_pole.py belongs to another user \(uid 12345\)")


# ---- the key


def test_a_key_is_private_and_stays_the_same(config: Path) -> None:
    assert read_key() is None
    key = read_or_create_key()
    assert len(key) == KEY_BYTES
    assert read_or_create_key() == read_key() == key
    assert stat.S_IMODE(key_path().stat().st_mode) == 0o600
    assert stat.S_IMODE(key_path().parent.stat().st_mode) == 0o700
    assert [entry.name for entry in key_path().parent.iterdir()] == ["key"]


def test_processes_that_create_the_key_at_once_get_the_same(config: Path) -> None:
    code = "from gpuvec.signing_key import read_or_create_key; print(read_or_create_key().hex())"
    processes = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(4)]
    assert len({process.communicate()[0] for process in processes}) == 1
    assert all(process.returncode == 0 for process in processes)


def link(path: Path) -> None:
    path.rename(path.with_name("real"))
    path.symlink_to("real")


def give_away(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(path, 12345, -1)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


UNUSABLE: Mapping[str, tuple[Callable[[Path], Any], str]] = {
    "empty": (lambda path: path.write_bytes(b""), "is damaged: it must have 32 bytes. Remove it"),
    "too short": (lambda path: path.write_bytes(b"x" * 31), "is damaged"),
    "too long": (lambda path: path.write_bytes(b"x" * 33), "is damaged"),
    "readable by others": (lambda path: path.chmod(0o644), "its mode is 644, and must be 600"),
    "writable by the group": (lambda path: path.chmod(0o620), "its mode is 620"),
    "of another user": (give_away, "belongs to another user .uid 12345"),
    "a link": (link, "is a link, and no link is followed"),
    "a folder": (folder, "is not a regular file"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_key_that_cannot_be_used_is_reported(name: str, modules: Path) -> None:
    content = archive()
    damage, message = UNUSABLE[name]
    damage(key_path())
    with pytest.raises(KeyUnusable, match=message):
        read_key()
    with pytest.raises(KeyUnusable, match=message):
        read_or_create_key()
    refused(content, message)
    assert message[:20] in signing_problem_of_import(modules) or "uid 12345" in signing_problem_of_import(modules)
    unsigned = archive()  # a training goes on
    assert comment(unsigned) == b""
    np.testing.assert_array_equal(np.load(io.BytesIO(unsigned))["x"], np.zeros(1000))


def no_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def home() -> Path:
        raise RuntimeError

    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setattr(Path, "home", home)


def file_in_place_of_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config").write_text("")


def read_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)


def no_links(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)


def home_of_a_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    (tmp_path / "config").mkdir()
    os.chown(tmp_path / "config", 12345, -1)


@pytest.mark.parametrize(
    ("obstacle", "message"),
    [
        (no_home, "has no home folder for a key: set HOME or XDG_CONFIG_HOME"),
        (file_in_place_of_folder, "cannot be (created|read)"),
        (read_only, "No key can be created as .*key: Read-only file system"),
        (no_links, "No key can be created as .*key: Operation not permitted"),
        (home_of_a_user, "config belongs to a"),
    ],
)
def test_without_a_folder_for_the_key_files_are_not_signed(
    obstacle: Callable[..., None], message: str, modules: Path, tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        obstacle(patch, tmp_path)
        with pytest.raises(KeyUnusable, match=message):
            read_or_create_key()
        signing_problem_of_import(modules)
        content = archive()
    assert comment(content) == b""
    assert not list(tmp_path.rglob("*.part"))
    refused(content, "is not signed")


@pytest.mark.parametrize(
    ("platform", "variable", "value", "expected"),
    [
        ("linux", "XDG_CONFIG_HOME", "/x", "/x/gpuvec/key"),
        ("linux", "XDG_CONFIG_HOME", "relative", "/home/user/.config/gpuvec/key"),
        ("linux", "XDG_CONFIG_HOME", "", "/home/user/.config/gpuvec/key"),
        ("darwin", "XDG_CONFIG_HOME", "", "/home/user/Library/Application Support/gpuvec/key"),
        ("darwin", "XDG_CONFIG_HOME", "/x", "/x/gpuvec/key"),
        ("win32", "APPDATA", "/roaming", "/roaming/gpuvec/key"),
        ("win32", "APPDATA", "", "/home/user/AppData/Roaming/gpuvec/key"),
    ],
)
def test_the_key_is_in_the_configuration_folder_of_the_platform(
    platform: str, variable: str, value: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuvec.signing_key.sys.platform", platform)
    monkeypatch.setenv("HOME", "/home/user")
    monkeypatch.setenv(variable, value)
    assert key_path() == Path(expected)


# ---- the formats of the files


def test_the_digest_of_a_record_survives_json() -> None:
    record = {"b": (1, 2.5), "a": {"x": None, "y": [1e-300]}}
    assert digest_of(json.loads(json.dumps(record, indent=2))) == digest_of(record)


def test_writes_of_all_sizes_make_the_same_archive(modules: Path) -> None:
    content = with_comment(archive(policies=None), b"")

    def in_parts(file: IO[bytes], size: int) -> None:
        for k in range(0, len(content), size):
            assert file.write(memoryview(content)[k : k + size]) == len(content[k : k + size])
        file.flush()

    for size in (1, 2, 3, 7, len(content)):
        for policies in (None, POLICIES):
            file = io.BytesIO()
            write_signed(file, partial(in_parts, size=size), policies)
            assert with_comment(file.getvalue(), b"") == content
    read(file.getvalue())
