"""The command `gpuvec plot`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import tyro

from gpuvec.cli.output_file import require_writable, write_file
from gpuvec.cli.population_run import is_population
from gpuvec.cli.terminal import print_lines
from gpuvec.learners.runs.records import SWEEP

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
    if any((path / SWEEP).is_file() for path in runs):
        return plot_trials(runs, png, html, force)
    populations = [path for path in runs if is_population(path)]
    if populations:
        return plot_population(runs, metric_name, x, png, html, force)

    from gpuvec.learners.histories import read_histories
    from gpuvec.learners.runs.curves import make_panels
    from gpuvec.learners.runs.groups import group_runs

    histories, messages = read_histories(runs, metric_name)
    groups, left_out = group_runs(histories)
    panels, notes = make_panels(groups, x)
    print_messages([*messages, *left_out, *notes])
    if not panels:
        raise ValueError("there is no curve to draw: none of the runs has a number that can be shown.")
    if png is not None:
        from gpuvec.cli.curves_png import draw_png

        write_file(png, draw_png(panels, x), force)
    if html is not None:
        from gpuvec.cli.curves_html import draw_html

        write_file(html, draw_html(panels, x).encode(), force)
    num_curves = sum(len(panel.lines) for panel in panels)
    num_runs = sum(len(group.runs) for group in groups)
    names = " and ".join(str(path) for path in (png, html) if path is not None)
    print_lines(f"wrote      {names}: {count(num_curves, 'curve')} of {count(num_runs, 'run')}")
    return 0


def plot_population(runs: Sequence[Path], metric_name: str, x: str, png: Path | None, html: Path | None, force: bool) -> int:
    """Draws the results of a population.

    Args:
        runs: the folder of the population alone.
        metric_name, x, png, html, force: the options of the command.

    Raises:
        ValueError: several folders, or options that are for single runs.
    """
    if len(runs) > 1 or html is not None or x != "steps" or png is None:
        raise ValueError("a population is drawn alone, over the steps of an agent, as a PNG file: give one folder and --png.")
    from gpuvec.cli.population_png import draw_population
    from gpuvec.learners.population.results.population_history import read_population_history
    from gpuvec.learners.runs.folder import RunFolder

    with RunFolder(runs[0]) as folder:
        base, history = read_population_history(folder)
    title = f"{base.get('env', '?')}, {history.num_agents:,} agents"
    write_file(png, draw_population(history, title, metric_name), force)
    print_lines(f"wrote      {png}: quantiles of {count(history.num_agents, 'agent')}")
    return 0


def plot_trials(runs: Sequence[Path], png: Path | None, html: Path | None, force: bool) -> int:
    """Draws the trials of a search.

    Args:
        runs: the folder of the search alone.
        png, html, force: the options of the command.

    Raises:
        ValueError: several folders.
    """
    if len(runs) > 1:
        raise ValueError("a search is drawn alone: give one folder.")
    from gpuvec.learners.population.search.search_space import read_trials
    from gpuvec.learners.runs.folder import RunFolder

    with RunFolder(runs[0]) as folder:
        trials = read_trials(folder)
    if png is not None:
        from gpuvec.cli.trials_png import draw_trials

        write_file(png, draw_trials(trials), force)
    if html is not None:
        from gpuvec.cli.trials_html import draw_trials_html

        write_file(html, draw_trials_html(trials).encode(), force)
    names = " and ".join(str(path) for path in (png, html) if path is not None)
    print_lines(f"wrote      {names}: {count(len(trials.scores), 'trial')}")
    return 0


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
