"""The observation of `rice_n`: features of all regions, tariffs of all pairs, and the world and the region itself."""

import numpy as np

from gpuvec import Features, Observation, Time, fraction
from gpuvec_envs.rice_data import NUM_REGIONS
from gpuvec_envs.rice_state import ACTIVITY, Params, ParamsWithTables, State

Features11 = tuple[float, float, float, float, float, float, float, float, float, float, float]
Features6 = tuple[float, float, float, float, float, float]
Features17 = tuple[*Features11, float, float, float, float, float, float]
Features19 = tuple[*Features17, float, float]


def region_features(i: int, j: int, s: State, t: Time, p: ParamsWithTables) -> Features11:
    n = p.num_action_levels
    return (
        1.0 if i == j else 0.0,
        s.capital[j] / 1e4,
        p.remaining_capital[s.activity_count],
        s.labor[j] / 1e4,
        s.output[j] / 1e3,
        s.investment[j] / 1e3,
        s.consumption[j] / 1e3,
        fraction(s.savings[j], n),
        fraction(s.mitigation[j], n),
        fraction(s.export_limit[j], n),
        s.balance[j] / 1e3,
    )


def negotiation_features(i: int, j: int, s: State, p: ParamsWithTables) -> Features6:
    n = p.num_action_levels
    return (
        fraction(s.promises[i, j], n),
        fraction(s.promises[j, i], n),
        fraction(s.requests[i, j], n),
        fraction(s.requests[j, i], n),
        1.0 if s.decisions[i, j] else 0.0,
        1.0 if s.decisions[j, i] else 0.0,
    )


def region_and_negotiation_features(i: int, j: int, s: State, t: Time, p: ParamsWithTables) -> Features17:
    return region_features(i, j, s, t, p) + negotiation_features(i, j, s, p)


def tariff(i: int, pair: tuple[int, int], s: State, t: Time, p: ParamsWithTables) -> tuple[float]:
    return (fraction(s.tariffs[pair], 100 * p.num_action_levels),)


def world_and_own_features(i: int, s: State, t: Time, p: ParamsWithTables) -> Features17:
    k = s.activity_count
    return (
        s.air_temperature / 10.0,
        s.ocean_temperature / 10.0,
        s.air_carbon / 1e4,
        s.upper_ocean_carbon / 1e4,
        s.deep_ocean_carbon / 1e4,
        p.forcing[k],
        p.land_emissions[k],
        fraction(t.step, 100),
        s.technology[i] / 100.0,
        s.intensity[i] / 0.1,
        s.mitigation_cost[i],
        s.damage,
        s.abatement[i],
        s.production[i] / 1e3,
        s.utility[i],
        s.welfare[i],
        s.utility[i] if s.stage == ACTIVITY else 0.0,
    )


def world_own_and_stage_features(i: int, s: State, t: Time, p: ParamsWithTables) -> Features19:
    stage_and_agreement = np.float32(s.stage), fraction(s.min_mitigation[i], p.num_action_levels)
    return world_and_own_features(i, s, t, p) + stage_and_agreement  # type: ignore[return-value]  # float32


def observation(p: Params) -> Observation:
    tariffs = (Features("pairs", tariff),)
    if p.negotiation:
        return Observation(world_own_and_stage_features, region_and_negotiation_features, NUM_REGIONS, blocks=tariffs)
    return Observation(world_and_own_features, region_features, NUM_REGIONS, blocks=tariffs)
