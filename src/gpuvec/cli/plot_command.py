"""The command `gpuvec plot`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from gpuvec.cli.output_file import require_writable, write_file
from gpuvec.cli.population_run import is_population
from gpuvec.cli.terminal import print_lines
from gpuvec.learners.runs.records import SWEEP

if TYPE_CHECKING:
    from gpuvec.cli.figures import Figure, XName

DEFAULT_PNG = Path("learning_curves.png")


def plot(
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = (Path("runs"),),
    metric_name: Annotated[str, tyro.conf.arg(name="metric")] = "return",
    x: Literal["steps", "seconds"] = "steps",
    png: Path | None = None,
    html: Path | None = None,
    force: bool = False,
) -> int:
    """Draw the learning curves of training runs.

    Runs with equal environment, algorithm and settings but other seeds are one curve: their mean, with a 95 % t interval for
    three seeds and more, and from the lowest to the highest for two. Each environment and each role has its own panel.

    The folder of one population is drawn as quantiles over its agents, and the final return of each agent by each
    hyper-parameter in which agents differ. That of one search is drawn as a line for each trial, from setting to setting to its
    score, and the scores by each setting.

    Args:
        runs: run folders, or folders that contain run folders; or the folder of a population or of a search.
        metric_name: the metric, such as return, entropy or metrics/grass. For several policies, return has a panel for each
            role, and wolves/return that of one.
        x: the horizontal axis: steps of the environments, or seconds of training.
        png: the picture to write. By default it is learning_curves.png, if there is no --html.
        html: an interactive page to write, which needs no network. It needs the extra `plotly`.
        force: replace files that exist.
    """
    if png is None and html is None:
        png = DEFAULT_PNG
    for path in filter(None, (png, html)):
        require_writable(path, force)
    from gpuvec.cli.figures import to_html, to_png

    if any((path / SWEEP).is_file() for path in runs):
        figure, text = _draw_trials(runs)
    elif any(is_population(path) for path in runs):
        if len(runs) > 1 or html is not None or x != "steps":
            raise ValueError(
                "a population is drawn alone, over the steps of an agent, as a PNG file: give one folder and --png."
            )
        figure, text = _draw_population(runs[0], metric_name)
    else:
        figure, text = _draw_curves(runs, metric_name, x)
    if png is not None:
        write_file(png, to_png(figure), force)
    if html is not None:
        write_file(html, to_html(figure).encode(), force)
    names = " and ".join(str(path) for path in (png, html) if path is not None)
    print_lines(f"wrote      {names}: {text}")
    return 0


def _draw_curves(runs: Sequence[Path], metric_name: str, x: XName) -> tuple[Figure, str]:
    """Returns the learning curves of runs, and how many there are."""
    from gpuvec.cli.figures import Chart, curves_figure
    from gpuvec.learners.runs.comparison import group_runs
    from gpuvec.learners.runs.history import read_histories

    histories, messages = read_histories(runs, metric_name)
    groups, left_out = group_runs(histories)
    figure, notes = curves_figure(groups, x)
    print_messages([*messages, *left_out, *notes])
    if not figure.panels:
        raise ValueError("there is no curve to draw: none of the runs has a number that can be shown.")
    num_curves = sum(len(panel.series) for panel in figure.panels if isinstance(panel, Chart))
    num_runs = sum(len(group.runs) for group in groups)
    return figure, f"{count(num_curves, 'curve')} of {count(num_runs, 'run')}"


def _draw_population(path: Path, metric_name: str) -> tuple[Figure, str]:
    """Returns the results of a population, and of how many agents they are."""
    from gpuvec.cli.figures import population_figure
    from gpuvec.learners.population.results.population_history import read_population_history
    from gpuvec.learners.runs.folder import RunFolder

    with RunFolder(path) as folder:
        base, history = read_population_history(folder)
    title = f"{base.get('env', '?')}, {history.num_agents:,} agents"
    return population_figure(history, title, metric_name), f"quantiles of {count(history.num_agents, 'agent')}"


def _draw_trials(runs: Sequence[Path]) -> tuple[Figure, str]:
    """Returns the trials of a search, and how many there are."""
    if len(runs) > 1:
        raise ValueError("a search is drawn alone: give one folder.")
    from gpuvec.cli.figures import trials_figure
    from gpuvec.learners.population.search.search_space import read_trials
    from gpuvec.learners.runs.folder import RunFolder

    with RunFolder(runs[0]) as folder:
        trials = read_trials(folder)
    return trials_figure(trials), count(len(trials.scores), "trial")


def print_messages(messages: Iterable[str]) -> None:
    """Prints each message once, on standard error.

    Args:
        messages: the messages, which may contain text from files.
    """
    print_lines(*(f"gpuvec: {message}" for message in dict.fromkeys(messages)), is_error=True)


def count(number: int, noun: str) -> str:
    """Returns a number with its noun, such as "1 run" or "2 runs".

    Args:
        number: the number.
        noun: the noun in the singular.
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
