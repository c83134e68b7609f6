"""`python -m gpuvec.testing` is the process in which a target is compared with the CPU."""

import sys

from gpuvec.testing.target_check.target_process import main

if __name__ == "__main__":
    main(*sys.argv[1:])
