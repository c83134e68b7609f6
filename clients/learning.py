"""The seed with which a check trains its client, and the report of what it learned. `run.py` repeats it for each seed."""

import json
import os

SEED = int(os.environ.get("GPUVEC_CLIENT_SEED", "1"))


def report(what: str, before: float, after: float, when: str) -> None:
    """Prints the returns of one training for the table.

    Args:
        what: the algorithm and the environment.
        before: the mean return at first.
        after: the mean return after training.
        when: the number of steps.
    """
    print(f"learned: {json.dumps([what, float(before), float(after), when])}")
