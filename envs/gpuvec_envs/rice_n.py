"""RICE-N: 27 regions invest, abate emissions, trade, and may negotiate, while the climate warms.

Observation: for each region j: 1 for the region itself and 0 for others, capital, the part of it that remains after a step,
    population, output, investment, consumption, savings, mitigation, export limit and balance; with `negotiation` also the
    promises, requests and decisions of the region about j and of j about the region. Then the tariffs of all regions on all
    others. Then temperatures, carbon, other forcing, land emissions, time, with `negotiation` the stage, and the region's own
    productivity, carbon intensity, abatement cost, damage, abatement, production, utility, welfare, reward and, with
    `negotiation`, least level of mitigation.
Action: levels of savings, mitigation and the export limit, then for each region j a level of tariff and then of desired
    imports. With `negotiation` also, for each j, the levels of mitigation that the region promises and requests, and whether it
    accepts the proposal of j. A rate is its level divided by `num_action_levels`. The mask excludes levels of mitigation below
    those that the region has agreed to; they are carried out all the same.
Reward: the utility of the region's consumption; 0 in steps of negotiation.
Termination: the year 2115, after 20 steps of 5 years. With `negotiation` each of them follows a step of proposals and one of
    decisions.
Parameters: a reset always begins in 2015 in the same state.
Source: the rules of RICE-N (Zhang et al., 2022, "AI for Global Climate Cooperation", arXiv 2208.07004), as docs/rules/rice_n.md
    states them.
"""

import math
from typing import Annotated, NamedTuple

import numpy as np
from gymnasium.spaces import Box, MultiDiscrete

from gpuvec import Key, MultiAgentEnv, Time, assign, each, sum_of
from gpuvec_envs import pictures
from gpuvec_envs.checks import require_at_least_one
from gpuvec_envs.rice_data import (
    CARBON_START,
    LARGEST_OUTPUT,
    LARGEST_RISE,
    NUM_ACTIVITY_STEPS,
    NUM_REGIONS,
    SMALLEST_OUTPUT,
    SMALLEST_RISE,
    TEMPERATURE_START,
)
from gpuvec_envs.rice_observation import observation
from gpuvec_envs.rice_rules import (
    DECISIONS,
    MITIGATION,
    PROPOSALS,
    begin_step,
    choose,
    consume_and_grow,
    limit_exports,
    produce,
    region_emissions,
    region_output,
    set_tariffs,
    warm,
)
from gpuvec_envs.rice_state import ACTIVITY, EVALUATION, NUM_STAGES, Params, ParamsWithTables, State, tables

# Of the climate and the economic index
RISE_RANGE, OUTPUT_RANGE = LARGEST_RISE - SMALLEST_RISE, LARGEST_OUTPUT - SMALLEST_OUTPUT
SMALLEST_STEP_OUTPUT = SMALLEST_OUTPUT / NUM_ACTIVITY_STEPS


def agents(p: Params) -> int:
    return NUM_REGIONS


def start_region(i: int, s: State, key: Key, p: ParamsWithTables) -> None:
    s.capital[i], s.labor[i] = p.initial_capital[i], p.initial_labor[i]
    s.technology[i], s.intensity[i] = p.initial_technology[i], p.initial_intensity[i]
    s.mitigation_cost[i], s.abatement[i], s.production[i], s.output[i] = 0.0, 0.0, 0.0, 0.0
    s.investment[i], s.consumption[i], s.exports[i], s.balance[i] = 0.0, 0.0, 0.0, 0.0
    s.utility[i], s.welfare[i], s.home_consumption[i] = 0.0, 0.0, 0.0
    s.import_scale[i], s.export_scale[i] = 0.0, 0.0
    s.savings[i], s.mitigation[i], s.export_limit[i], s.min_mitigation[i] = 0, 0, 0, 0


def start_pair(pair: tuple[int, int], s: State, key: Key, p: ParamsWithTables) -> None:
    s.wishes[pair], s.tariffs[pair], s.promises[pair], s.requests[pair] = 0, 0, 0, 0
    s.decisions[pair] = False


def start_climate(s: State, key: Key, p: ParamsWithTables) -> tuple[float, float, float, float, float]:
    return TEMPERATURE_START[0], TEMPERATURE_START[1], CARBON_START[0], CARBON_START[1], CARBON_START[2]


def reward(i: int, s: State, t: Time, p: ParamsWithTables) -> float:
    return s.utility[i] if s.stage == ACTIVITY else 0.0


def terminated(i: int, s: State, p: ParamsWithTables) -> bool:
    return s.activity_count >= NUM_ACTIVITY_STEPS


