#!/usr/bin/env python3
"""Tests gpuvec's random words with dieharder, or writes them as raw bytes for another battery of tests.

    tools/random_battery.py dieharder rows steps episodes      prints the results of each order as JSON, needs dieharder
    tools/random_battery.py write rows | RNG_test stdin32      writes words without end for another program, here PractRand

An order says which part of a key changes fastest from word to word; the four draws of a key are consecutive words:

    rows       rows, then steps, then episodes: what a batch of 4096 environments draws, step by step
    steps      steps, then rows, then episodes: what each of 64 environments draws in an episode of 1000 steps
    episodes   episodes, then rows, then steps: the first numbers of 4096 episodes, which resets draw
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numba
import numpy as np

from gpuvec import random
from gpuvec.engine.compiler.functions import device_function

SEED = 20_261_123
CHUNK = 1 << 20  # keys, 16 MB of words
# The numbers of values of the fastest and of the second part, and the columns of all three parts.
ORDERS = {"rows": ((4096, 1000), (0, 2, 1)), "steps": ((1000, 64), (2, 0, 1)), "episodes": ((4096, 4096), (1, 0, 2))}
# The tests of dieharder without those that it calls suspect or bad itself, which are 5, 6, 7 and 14.
TESTS = (0, 1, 2, 3, 4, 8, 9, 10, 11, 12, 13, 15, 16, 17, 100, 101, 102)

philox = device_function(random.philox)


@numba.njit  # type: ignore[untyped-decorator]  # Numba's own
def _fill(words: Any, keys: Any, seed: int) -> None:
    for i in range(len(keys)):
        row, episode, step = keys[i, 0], keys[i, 1], keys[i, 2]
        # The counter and the key of `gpuvec.random.word` for the draws 0 to 3 and a seed below 2**32.
        a, b, c, d = philox(episode, step, np.uint32(0), np.uint32(0), np.uint32(seed), row)
        words[i, 0], words[i, 1], words[i, 2], words[i, 3] = a, b, c, d


def generate_words(order: str, seed: int = SEED) -> Iterator[np.ndarray]:
    """Yields (CHUNK, 4) uint32 words of successive keys without end; `order` is one of `ORDERS`, `seed` below 2**32."""
    (first, second), columns = ORDERS[order]
    for begin in range(0, sys.maxsize, CHUNK):
        count = np.arange(begin, begin + CHUNK)
        parts = (count % first, count // first % second, count // (first * second))
        keys = np.empty((CHUNK, 3), np.uint32)
        for column, part in zip(columns, parts, strict=True):
            keys[:, column] = part
        words = np.empty((CHUNK, 4), np.uint32)
        _fill(words, keys, np.uint32(seed))
        yield words


def write(order: str, pipe: Any) -> int:
    """Writes words until the reader closes the pipe.

    Args:
        order: one of `ORDERS`.
        pipe: a binary file.

    Returns:
        The number of bytes.
    """
    num_bytes = 0
    try:
        for words in generate_words(order):
            pipe.write(memoryview(words).cast("B"))
            num_bytes += words.nbytes
    except BrokenPipeError:
        return num_bytes
    raise AssertionError("words have no end")


def run_dieharder(order: str, tests: tuple[int, ...]) -> dict[str, Any]:
    """Runs dieharder's tests.

    Args:
        order: one of `ORDERS`.
        tests: the numbers of the tests.

    Returns:
        The seed, the number of bytes that the tests read, and the results as [name, parameter, p, assessment].
    """
    program = shutil.which("dieharder")
    if program is None:
        sys.exit("dieharder is not installed (Debian, Ubuntu: apt install dieharder).")
    results, bytes_read = [], 0
    for test in tests:
        command = [program, "-g", "200", "-d", str(test)]
        for column in ("test_name", "ntuple", "pvalues", "assessment"):
            command += ["-D", column]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=False)
        assert process.stdin is not None
        assert process.stdout is not None
        bytes_read += write(order, process.stdin)
        lines = [[field.strip() for field in line.split("|")] for line in process.stdout.read().decode().splitlines()]
        results += [[name, int(ntuple), float(p), assessment] for name, ntuple, p, assessment in lines]
        if process.wait() or not lines:
            sys.exit(f"{' '.join(command)} failed.")
        print(order, *results[-len(lines) :], file=sys.stderr, flush=True)
    return {"seed": SEED, "bytes": bytes_read, "results": results}


def main() -> int:
    """Returns the exit status: 1 if a test failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("dieharder", "write"))
    parser.add_argument("orders", nargs="+", choices=ORDERS, metavar="order", help=", ".join(ORDERS))
    parser.add_argument("--tests", type=int, nargs="+", default=TESTS, help="numbers of dieharder's tests (see `dieharder -l`)")
    arguments = parser.parse_args()
    if arguments.command == "write":
        write(arguments.orders[0], sys.stdout.buffer)
        return 0
    results = {order: run_dieharder(order, tuple(arguments.tests)) for order in arguments.orders}
    print(json.dumps(results, indent=1))
    return int(any(assessment == "FAILED" for order in results.values() for *_, assessment in order["results"]))


if __name__ == "__main__":
    sys.exit(main())
