"""The tables of the epidemic economy: constants of each state, computed from its region in float64."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gpuvec_envs.epidemic_calibration import (
    DAYS_PER_YEAR,
    DEATH_RATE,
    FILTER_DECAY_DAYS,
    FILTER_WINDOW,
    TRANSMISSION_LAG,
    VALUE_OF_LIFE,
    EpidemicRegions,
    economic_scale,
    filtered_changes,
)


def index_constants(minimum: Any, maximum: Any, factor: Any) -> tuple[Any, Any]:
    """Returns (offset, scale) with (x - minimum) / (maximum - minimum + 1e-10) = offset - scale * y for x = -factor * y."""
    width = maximum - minimum + 1e-10
    return -minimum / width, factor / width


def scaled_weight(weight: Any, scaling: float) -> Any:
    """Returns the weight whose odds are those of `weight` times `scaling`."""
    odds = scaling * weight / (1.0 - weight)
    return odds / (1.0 + odds)


def tables_of(regions: EpidemicRegions, p: Any) -> dict[str, Any]:
    """Returns the tables of regions in float64 or integers."""
    r, population, total = regions, regions.population, regions.population.sum()
    scale = economic_scale(population, r.baseline_unemployment)
    year, total_year = DAYS_PER_YEAR * scale.max_productivity, DAYS_PER_YEAR * scale.max_productivity.sum()
    health_offset, health_scale = index_constants(r.health_min, r.health_max, VALUE_OF_LIFE * population / year)
    # The utility of a day is (2 - 1 / y) / 365.
    utility = 2.0 / DAYS_PER_YEAR
    economy_offset, economy_scale = index_constants(r.economic_min - utility, r.economic_max - utility, 1.0 / DAYS_PER_YEAR)
    planner = (
        *index_constants(r.planner_health_min, r.planner_health_max, VALUE_OF_LIFE * total / total_year),
        *index_constants(r.planner_economic_min - utility, r.planner_economic_max - utility, 1.0 / DAYS_PER_YEAR),
        scaled_weight(r.planner_health_weight, p.planner_health_scaling),
    )
    deaths = DEATH_RATE * (r.recovered - r.vaccinated)
    changes = np.diff(r.past_levels, axis=0)
    first_change = int(np.argmax((changes != 0).any(axis=1))) if changes.any() else FILTER_WINDOW - 1
    people = np.stack([r.susceptible, r.infected, r.recovered, deaths, r.vaccinated, r.unemployed], axis=1)
    return {
        "transmission_intercept": r.transmission_intercept,
        "transmission_slope": r.transmission_slope,
        "unemployment_weights": r.unemployment_weights / 100.0,
        "baseline_unemployment": r.baseline_unemployment / 100.0,
        "first_people": people / population[:, None],
        "first_filtered": filtered_changes(r.past_levels).T,
        "past_levels": np.roll(r.past_levels[-TRANSMISSION_LAG:], 1, axis=0),  # day 0, which is the last row, at 0
        # Tables are constants of the kernel, 64 KiB at most. Before the first change nothing leaves the window.
        "forgotten_changes": changes[first_change:],
        "filter_decay": np.exp(-1.0 / FILTER_DECAY_DAYS),
        "filter_end": np.exp(-FILTER_WINDOW / FILTER_DECAY_DAYS),
        "delivery": np.floor(p.delivery_interval * p.vaccine_rate * population / 1e6) / population,
        "subsidy": population * p.max_subsidy / year,
        "production": population * scale.worker_productivity / scale.max_productivity,
        "population_share": population / total,
        "production_share": year / total_year,
        "health_offset": health_offset,
        "health_scale": health_scale,
        "economy_offset": economy_offset,
        "economy_scale": economy_scale,
        "health_weight": scaled_weight(r.health_weight, p.state_health_scaling),
        "planner_constants": np.array(planner),
    }


def convert_tables(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns tables in the types of the engine: float32, and int32 for levels."""
    return {name: np.ascontiguousarray(x, np.int32 if name == "past_levels" else np.float32) for name, x in values.items()}
