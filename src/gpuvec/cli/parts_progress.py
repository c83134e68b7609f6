"""Shows the parts of a search, one after the other."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuvec.cli.population_run import Clock, PopulationProgress
from gpuvec.cli.progress import Progress
from gpuvec.learners.population.population_args import PopulationArgs


class PartsProgress:
    """Shows the parts of a search one after the other.

    Args:
        title: what is searched.
    """

    def __init__(self, title: str) -> None:
        self._title, self._text, self._clock = title, "", Clock()
        self._progress: Progress | None = None

    def begin(self, text: str) -> None:
        """Ends the display of the part before, and begins that of another one.

        Args:
            text: what the part does.
        """
        self.end()
        self._text, self._clock = text, Clock()

    def update(self, args: PopulationArgs, iteration: int, results: NDArray[np.float32]) -> None:
        """Shows the numbers of a launch.

        Args:
            args, iteration, results: as in `PopulationProgress.update`.
        """
        if self._progress is None:
            self._progress = Progress(f"{self._title}: {self._text}", args.base.iterations).__enter__()
            self._display = PopulationProgress(self._progress, self._clock)
        self._display.update(args, iteration, results)

    def end(self) -> None:
        """Ends the display of the last part."""
        if self._progress is not None:
            self._progress.__exit__(None, None, None)
            self._progress = None
