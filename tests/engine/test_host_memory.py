"""Which memory counts as free on a CPU, from files as Linux has them."""

from __future__ import annotations

import pytest

from gpuvec.engine.backends.device import Device
from gpuvec.engine.backends.host_memory import available_bytes
from gpuvec.errors import OutOfMemoryError

MEMINFO = "MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 800 kB\nBuffers: 1 kB\n"
KIB = 1024


@pytest.fixture
def system(tmp_path):
    """A function that writes files, {path: text}, and returns the folder as the root of a system with 800 KiB."""

    def write(files):
        for name, text in {"proc/meminfo": MEMINFO, **files}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return tmp_path

    return write


V2, V1 = "sys/fs/cgroup", "sys/fs/cgroup/memory"


@pytest.mark.parametrize(
    ("files", "available"),
    [
        ({}, 800 * KIB),
        ({"proc/self/cgroup": "0::/\n"}, 800 * KIB),
        ({"proc/self/cgroup": "0::/a/b\n", f"{V2}/a/b/memory.max": "max\n", f"{V2}/a/b/memory.current": "5\n"}, 800 * KIB),
        ({"proc/self/cgroup": "0::/a/b\n", f"{V2}/a/b/memory.max": "5000\n", f"{V2}/a/b/memory.current": "2000\n"}, 3000),
        (  # a file cache is dropped before a process is ended
            {
                "proc/self/cgroup": "0::/a\n", f"{V2}/a/memory.max": "5000\n", f"{V2}/a/memory.current": "4000\n",
                f"{V2}/a/memory.stat": "anon 1\ninactive_file 500\nactive_file 9\n",
            },
            1500,
        ),
        (  # the tightest group of those around the process
            {
                "proc/self/cgroup": "0::/a/b\n", f"{V2}/a/memory.max": "900\n", f"{V2}/a/memory.current": "300\n",
                f"{V2}/a/b/memory.max": "5000\n", f"{V2}/a/b/memory.current": "100\n",
            },
            600,
        ),
        (  # in a container the group's own files are at the mount
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
        (  # no limit, in version 1
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
def test_the_least_of_system_and_groups(system, files, available):
    assert available_bytes(system(files)) == available


def test_of_this_machine():
    found = available_bytes()
    assert found is None or found > 0
    assert (Device("cpu").free_bytes() is None) == (found is None)


def test_more_than_a_group_allows_is_refused(system, monkeypatch):
    root = system({"proc/self/cgroup": "0::/a\n", f"{V2}/a/memory.max": "5000\n", f"{V2}/a/memory.current": "2000\n"})
    monkeypatch.setattr("gpuvec.engine.backends.device.available_bytes", lambda: available_bytes(root))
    Device("cpu").require_bytes(3000, "it")
    with pytest.raises(OutOfMemoryError, match="it needs 3,001 bytes on cpu, where 3,000 are free"):
        Device("cpu").require_bytes(3001, "it")
