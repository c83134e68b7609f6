#!/usr/bin/env python3
"""Runs dieharder on gpuvec's random words, or writes the words as raw bytes for another battery of tests.

    tools/random_battery.py dieharder rows steps episodes      a JSON object with the results of each order, needs dieharder
    tools/random_battery.py write rows | RNG_test stdin32      words without end for another program, PractRand here

The orders say which part of a key changes first from word to word, with the four draws of a key one after the other:

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
# How many values of the first and of the second part pass before the next part changes, and which columns the parts have.
ORDERS = {"rows": ((4096, 1000), (0, 2, 1)), "steps": ((1000, 64), (2, 0, 1)), "episodes": ((4096, 4096), (1, 0, 2))}
# The tests of dieharder that are known to be sound; it calls 5, 6, 7 and 14 suspect or bad itself.
TESTS = (0, 1, 2, 3, 4, 8, 9, 10, 11, 12, 13, 15, 16, 17, 100, 101, 102)

philox = device_function(random.philox)


@numba.njit  # type: ignore[untyped-decorator]  # Numba's own
def _fill(words: Any, keys: Any, seed: int) -> None:
    for i in range(len(keys)):
        row, episode, step = keys[i, 0], keys[i, 1], keys[i, 2]
        # The counter and the key of `gpuvec.random.word` for the draws 0 to 3 and a seed below 2**32.
        a, b, c, d = philox(episode, step, np.uint32(0), np.uint32(0), np.uint32(seed), row)
        words[i, 0], words[i, 1], words[i, 2], words[i, 3] = a, b, c, d


def chunks(order: str, seed: int = SEED) -> Iterator[np.ndarray]:
    """(CHUNK, 4) uint32 words of successive keys, without end."""
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


def write(order: str, to: Any) -> int:
    """Writes words until nobody reads them any more; returns the number of bytes."""
    written = 0
    try:
        for words in chunks(order):
            to.write(memoryview(words).cast("B"))
            written += words.nbytes
    except BrokenPipeError:
        return written
    raise AssertionError("words have no end")


def dieharder(order: str, tests: tuple[int, ...]) -> dict[str, Any]:
    """The results of dieharder's tests: {name: [parameter, p, assessment]} and how many bytes they read."""
    program = shutil.which("dieharder")
    if program is None:
        sys.exit("dieharder is not installed (Debian, Ubuntu: apt install dieharder).")
    results, read = [], 0
    for test in tests:
        command = [
            program,
            "-g",
            "200",
            "-d",
            str(test),
            "-D",
            "test_name",
            "-D",
            "ntuple",
            "-D",
            "pvalues",
            "-D",
            "assessment",
        ]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=False)
        assert process.stdin is not None
        assert process.stdout is not None
        read += write(order, process.stdin)
        lines = [[field.strip() for field in line.split("|")] for line in process.stdout.read().decode().splitlines()]
        results += [[name, int(ntuple), float(p), assessment] for name, ntuple, p, assessment in lines]
        if process.wait() or not lines:
            sys.exit(f"{' '.join(command)} failed.")
        print(order, *results[-len(lines) :], file=sys.stderr, flush=True)
    return {"seed": SEED, "bytes": read, "results": results}


def main() -> int:
    """Returns the exit status: 1 if a test failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("dieharder", "write"))
    parser.add_argument("orders", nargs="+", choices=ORDERS, metavar="order", help=", ".join(ORDERS))
    parser.add_argument("--tests", type=int, nargs="+", default=TESTS, help="numbers of dieharder's tests (see `dieharder -l`)")
    given = parser.parse_args()
    if given.what == "write":
        write(given.orders[0], sys.stdout.buffer)
        return 0
    found = {order: dieharder(order, tuple(given.tests)) for order in given.orders}
    print(json.dumps(found, indent=1))
    return int(any(assessment == "FAILED" for order in found.values() for *_, assessment in order["results"]))


if __name__ == "__main__":
    sys.exit(main())
