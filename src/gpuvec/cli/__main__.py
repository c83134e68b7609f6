"""Runs the command line `gpuvec` for `python -m gpuvec.cli`."""

from gpuvec.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
