"""Compares a target with the CPU, for `python -m gpuvec.testing`; see `target_check.target_process`."""

import sys

from gpuvec.testing.target_check.target_process import main

if __name__ == "__main__":
    main(*sys.argv[1:])