class Metrics(NamedTuple):
    temperature_rise: Annotated[float, "last"]  # of the air since 2015 [degC]
    climate_index: Annotated[float, "last"]  # 1 at the rise with full mitigation, 0 at that without any
    output: Annotated[float, "sum"]  # of all regions, over activity steps [1e12 USD/yr]
    economic_index: Annotated[float, "sum"]  # 0 at the output without savings, 1 at that with full savings


def metrics(s: State, p: ParamsWithTables) -> Metrics:
    rise = s.air_temperature - TEMPERATURE_START[0]
    climate_index = (LARGEST_RISE - rise) / RISE_RANGE
    if s.stage != ACTIVITY:
        return Metrics(rise, climate_index, 0.0, 0.0)
    return Metrics(rise, climate_index, s.world_output, (s.world_output - SMALLEST_STEP_OUTPUT) / OUTPUT_RANGE)


def allowed(i: int, action: tuple[int, int], s: State, p: ParamsWithTables) -> bool:
    component, level = action
    return component != MITIGATION or level >= s.min_mitigation[i]


def masked_components(p: Params) -> tuple[int, ...]:
    return (MITIGATION,) if p.negotiation else ()


def spaces(p: Params) -> tuple[Box, MultiDiscrete]:
    levels = [p.num_action_levels] * DECISIONS + [2] * NUM_REGIONS
    width = 1207 if p.negotiation else 1043
    return Box(-np.inf, np.inf, (width,)), MultiDiscrete(levels if p.negotiation else levels[:PROPOSALS])


def check(p: Params) -> None:
    require_at_least_one(p, "num_action_levels")
    if p.num_action_levels > 256:
        raise ValueError(f"num_action_levels is {p.num_action_levels}; it must be at most 256, since levels are bytes.")


def field_ranges(p: Params) -> dict[str, tuple[float, float]]:
    # Warming is a logarithm of the carbon in the air, and production a power of what regions have, divided by their labor.
    positive = dict.fromkeys(("air_carbon", "labor"), (1e-6, 1e12))
    stocks = dict.fromkeys(("upper_ocean_carbon", "deep_ocean_carbon", "capital", "technology"), (0.0, 1e12))
    levels = ("savings", "mitigation", "export_limit", "min_mitigation", "wishes", "tariffs", "promises", "requests")
    ranges: dict[str, tuple[float, float]] = dict.fromkeys(levels, (0, p.num_action_levels - 1))
    ranges = {**positive, **stocks, "intensity": (0.0, 1e3), **ranges}
    return ranges | {"stage": (0, NUM_STAGES - 1), "activity_count": (0, NUM_ACTIVITY_STEPS)}


def events(before: State, s: State, p: ParamsWithTables) -> list[tuple[str, str, tuple[int, ...]]]:
    """Returns the degrees that the warming reaches, and how many proposals of a negotiation are accepted."""
    degrees = range(math.floor(before.air_temperature) + 1, math.floor(s.air_temperature) + 1)
    reached: list[tuple[str, str, tuple[int, ...]]] = [("warming", f"the warming reaches {k} °C", ()) for k in degrees]
    if not p.negotiation or s.stage != EVALUATION:
        return reached
    count = np.count_nonzero(s.decisions)
    return [*reached, ("agreement", f"{count} of {NUM_REGIONS * (NUM_REGIONS - 1)} proposals are accepted", ())]


ENV = MultiAgentEnv(
    state=State,
    params=Params(),
    spaces=spaces,
    agents=agents,
    tables=tables,
    reset=(
        start_region,
        each("pairs", start_pair),
        assign(
            ("air_temperature", "ocean_temperature", "air_carbon", "upper_ocean_carbon", "deep_ocean_carbon"), start_climate
        ),
    ),
    phases=(
        assign(("stage", "activity_count", "damage"), begin_step),
        each("pairs", choose),
        produce,
        sum_of("emissions", region_emissions),
        sum_of("world_output", region_output),
        limit_exports,
        consume_and_grow,
        each("pairs", set_tariffs),
        assign(("air_temperature", "ocean_temperature", "air_carbon", "upper_ocean_carbon", "deep_ocean_carbon"), warm),
    ),
    reward=reward,
    terminated=terminated,
    observation=observation,
    allowed=allowed,
    masked_components=masked_components,
    metrics=metrics,
    structural=("negotiation", "num_action_levels"),
    check=check,
    field_ranges=field_ranges,
    draw=pictures.rice_n,
    events=events,
    render_fps=4,
)
