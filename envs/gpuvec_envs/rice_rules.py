"""The phases of a step of `rice_n`: agreements, production, trade, consumption, growth and the climate."""

import math

import numpy as np

from gpuvec import Ints, Key, fraction
from gpuvec_envs.rice_data import (
    ABATEMENT_EXPONENT,
    BALANCE_INTEREST,
    CAPITAL_ELASTICITY,
    CARBON_1750,
    CARBON_PER_EMISSIONS,
    CARBON_TRANSITION,
    DAMAGE_COEFFICIENTS,
    DAMAGE_EXPONENT,
    DEBT_MULTIPLIER,
    DOMESTIC_WEIGHT,
    FORCING_PER_DOUBLING,
    FOREIGN_WEIGHT,
    LONG_RUN_GROWTH,
    NUM_ACTIVITY_STEPS,
    NUM_REGIONS,
    RISK_AVERSION,
    TEMPERATURE_PER_FORCING,
    TEMPERATURE_TRANSITION,
    UTILITY_OFFSET,
    YEARS_PER_STEP,
)
from gpuvec_envs.rice_state import ACTIVITY, EVALUATION, NUM_STAGES, PROPOSAL, ParamsWithTables, State

# The first components of the parts of an action.
SAVINGS, MITIGATION, EXPORT_LIMIT, TARIFFS = 0, 1, 2, 3
IMPORTS = TARIFFS + NUM_REGIONS
PROPOSALS = IMPORTS + NUM_REGIONS
DECISIONS = PROPOSALS + 2 * NUM_REGIONS
RISK_POWER = 1.0 - RISK_AVERSION


def begin_step(s: State, key: Key, p: ParamsWithTables) -> tuple[int, int, float]:
    """Returns the stage, the number of activity steps, and the damage by the temperature before this step."""
    stage = (s.stage + 1) % NUM_STAGES if p.negotiation else ACTIVITY
    if stage != ACTIVITY:
        return stage, s.activity_count, s.damage
    air = s.air_temperature
    loss = DAMAGE_COEFFICIENTS[0] * air + DAMAGE_COEFFICIENTS[1] * air**DAMAGE_EXPONENT
    return stage, min(s.activity_count + 1, NUM_ACTIVITY_STEPS), 1.0 / (1.0 + loss)


def choose(pair: tuple[int, int], s: State, action: Ints, key: Key, p: ParamsWithTables) -> None:
    """Phase in which region i makes proposals, decides about them, or wishes imports."""
    i, j = pair
    if s.stage == ACTIVITY:
        s.wishes[pair] = action[IMPORTS + j] if i != j else 0
    elif s.stage == PROPOSAL:
        s.promises[pair], s.requests[pair] = action[PROPOSALS + 2 * j], action[PROPOSALS + 2 * j + 1]
    else:
        s.decisions[pair] = i != j and action[DECISIONS + j] == 1


def produce(i: int, s: State, action: Ints, key: Key, p: ParamsWithTables) -> None:
    """Phase of production and of the demand for imports in activity steps, and of agreements in evaluations."""
    if s.stage == EVALUATION:
        s.min_mitigation[i] = agreed_level(i, s)
    if s.stage != ACTIVITY:
        return
    s.savings[i], s.mitigation[i], s.export_limit[i] = action[SAVINGS], action[MITIGATION], action[EXPORT_LIMIT]
    n = p.num_action_levels
    s.mitigation_cost[i] = p.backstop[s.activity_count] * s.intensity[i]
    s.abatement[i] = s.mitigation_cost[i] * fraction(action[MITIGATION], n) ** ABATEMENT_EXPONENT
    inputs = s.capital[i] ** CAPITAL_ELASTICITY * (s.labor[i] / 1000.0) ** (1.0 - CAPITAL_ELASTICITY)
    s.production[i] = s.technology[i] * inputs
    output = s.damage * (1.0 - s.abatement[i]) * s.production[i]
    s.output[i] = output
    s.investment[i] = fraction(action[SAVINGS], n) * output

    # Wishes for more than the output share it, and debt reduces them.
    total = 0
    for j in range(NUM_REGIONS):
        total += s.wishes[i, j]
    debt = DEBT_MULTIPLIER * (1.0 + BALANCE_INTEREST) * s.balance[i] / p.initial_capital[i]
    s.import_scale[i] = output / np.float32(max(total, n)) * (1.0 + min(max(debt, -1.0), 0.0))


def agreed_level(i: int, s: State) -> int:
    """Returns the largest level of mitigation in proposals that were accepted, of region i and to region i."""
    level = 0
    for j in range(NUM_REGIONS):
        if s.decisions[j, i] and s.promises[i, j] > level:
            level = s.promises[i, j]
        if s.decisions[i, j] and s.requests[j, i] > level:
            level = s.requests[j, i]
    return level


