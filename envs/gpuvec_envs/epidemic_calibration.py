"""The calibration of the epidemic economy: its fields, the constants of the model, and the scales that follow from both.

The daily indices of health and of the economy are normalised by three runs of the model, as those of its authors are.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Levels = NDArray[np.int32]

# Constants of the model of Trott, Srinivasa, van der Wal, Haneuse and Zheng (2021), arXiv 2108.02904.
RECOVERY_RATE = 1.0 / 14.0  # [1/day]
DEATH_RATE = 0.02  # deaths per person who recovered without a vaccine
NUM_LEVELS = 10  # of stringency, from 1
TRANSMISSION_LAG = 29  # from a level of stringency to its effect on the transmission [day]
FILTER_DECAY_DAYS = np.array([27.72427749633789, 62.91925048828125, 129.2318572998047, 264.43182373046875, 542.06005859375])
FILTER_WINDOW = 600  # the age at which unemployment forgets a change of the level [day]
SOFTPLUS_LIMIT = 20.0  # above it softplus(x) is x
WORKING_AGE_SHARE = 0.6  # of the people
UNABLE_SHARE = 0.1  # of the infected people, who cannot work
GDP_PER_PERSON = 65_300.0  # of the USA in 2019 [USD/year]
VALUE_OF_LIFE = 1.0e7  # [USD]
DAYS_PER_YEAR = 365.0
NORMALIZER_DAYS = 284  # length of the runs that normalise the daily indices


class EpidemicRegions(NamedTuple):
    """The calibration of N states and their initial condition; arrays are float64 unless a field says otherwise."""

    names: NDArray[np.str_]  # (N,)
    population: Array  # (N,) [people]
    transmission_intercept: Array  # (N,), greater than 0 [1/day]
    transmission_slope: Array  # (N,), less than 0 [1/day/level]
    unemployment_weights: Array  # (N, 5), one for each of FILTER_DECAY_DAYS [% of the population/level]
    baseline_unemployment: Array  # (N,) [% of the population]
    susceptible: Array  # (N,) on the start day, as the next four [people]
    infected: Array
    recovered: Array
    vaccinated: Array
    unemployed: Array
    past_levels: Levels  # (601, N) int32, stringency of the 600 days before the start and, in the last row, of the start day
    health_weight: Array  # (N,) weight of health against the economy, in [0, 1)
    health_min: Array  # (N,) a daily index is 0 at min and 1 at max, as the next three
    health_max: Array
    economic_min: Array
    economic_max: Array
    planner_health_weight: float
    planner_health_min: float
    planner_health_max: float
    planner_economic_min: float
    planner_economic_max: float


class EconomicScale(NamedTuple):
    """What the productivity of N states is measured by."""

    worker_productivity: float  # [USD/day]
    max_productivity: Array  # (N,) with all states at level 1 for ever and nobody ill [USD/day]


class MeanIndices(NamedTuple):
    """Means over a run of the daily indices before they are normalised."""

    health: Array  # (N,)
    economic: Array  # (N,)
    planner_health: float
    planner_economic: float


def softplus(x: Array) -> Array:
    """Returns log(1 + exp(x)), and x itself above `SOFTPLUS_LIMIT`."""
    return np.where(x > SOFTPLUS_LIMIT, x, np.log1p(np.exp(np.minimum(x, SOFTPLUS_LIMIT))))


def economic_scale(population: Array, baseline_unemployment: Array) -> EconomicScale:
    """Returns the productivity of a worker, such that the workforce of open states produces the GDP, and of each state.

    Args:
        population: (N,) [people].
        baseline_unemployment: (N,) [% of the population].
    """
    open_unemployed = (math.log(2.0) + baseline_unemployment) * population / 100.0
    workforce = math.floor(population.sum() * WORKING_AGE_SHARE - open_unemployed.sum())
    worker_productivity = GDP_PER_PERSON * float(population.sum()) / workforce / DAYS_PER_YEAR
    return EconomicScale(worker_productivity, (population * WORKING_AGE_SHARE - open_unemployed) * worker_productivity)


def crra_utility(productivity_share: Array) -> Array:
    """Returns the daily utility of productivity with constant relative risk aversion 2.

    Args:
        productivity_share: productivity of a day as a share of that of a year at its maximum.
    """
    return (2.0 - 1.0 / np.clip(DAYS_PER_YEAR * productivity_share, 0.1, 3.0)) / DAYS_PER_YEAR


def filtered_changes(past_levels: Levels) -> Array:
    """Returns the sums of past changes of the level, each weighted by exp(-age / decay), on the last day.

    Args:
        past_levels: (601, N), the last row is that of the last day.

    Returns:
        (5, N), a row for each of `FILTER_DECAY_DAYS`.
    """
    ages = np.arange(FILTER_WINDOW)[::-1]
    return np.asarray(np.exp(-ages / FILTER_DECAY_DAYS[:, None]) @ np.diff(past_levels, axis=0), np.float64)


def advance_filter(filtered: Array, change: Array | Levels, forgotten_change: Array | Levels) -> Array:
    """Returns the filtered changes (5, N) of the next day.

    Args:
        filtered: (5, N), the filtered changes of a day.
        change: (N,), the change of the level on the next day.
        forgotten_change: (N,), the change of the level 600 days before the next day, which leaves the window.
    """
    remaining = np.exp(-FILTER_WINDOW / FILTER_DECAY_DAYS)[:, None] * forgotten_change
    return np.exp(-1.0 / FILTER_DECAY_DAYS)[:, None] * filtered + change - remaining


def unemployed_people(filtered: Array, regions: EpidemicRegions) -> Array:
    """Returns the number of unemployed people of each state, (N,), for filtered changes (5, N)."""
    response = softplus((regions.unemployment_weights.T * filtered).sum(axis=0))
    return (response + regions.baseline_unemployment) * regions.population / 100.0


def mean_indices(regions: EpidemicRegions, levels: Levels) -> MeanIndices:
    """Runs the model without subsidies and vaccines, and returns the means of the daily indices.

    Args:
        regions: the states; the fields of the indices and of health weights are not used.
        levels: (T, N), the levels of stringency on the days 1 to T.
    """
    scale, population = economic_scale(regions.population, regions.baseline_unemployment), regions.population
    year = DAYS_PER_YEAR * scale.max_productivity
    s, i, r = regions.susceptible, regions.infected, regions.recovered
    deaths = DEATH_RATE * (r - regions.vaccinated)
    history = np.concatenate([regions.past_levels, levels])
    changes, filtered = np.diff(history, axis=0), filtered_changes(regions.past_levels)
    rows = []
    for day in range(1, len(levels) + 1):
        transmission = (
            regions.transmission_intercept + regions.transmission_slope * history[FILTER_WINDOW + day - TRANSMISSION_LAG]
        )
        new_infected, new_recovered = transmission * s / population * i, RECOVERY_RATE * i
        s, i, r = (np.maximum(x, 0.0) for x in (s - new_infected, i + new_infected - new_recovered, r + new_recovered))
        previous_deaths, deaths = deaths, DEATH_RATE * (r - regions.vaccinated)
        filtered = advance_filter(filtered, changes[FILTER_WINDOW + day - 1], changes[day - 1])
        idle = (UNABLE_SHARE * i + deaths) * WORKING_AGE_SHARE + unemployed_people(filtered, regions)
        productivity = np.maximum(0.0, population * WORKING_AGE_SHARE - idle) * scale.worker_productivity
        cost = (deaths - previous_deaths) * VALUE_OF_LIFE
        rows.append(
            np.concatenate(
                [
                    -cost / year,
                    crra_utility(productivity / year),
                    [-cost.sum() / year.sum(), *crra_utility(productivity[None].sum(axis=1) / year.sum())],
                ]
            )
        )
    means, n = np.mean(rows, axis=0), len(population)
    return MeanIndices(means[:n], means[n : 2 * n], float(means[-2]), float(means[-1]))


def with_normalizers(regions: EpidemicRegions, response_levels: Levels) -> EpidemicRegions:
    """Returns regions whose indices are 0 at the least and 1 at the greatest of the means of three runs.

    In the runs all states are at the highest level of stringency, all are at level 1, and all follow their response.

    Args:
        regions: the states; values of the eight fields of minima and maxima are replaced.
        response_levels: (284, N) int32, the levels of the third run on the days after the start.
    """
    policies = (np.full_like(response_levels, NUM_LEVELS), np.ones_like(response_levels), response_levels)
    runs = [mean_indices(regions, levels) for levels in policies]
    health, economic = np.array([run.health for run in runs]), np.array([run.economic for run in runs])
    planner_health, planner_economic = [run.planner_health for run in runs], [run.planner_economic for run in runs]
    return regions._replace(
        health_min=health.min(axis=0),
        health_max=health.max(axis=0),
        economic_min=economic.min(axis=0),
        economic_max=economic.max(axis=0),
        planner_health_min=min(planner_health),
        planner_health_max=max(planner_health),
        planner_economic_min=min(planner_economic),
        planner_economic_max=max(planner_economic),
    )
