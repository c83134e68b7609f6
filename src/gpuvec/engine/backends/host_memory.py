"""How much memory of the CPU this process can still allocate, by the operating system and by the limits of control groups."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

GROUP_LIST = Path("proc/self/cgroup")  # the control groups of this process, a line for each hierarchy
GROUP_MOUNT = Path("sys/fs/cgroup")


def available_bytes(root: Path = Path("/")) -> int | None:
    """Bytes that this process can allocate without swapping and without being killed; None if the system does not report them.

    Args:
        root: the folder in which `proc` and `sys` are.
    """
    lines = (line.partition(":") for line in _text(root / "proc/meminfo").splitlines())
    # With caches that can be dropped, in KiB
    limits = [int(value.split()[0]) << 10 for name, _, value in lines if name == "MemAvailable"][:1]
    if not limits:
        with suppress(ValueError, OSError, AttributeError):  # Other systems than Linux report the free pages, or none.
            limits.append(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    # The control groups of this process, of version 2 or 1
    for line in _text(root / GROUP_LIST).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            limits += _bytes_below_limits(root / GROUP_MOUNT, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
            limits += _bytes_below_limits(root / GROUP_MOUNT / "memory", path, *names)
    return max(0, min(limits)) if limits else None


def resident_bytes(root: Path = Path("/")) -> int | None:
    """The memory that this process has now, in bytes; None if the system does not report it.

    Args:
        root: the folder in which `proc` is.
    """
    pages = _text(root / "proc/self/statm").split()
    return int(pages[1]) * os.sysconf("SC_PAGE_SIZE") if len(pages) > 1 else None


def peak_resident_bytes() -> int | None:
    """The largest memory that this process has had since its start, in bytes; None if the system does not report it."""
    try:
        resource = importlib.import_module("resource")
    except ModuleNotFoundError:  # Windows has no such module
        return None
    units: int = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return units if sys.platform == "darwin" else units << 10


def _bytes_below_limits(mount: Path, path: str, limit: str, usage: str, inactive: str) -> Iterator[int]:
    """Limit minus usage of a control group and of its parents.

    Args:
        mount: the folder in which the groups of a hierarchy are.
        path: of the group. In a container it may begin outside of `mount`.
        limit: name of the file with the limit.
        usage: name of the file with the usage.
        inactive: name of the entry of memory.stat that counts caches, which are part of the usage and can be dropped.
    """
    group = mount / path.strip("/")
    for folder in (group, *group.parents) if group.is_relative_to(mount) else ():
        if not folder.is_relative_to(mount):
            break
        max_bytes, used_bytes = _text(folder / limit).strip(), _text(folder / usage).strip()
        if max_bytes.isdigit() and used_bytes.isdigit():
            statistics = dict(line.split(" ", 1) for line in _text(folder / "memory.stat").splitlines() if " " in line)
            yield int(max_bytes) - int(used_bytes) + int(statistics.get(inactive, "0"))


def _text(file: Path) -> str:
    """The text of a file, or "" if it cannot be read."""
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
