"""The observations of `epidemic_economy`: features of states, and clocks of decisions and deliveries."""

from gpuvec import Observation, Time, fraction
from gpuvec_envs.epidemic_calibration import NUM_LEVELS, TRANSMISSION_LAG
from gpuvec_envs.epidemic_state import Params, ParamsWithTables, State


def time_to_vaccines(t: Time, p: ParamsWithTables) -> float:
    """Returns the time from the next step to a delivery [delivery_interval], as the source counts it."""
    interval, day = p.delivery_interval, t.step + 1
    first = (p.vaccine_start + interval - 1) // interval * interval
    if day > first:
        return fraction(interval - day % interval, interval)
    return fraction(min(interval, first - day), interval * interval)


def clocks(i: int, s: State, t: Time, p: ParamsWithTables) -> tuple[float, float, float, float]:
    """Returns what both roles observe of the time and the subsidies."""
    to_subsidy = p.subsidy_interval - t.step % p.subsidy_interval
    return (
        fraction(t.step, t.limit),
        fraction(to_subsidy, p.subsidy_interval),
        fraction(s.subsidy_level[0], p.num_subsidy_levels),
        time_to_vaccines(t, p),
    )


def features_of_state(i: int, s: State, t: Time) -> tuple[float, float, float, float, float, float, float, float, float]:
    """Returns the nine features of state i that it and the planner observe."""
    return (
        s.susceptible[i],
        s.infected[i],
        s.recovered[i],
        s.deaths[i],
        s.vaccinated[i],
        s.unemployed[i],
        s.productivity[i],
        fraction(s.levels[i, (t.step + 1) % TRANSMISSION_LAG], NUM_LEVELS),
        fraction(s.levels[i, t.step % TRANSMISSION_LAG], NUM_LEVELS),
    )


def self_features(i: int, s: State, t: Time, p: ParamsWithTables) -> tuple[float, ...]:
    return features_of_state(i, s, t) + clocks(i, s, t, p)


def is_self(i: int, slot: int, s: State, t: Time, p: ParamsWithTables) -> tuple[float]:
    return (1.0 if i == slot else 0.0,)


def features_for_planner(i: int, slot: int, s: State, t: Time, p: ParamsWithTables) -> tuple[float, ...]:
    return features_of_state(slot, s, t)


def observation(p: Params) -> dict[str, Observation]:
    return {
        "state": Observation(self_features, is_self, p.num_states),
        "planner": Observation(clocks, features_for_planner, p.num_states),
    }
