"""How much memory of the CPU a process can still allocate: what the kernel says, within the limits of its control groups."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

GROUPS = Path("proc/self/cgroup")  # the groups that the process is in, a line for each hierarchy
MOUNT = Path("sys/fs/cgroup")


def available_bytes(root: Path = Path("/")) -> int | None:
    """Bytes that this process can allocate without swapping and without being ended; None where the system does not say.

    Args:
        root: the folder in which `proc` and `sys` are.
    """
    known = [free for free in (_of_system(root), *_of_groups(root)) if free is not None]
    return max(0, min(known)) if known else None


def _of_system(root: Path) -> int | None:
    """MemAvailable of Linux, which counts the caches that it can drop; elsewhere the free pages."""
    for line in _text(root / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) << 10  # in KiB
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


def _of_groups(root: Path) -> Iterator[int]:
    """What each control group above this process leaves, by version 2 or 1; those without a limit are left out."""
    for line in _text(root / GROUPS).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield from _left(root / MOUNT, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
            yield from _left(root / MOUNT / "memory", path, *names)


def _left(mount: Path, path: str, limit: str, usage: str, dropped: str) -> Iterator[int]:
    """Limit less usage of a group and of those that hold it. In a container a group's path may begin outside of `mount`."""
    group = mount / path.strip("/")
    for folder in (group, *group.parents) if group.is_relative_to(mount) else ():
        if not folder.is_relative_to(mount):
            break
        most, used = _text(folder / limit).strip(), _text(folder / usage).strip()
        if most.isdigit() and used.isdigit():
            caches = dict(line.split(" ", 1) for line in _text(folder / "memory.stat").splitlines() if " " in line)
            yield int(most) - int(used) + int(caches.get(dropped, "0"))


def _text(file: Path) -> str:
    """What a file holds; nothing if it cannot be read."""
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
