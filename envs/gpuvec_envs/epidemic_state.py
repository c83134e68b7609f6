"""The state, the parameters and the tables of `epidemic_economy`."""

from typing import Annotated, Any, NamedTuple

from gpuvec import Floats, Ints, UInt8s
from gpuvec_envs.epidemic_calibration import FILTER_DECAY_DAYS, TRANSMISSION_LAG
from gpuvec_envs.epidemic_regions import synthetic_regions
from gpuvec_envs.epidemic_tables import convert_tables, tables_of

NUM_FILTERS = len(FILTER_DECAY_DAYS)


class State(NamedTuple):
    # People are shares of the population of their state, so that float32 keeps small states as well as large ones.
    susceptible: Annotated[Floats, "state"]
    infected: Annotated[Floats, "state"]
    recovered: Annotated[Floats, "state"]  # with the dead and the vaccinated
    deaths: Annotated[Floats, "state"]
    vaccinated: Annotated[Floats, "state"]
    unemployed: Annotated[Floats, "state"]
    productivity: Annotated[Floats, "state"]  # with the subsidy [of the maximum]
    new_deaths: Annotated[Floats, "state"]  # in this step
    health: Annotated[Floats, "state"]  # index of this step
    economy: Annotated[Floats, "state"]
    filtered: Annotated[Floats, "state", NUM_FILTERS]  # decaying sums of changes of the level
    levels: Annotated[UInt8s, "state", TRANSMISSION_LAG]  # of the last 29 days; day t at t % 29
    closed_days: Annotated[Ints, "state"]  # for which the mask stays closed
    subsidy_level: Annotated[Ints, "planner"]
    day: int
    total_new_deaths: float  # of all states in this step [share of all people]
    net_output: float  # of all states in this step, without the cost of subsidies [of the maximum]
    planner_health: float  # index of this step
    planner_economy: float
    mean_health: float  # of the indices of the states in this step
    mean_economy: float
    total_deaths: float  # [share of all people]
    total_unemployed: float


class Params(NamedTuple):
    num_states: int = 51
    region_seed: int = 0
    state_health_scaling: float = 0.3  # of the odds of health against the economy
    planner_health_scaling: float = 0.45
    cooldown: int = 28  # from a change of the level of stringency to the next one that the mask allows [day]
    num_subsidy_levels: int = 20  # without level 0
    subsidy_interval: int = 90  # [day]
    max_subsidy: float = 20_000.0  # [USD/person/year]
    interest: float = 0.03  # that the planner pays on subsidies
    vaccine_rate: float = 3_000.0  # [1/million people/day]
    delivery_interval: int = 1  # [day]
    vaccine_start: int = 296  # [day]


class ParamsWithTables(Params):
    # Each has an element for each of N states, unless the comment says otherwise.
    transmission_intercept: Floats
    transmission_slope: Floats
    unemployment_weights: Floats  # (N, 5)
    baseline_unemployment: Floats  # share of the population
    first_people: Floats  # (N, 6), shares after a reset in the order of the fields of `State`
    first_filtered: Floats  # (N, 5)
    past_levels: Ints  # (29, N), day t at t % 29
    forgotten_changes: Floats  # (B, N), the changes of the level that leave the window in the last B of 600 steps
    filter_decay: Floats  # (5,)
    filter_end: Floats  # (5,), the weight of a change that leaves the window
    delivery: Floats  # vaccines, share of the population
    subsidy: Floats  # at the highest level [of the maximal productivity]
    production: Floats  # of the share of the population that works [of the maximal productivity]
    population_share: Floats  # of all people
    production_share: Floats  # of the maximal productivity of all states
    # An index of health is health_offset - health_scale * new_deaths, one of the economy is economy_offset - economy_scale / y.
    health_offset: Floats
    health_scale: Floats
    economy_offset: Floats
    economy_scale: Floats
    health_weight: Floats
    planner_constants: Floats  # (5,): the same four constants of the planner, and its weight of health


def tables(p: Params) -> dict[str, Any]:
    return convert_tables(tables_of(synthetic_regions(p.num_states, p.region_seed), p))
