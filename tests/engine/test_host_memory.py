"""The free memory of a CPU is computed from files of Linux."""

from __future__ import annotations

import pytest

from gpuvec.engine.backends.device import Device
from gpuvec.engine.backends.host_memory import available_bytes
from gpuvec.errors import OutOfMemoryError

MEMINFO = "MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 800 kB\nBuffers: 1 kB\n"
KIB = 1024


@pytest.fixture
def write_system(tmp_path):
    """A function that writes files, {path: text}, and returns the folder as the root of a system with 800 KiB."""

    def write(files):
        for name, text in {"proc/meminfo": MEMINFO, **files}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return tmp_path

    return write


V2, V1 = "sys/fs/cgroup", "sys/fs/cgroup/memory"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 800 * KIB),
        ({"proc/self/cgroup": "0::/\n"}, 800 * KIB),
        ({"proc/self/cgroup": "0::/a/b\n", f"{V2}/a/b/memory.max": "max\n", f"{V2}/a/b/memory.current": "5\n"}, 800 * KIB),
        ({"proc/self/cgroup": "0::/a/b\n", f"{V2}/a/b/memory.max": "5000\n", f"{V2}/a/b/memory.current": "2000\n"}, 3000),
        (  # The kernel drops a file cache before it ends a process.
            {
                "proc/self/cgroup": "0::/a\n", f"{V2}/a/memory.max": "5000\n", f"{V2}/a/memory.current": "4000\n",
                f"{V2}/a/memory.stat": "anon 1\ninactive_file 500\nactive_file 9\n",
            },
            1500,
        ),
        (  # The smallest limit of all groups around the process counts.
            {
                "proc/self/cgroup": "0::/a/b\n", f"{V2}/a/memory.max": "900\n", f"{V2}/a/memory.current": "300\n",
                f"{V2}/a/b/memory.max": "5000\n", f"{V2}/a/b/memory.current": "100\n",
            },
            600,
        ),
        (  # In a container the files of the group are in the mount point.
            {"proc/self/cgroup": "0::/\n", f"{V2}/memory.max": "700\n", f"{V2}/memory.current": "100\n"},
            600,
        ),
        (
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/x\n0::/y\n", f"{V1}/x/memory.limit_in_bytes": "4096\n",
                f"{V1}/x/memory.usage_in_bytes": "96\n", f"{V1}/x/memory.stat": "total_inactive_file 50\n",
            },
            4050,
        ),
        (  # Version 1 writes the largest number instead of no limit.
            {
                "proc/self/cgroup": "4:memory:/\n", f"{V1}/memory.limit_in_bytes": "9223372036854771712\n",
                f"{V1}/memory.usage_in_bytes": "96\n",
            },
            800 * KIB,
        ),
        ({"proc/self/cgroup": "0::/a\n", f"{V2}/a/memory.max": "100\n", f"{V2}/a/memory.current": "300\n"}, 0),
        ({"proc/self/cgroup": "0::/../..\n", f"{V2}/memory.max": "700\n", f"{V2}/memory.current": "100\n"}, 600),
    ],
)  # fmt: skip
def test_available_bytes_are_the_minimum_of_system_and_cgroups(write_system, files, expected):
    assert available_bytes(write_system(files)) == expected


def test_available_bytes_of_this_machine():
    available = available_bytes()
    assert available is None or available > 0
    assert (Device("cpu").free_bytes() is None) == (available is None)


def test_allocation_beyond_the_cgroup_limit_is_refused(write_system, monkeypatch):
    root = write_system({"proc/self/cgroup": "0::/a\n", f"{V2}/a/memory.max": "5000\n", f"{V2}/a/memory.current": "2000\n"})
    monkeypatch.setattr("gpuvec.engine.backends.device.available_bytes", lambda: available_bytes(root))
    Device("cpu").require_bytes(3000, "it")
    with pytest.raises(OutOfMemoryError, match="it needs 3,001 bytes on cpu, where 3,000 are free"):
        Device("cpu").require_bytes(3001, "it")
