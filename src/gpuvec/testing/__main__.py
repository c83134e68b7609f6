"""`python -m gpuvec.testing` is the process in which a backend is compared."""

import sys

from gpuvec.testing.target_check.target_process import main

if __name__ == "__main__":
    main(*sys.argv[1:])
