"""Regions of the epidemic economy: synthetic ones from a seed, and those of a user's own calibration tables.

A region is a state with its people, the strength of the epidemic in it, and the response of its unemployment to stringency.
Synthetic regions are plausible by construction and fitted to no place. The environment is a benchmark: no result of it says
anything about a real policy.
"""

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpuvec_envs.epidemic_calibration import (
    FILTER_DECAY_DAYS,
    FILTER_WINDOW,
    NORMALIZER_DAYS,
    NUM_LEVELS,
    RECOVERY_RATE,
    Array,
    EpidemicRegions,
    Levels,
    filtered_changes,
    unemployed_people,
    with_normalizers,
)

STATES_FILE, LEVELS_FILE, PLANNER_FILE = "states.csv", "stringency_levels.csv", "planner.csv"


class Limits(NamedTuple):
    """The numbers that a column may contain."""

    text: str
    contains: Callable[[float], bool]


ANY, POSITIVE, NEGATIVE = (
    Limits("finite", lambda x: True),
    Limits("greater than 0", lambda x: x > 0.0),
    Limits("less than 0", lambda x: x < 0.0),
)
NOT_NEGATIVE, PERCENT = Limits("at least 0", lambda x: x >= 0.0), Limits("from 0 to 100", lambda x: 0.0 <= x <= 100.0)
WEIGHT, PEOPLE = Limits("at least 0 and less than 1", lambda x: 0.0 <= x < 1.0), Limits("at least 1", lambda x: x >= 1.0)
LEVEL = Limits(f"a whole number from 1 to {NUM_LEVELS}", lambda x: x in range(1, NUM_LEVELS + 1))
WEIGHT_COLUMNS = tuple(f"unemployment_weight_{k + 1}" for k in range(len(FILTER_DECAY_DAYS)))
NORMALIZERS = ("health_min", "health_max", "economic_min", "economic_max")
PLANNER_COLUMNS = {"health_weight": WEIGHT, **dict.fromkeys(NORMALIZERS, ANY)}
PEOPLE_COLUMNS = ("susceptible", "infected", "recovered", "vaccinated", "unemployed")
STATE_COLUMNS = {
    "population": PEOPLE,
    "transmission_intercept": POSITIVE,
    "transmission_slope": NEGATIVE,
    **dict.fromkeys(WEIGHT_COLUMNS, ANY),
    "baseline_unemployment": PERCENT,
    **dict.fromkeys(PEOPLE_COLUMNS, NOT_NEGATIVE),
    **PLANNER_COLUMNS,
}


