"""`python -m gpuvec.cli` is the command `gpuvec`."""

from gpuvec.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