def limit_exports(i: int, s: State, action: Ints, key: Key, p: ParamsWithTables) -> None:
    """Phase in which region i limits what it exports."""
    if s.stage != ACTIVITY:
        return
    demand = 0.0
    for j in range(NUM_REGIONS):
        demand += np.float32(s.wishes[j, i]) * s.import_scale[j]
    # A root amplifies the rounding of what remains at home. At the limit it is a whole number of levels, and so exact.
    n, output = p.num_action_levels, s.output[i]
    not_invested = n - s.savings[i]
    level = min(s.export_limit[i], not_invested)
    limit = fraction(level, n) * output
    if demand > limit:
        s.export_scale[i], s.exports[i] = limit / demand, limit
        s.home_consumption[i] = fraction(not_invested - level, n) * output
    else:
        s.export_scale[i], s.exports[i] = 1.0, demand
        s.home_consumption[i] = max(output - s.investment[i] - demand, 0.0)


def consume_and_grow(i: int, s: State, action: Ints, key: Key, p: ParamsWithTables) -> None:
    """Phase of imports, consumption and utility, after which balance, capital, labor, technology and intensity change."""
    if s.stage != ACTIVITY:
        return
    k = s.activity_count
    imports, foreign_roots = 0.0, 0.0
    for j in range(NUM_REGIONS):
        goods = np.float32(s.wishes[i, j]) * s.import_scale[i] * s.export_scale[j]
        imports += goods
        foreign_roots += math.sqrt(goods * (1.0 - fraction(s.tariffs[i, j], p.num_action_levels)))
    root = DOMESTIC_WEIGHT * math.sqrt(s.home_consumption[i]) + FOREIGN_WEIGHT * foreign_roots
    s.consumption[i] = root * root

    people = s.labor[i] / 1000.0
    s.utility[i] = people * ((s.consumption[i] / people + UTILITY_OFFSET) ** RISK_POWER - 1.0) / RISK_POWER
    s.welfare[i] = s.utility[i] * p.discount[k]
    s.balance[i] = (1.0 + BALANCE_INTEREST) * s.balance[i] + YEARS_PER_STEP * (s.exports[i] - imports)

    s.capital[i] = p.remaining_capital[k] * s.capital[i] + YEARS_PER_STEP * s.investment[i]
    s.labor[i] = s.labor[i] * ((1.0 + p.final_labor[i]) / (1.0 + s.labor[i])) ** p.labor_speed[i]
    slowdown = math.exp(-p.technology_slowdown[i] * YEARS_PER_STEP * np.float32(k - 1))
    s.technology[i] = s.technology[i] * (math.exp(LONG_RUN_GROWTH) + p.technology_growth[i] * slowdown)
    s.intensity[i] = s.intensity[i] * p.intensity_factor[k]


def set_tariffs(pair: tuple[int, int], s: State, action: Ints, key: Key, p: ParamsWithTables) -> None:
    """Phase after consumption, to which the tariffs of the previous activity step apply."""
    if s.stage == ACTIVITY:
        s.tariffs[pair] = action[TARIFFS + pair[1]]


def region_emissions(i: int, s: State, p: ParamsWithTables) -> float:
    emitting = 1.0 - fraction(s.mitigation[i], p.num_action_levels)
    return s.intensity[i] * emitting * s.production[i] + p.land_emissions[s.activity_count]  # type: ignore[no-any-return]


def region_output(i: int, s: State, p: ParamsWithTables) -> float:
    return s.output[i]  # type: ignore[no-any-return]  # float32


def warm(s: State, key: Key, p: ParamsWithTables) -> tuple[float, float, float, float, float]:
    """Returns temperatures and carbon after an activity step, and those of now in other stages."""
    air, ocean = s.air_temperature, s.ocean_temperature
    carbon, upper, deep = s.air_carbon, s.upper_ocean_carbon, s.deep_ocean_carbon
    if s.stage != ACTIVITY:
        return air, ocean, carbon, upper, deep
    forcing = FORCING_PER_DOUBLING * math.log2(carbon / CARBON_1750) + p.forcing[s.activity_count]
    t, m = TEMPERATURE_TRANSITION, CARBON_TRANSITION
    return (
        t[0][0] * air + t[0][1] * ocean + TEMPERATURE_PER_FORCING * forcing,
        t[1][0] * air + t[1][1] * ocean,
        m[0][0] * carbon + m[0][1] * upper + m[0][2] * deep + CARBON_PER_EMISSIONS * s.emissions,
        m[1][0] * carbon + m[1][1] * upper + m[1][2] * deep,
        m[2][0] * carbon + m[2][1] * upper + m[2][2] * deep,
    )