def synthetic_past_levels(num_states: int, rng: np.random.Generator) -> Levels:
    """Returns the levels (601, N) of states that begin to close in the weeks before the start.

    All are at level 1 until 75 days before the start at the earliest. Level 2 begins 74 to 20 days before it, level 3 19 to 12
    days, a level halfway 11 to 5 days, and the level of the start day, 6 to 9, 4 to 0 days before it.
    """
    past_levels = np.ones((FILTER_WINDOW + 1, num_states), np.int32)
    for state in range(num_states):
        last = int(rng.integers(6, 10))
        for level, (earliest, latest) in zip((2, 3, (3 + last) // 2, last), ((74, 20), (19, 12), (11, 5), (4, 0)), strict=True):
            past_levels[FILTER_WINDOW - int(rng.integers(latest, earliest + 1)) :, state] = level
    return past_levels


def synthetic_response_levels(first_levels: Levels, rng: np.random.Generator) -> Levels:
    """Returns the levels (284, N) of states that keep their first level for 30 to 60 days and open step by step.

    A step of one level takes 25 to 45 days and the last level is 3 to 5. From a day between 200 and 240 on, the level is higher
    by two, as in a second wave.
    """
    days = np.arange(1, NORMALIZER_DAYS + 1)[:, None]
    constant, step, wave = (rng.integers(low, high, len(first_levels)) for low, high in ((30, 61), (25, 46), (200, 241)))
    opened = np.maximum(0, days - constant + step) // step
    levels = np.maximum(first_levels - opened, rng.integers(3, 6, len(first_levels)))
    return np.asarray(levels + 2 * (days >= wave), np.int32)


def synthetic_regions(num_states: int, seed: int) -> EpidemicRegions:
    """Returns states whose values are drawn from the ranges below; the same seed gives the same states.

    - Population: 0.5 to 25 million, uniform in the logarithm, which spans the sizes of the states of a large federation.
    - Reproduction number (transmission / recovery rate, all people susceptible): 1.6 to 2.4 at level 1, where most people are
      infected within an episode, and 0.5 to 0.9 at level 10, where the epidemic recedes. Both are reached on a straight line.
    - Infected: 0.02 to 0.2 % of the population, uniform in the logarithm. Recovered: as many as an epidemic has that has grown
      at the rate of level 1 until then. Nobody is vaccinated.
    - Unemployment: 2.5 to 4.5 % of the population at the baseline. A change by one level adds 0.8 to 1.6 % at first, over five
      filters whose shares differ by a factor of 3 at most, so that closing costs work and the effect decays within months.
      The initial number of unemployed people follows from the past levels.
    - Past levels: see `synthetic_past_levels`.
    - Health weight: 0.6 to 0.9, with which a constant level between the extremes gives greater rewards than either. With 0.3 to
      0.9 the planner's reward is greatest if all states stay open. The planner's weight is the mean over people.
    - Normalisers: three runs of 284 days, see `with_normalizers` and `synthetic_response_levels`.

    Args:
        num_states: N, at least 1.
        seed: of the generator, at least 0.

    Raises:
        ValueError: an argument is less than that.
    """
    for name, value, minimum in (("num_states", num_states, 1), ("seed", seed, 0)):
        if value < minimum:
            raise ValueError(f"{name} is {value}; it must be at least {minimum}.")
    rng = np.random.default_rng(seed)
    population = np.rint(np.exp(rng.uniform(math.log(0.5e6), math.log(25.0e6), num_states)))
    open_reproduction, closed_reproduction = rng.uniform(1.6, 2.4, num_states), rng.uniform(0.5, 0.9, num_states)
    slope = (closed_reproduction - open_reproduction) * RECOVERY_RATE / (NUM_LEVELS - 1)
    infected = np.rint(population * np.exp(rng.uniform(math.log(2.0e-4), math.log(2.0e-3), num_states)))
    recovered = np.rint(infected / (open_reproduction - 1.0))
    shares = rng.uniform(0.5, 1.5, (num_states, len(FILTER_DECAY_DAYS)))
    weights = rng.uniform(0.8, 1.6, (num_states, 1)) * shares / shares.sum(axis=1, keepdims=True)
    baseline, health_weight = rng.uniform(2.5, 4.5, num_states), rng.uniform(0.6, 0.9, num_states)
    past_levels, unknown = synthetic_past_levels(num_states, rng), np.full(num_states, np.nan)
    # They are computed from the other fields below.
    normalizers: dict[str, Any] = dict.fromkeys(NORMALIZERS, unknown) | {f"planner_{name}": math.nan for name in NORMALIZERS}
    regions = EpidemicRegions(
        names=np.array([f"state_{k:02d}" for k in range(num_states)]),
        population=population,
        transmission_intercept=open_reproduction * RECOVERY_RATE - slope,
        transmission_slope=slope,
        unemployment_weights=weights,
        baseline_unemployment=baseline,
        susceptible=population - infected - recovered,
        infected=infected,
        recovered=recovered,
        vaccinated=np.zeros(num_states),
        unemployed=unknown,
        past_levels=past_levels,
        health_weight=health_weight,
        planner_health_weight=float(population @ health_weight / population.sum()),
        **normalizers,
    )
    regions = regions._replace(unemployed=unemployed_people(filtered_changes(past_levels), regions))
    return with_normalizers(regions, synthetic_response_levels(past_levels[-1], rng))


def read_rows(file: Path, columns: Sequence[str]) -> list[Mapping[str, str | None]]:
    """Returns the rows of a CSV file as {column: text}; other columns than `columns` may be there.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a column is missing.
    """
    if not file.is_file():
        raise FileNotFoundError(
            f"{file} does not exist; a folder of regions contains {STATES_FILE}, {LEVELS_FILE} and {PLANNER_FILE}. "
            f"Write an example with save_regions(synthetic_regions(51, 0), folder)."
        )
    with file.open(newline="", encoding="utf-8-sig") as lines:
        reader = csv.DictReader(lines)
        header = reader.fieldnames or ()
        missing = [name for name in columns if name not in header]
        if missing:
            raise ValueError(
                f"{file} has the columns {', '.join(header) or 'none'}; it must have {', '.join(missing)} too. Add them."
            )
        return list(reader)


def number(file: Path, line: int, column: str, text: str | None, limits: Limits) -> float:
    """Returns the number of a cell.

    Raises:
        ValueError: the text is no number, the number is not finite, or it is outside of the limits.
    """
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and limits.contains(value)):
        allowed = limits.text if limits is ANY else f"finite and {limits.text}"
        raise ValueError(
            f"{file}, row {line}: {column} is {text or 'empty'}; it must be a number that is {allowed}. Correct the table."
        )
    return value


def read_numbers(file: Path, columns: Mapping[str, Limits], num_rows: int | None = None) -> dict[str, Array]:
    """Returns the columns of a CSV file with numbers, each an array with an element for each row.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a column is missing, the number of rows is another one, or a cell is not allowed.
    """
    rows = read_rows(file, tuple(columns))
    if not rows or num_rows not in (None, len(rows)):
        required = "at least 1" if num_rows is None else num_rows
        raise ValueError(
            f"{file} has {len(rows)} rows below its header; it must have {required}. Add the missing rows or remove the others."
        )
    return {
        name: np.array([number(file, line, name, row[name], limits) for line, row in enumerate(rows, 1)])
        for name, limits in columns.items()
    }


def require_consistent(file: Path, columns: Mapping[str, Array]) -> None:
    """Raises ValueError for a row whose minimum is not less than its maximum, or with more people than there are."""
    upper_bounds = {"health_min": "health_max", "economic_min": "economic_max"}
    if "population" in columns:
        upper_bounds |= dict.fromkeys(PEOPLE_COLUMNS, "population") | {"vaccinated": "recovered"}
    for low, high in upper_bounds.items():
        strict = high.endswith("max")
        for line, (a, b) in enumerate(zip(columns[low], columns[high], strict=True), 1):
            if a > b or (strict and a == b):
                raise ValueError(
                    f"{file}, row {line}: {low} is {a} and {high} is {b}; {low} must be "
                    f"{'less than' if strict else 'at most'} {high}. Correct the table."
                )


def load_regions(folder: str | Path) -> EpidemicRegions:
    """Reads the regions of a user's own calibration from three CSV files with a header.

    - `states.csv`, a row for each of N states: `state` (its name) and a number for each field of `EpidemicRegions` with N
      elements, by the same name and in the same unit. `unemployment_weight_1` to `unemployment_weight_5` are the five weights.
    - `stringency_levels.csv`, a row for each day and a column for each state, by its name: the levels, whole numbers from 1 to
      10, of the 600 days before the start and, in the last of the 601 rows, of the start day.
    - `planner.csv`, one row: `health_weight`, `health_min`, `health_max`, `economic_min`, `economic_max`.

    Other columns are ignored. `save_regions` writes such files, and `with_normalizers` computes the minima and maxima.

    Args:
        folder: the folder with the three files.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a column is missing, the number of rows is wrong, a name occurs twice or is empty, or a number is not finite
            or out of its range.
    """
    states_file, levels_file, planner_file = (Path(folder) / name for name in (STATES_FILE, LEVELS_FILE, PLANNER_FILE))
    columns = read_numbers(states_file, STATE_COLUMNS)
    require_consistent(states_file, columns)
    names = [row["state"] or "" for row in read_rows(states_file, ("state",))]
    for line, name in enumerate(names, 1):
        if not name or name in names[: line - 1]:
            problem = f"{name}, as in an earlier row" if name else "empty"
            raise ValueError(
                f"{states_file}, row {line}: state is {problem}; each state must have its own name. Correct the table."
            )
    levels = read_numbers(levels_file, dict.fromkeys(names, LEVEL), FILTER_WINDOW + 1)
    planner = read_numbers(planner_file, PLANNER_COLUMNS, 1)
    require_consistent(planner_file, planner)
    fields: dict[str, Any] = {name: values for name, values in columns.items() if name not in WEIGHT_COLUMNS}
    fields |= {f"planner_{name}": float(values[0]) for name, values in planner.items()}
    return EpidemicRegions(
        names=np.array(names),
        unemployment_weights=np.stack([columns[name] for name in WEIGHT_COLUMNS], axis=1),
        past_levels=np.stack([levels[name] for name in names], axis=1).astype(np.int32),
        **fields,
    )


def save_regions(regions: EpidemicRegions, folder: str | Path) -> None:
    """Writes regions as the three CSV files that `load_regions` reads; numbers are equal when read again.

    Args:
        regions: the states.
        folder: is created if it does not exist; the files in it are replaced.
    """
    fields, path = regions._asdict(), Path(folder)
    fields |= {name: regions.unemployment_weights[:, k] for k, name in enumerate(WEIGHT_COLUMNS)}
    state_rows = zip(regions.names, *(fields[name] for name in STATE_COLUMNS), strict=True)
    planner_row = [fields[f"planner_{name}"] for name in PLANNER_COLUMNS]
    path.mkdir(parents=True, exist_ok=True)
    for name, header, rows in (
        (STATES_FILE, ["state", *STATE_COLUMNS], state_rows),
        (LEVELS_FILE, list(regions.names), iter(regions.past_levels)),
        (PLANNER_FILE, list(PLANNER_COLUMNS), iter([planner_row])),
    ):
        with (path / name).open("w", newline="", encoding="utf-8") as lines:
            csv.writer(lines).writerows([header, *rows])
