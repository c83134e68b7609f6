"""EpidemicEconomy: states choose how strictly they close, and a planner pays subsidies, during an epidemic.

Observation: a state observes which state it is, as a one-hot vector, then its own features: the shares of its people who are
    susceptible, infected, recovered, dead, vaccinated and unemployed, its productivity [of the maximum], the level of
    stringency that acts on transmission in the next step and the current level [tenths]. The planner observes each of these
    nine features of all states. Both then observe the elapsed fraction of the episode, the time to the next decision on
    subsidies, the current level of subsidies and the time to the next delivery of vaccines.
Action: a state sets its level of stringency, 1 to 10, and the planner the level of subsidies, 1 to 20; 0 keeps the level of a
    state, and is no subsidy. The mask closes the levels of a state for the cooldown after it set one, and those of the planner
    between decisions. It is advice: a state may set a level against it. The planner's action counts on decision days alone.
Reward: a weighted mean of the day's index of health, by new deaths, and index of the economy, by the utility of productivity.
    The planner's indices are those of all states together, and it pays the subsidies with interest.
Termination: never; an episode is truncated after 540 days.
Parameters: states come from `region_seed` and are synthetic; `make_env` takes those of your own tables.
Source: the rules of the COVID-19 and economy simulation of Trott, Srinivasa, van der Wal, Haneuse and Zheng (2021), "Building
    a foundation for data-driven, interpretable, and robust policy design using the AI Economist", arXiv 2108.02904. This is a
    benchmark; it must not inform real policy.
"""

import math
from typing import Annotated, Any, NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpuvec import Key, MultiAgentEnv, Time, assign, each, fraction, sum_of
from gpuvec_envs import pictures
from gpuvec_envs.checks import require_at_least_one, require_finite, require_not_negative
from gpuvec_envs.epidemic_calibration import (
    DEATH_RATE,
    FILTER_WINDOW,
    NUM_LEVELS,
    RECOVERY_RATE,
    SOFTPLUS_LIMIT,
    TRANSMISSION_LAG,
    UNABLE_SHARE,
    WORKING_AGE_SHARE,
    EpidemicRegions,
)
from gpuvec_envs.epidemic_observation import observation
from gpuvec_envs.epidemic_state import NUM_FILTERS, Params, ParamsWithTables, State, tables
from gpuvec_envs.epidemic_tables import convert_tables, tables_of


def agents(p: Params) -> int:
    return p.num_states + 1


def roles(p: Params) -> dict[str, int]:
    return {"state": p.num_states, "planner": 1}


def reset_state(i: int, s: State, key: Key, p: ParamsWithTables) -> None:
    s.susceptible[i], s.infected[i], s.recovered[i] = p.first_people[i, 0], p.first_people[i, 1], p.first_people[i, 2]
    s.deaths[i], s.vaccinated[i], s.unemployed[i] = p.first_people[i, 3], p.first_people[i, 4], p.first_people[i, 5]
    s.productivity[i], s.new_deaths[i], s.health[i], s.economy[i], s.closed_days[i] = 0.0, 0.0, 0.0, 0.0, 0
    for k in range(NUM_FILTERS):
        s.filtered[i, k] = p.first_filtered[i, k]
    for k in range(TRANSMISSION_LAG):
        s.levels[i, k] = p.past_levels[k, i]


def reset_planner(i: int, s: State, key: Key, p: ParamsWithTables) -> None:
    s.subsidy_level[i] = 0


def set_subsidy(i: int, s: State, action: int, key: Key, p: ParamsWithTables) -> None:
    """Phase in which the planner chooses the level of subsidies on the first day of each interval."""
    if (key.step - 1) % p.subsidy_interval == 0:
        s.subsidy_level[i] = action


def move_people(i: int, s: State, lagged_level: int, day: int, p: ParamsWithTables) -> None:
    """Moves people of state i between the compartments for one day."""
    susceptible, infected = s.susceptible[i], s.infected[i]
    delivered = day >= p.vaccine_start and day % p.delivery_interval == 0
    vaccines = min(p.delivery[i], susceptible) if delivered else 0.0
    transmission = p.transmission_intercept[i] + p.transmission_slope[i] * np.float32(lagged_level)
    new_infected = transmission * (susceptible - vaccines) * infected
    new_recovered = RECOVERY_RATE * infected
    s.susceptible[i] = max(0.0, susceptible - vaccines - new_infected)
    s.infected[i] = max(0.0, infected + new_infected - new_recovered)
    s.recovered[i] += new_recovered + vaccines
    s.vaccinated[i] += vaccines
    # The difference of two cumulative numbers would lose most digits of a float32.
    s.new_deaths[i] = DEATH_RATE * new_recovered
    s.deaths[i] += s.new_deaths[i]


def update_unemployment(i: int, s: State, change: float, forgotten_change: float, p: ParamsWithTables) -> None:
    """Computes the unemployed people of state i after a change of its level."""
    response = 0.0
    for k in range(NUM_FILTERS):
        filtered = p.filter_decay[k] * s.filtered[i, k] + change - p.filter_end[k] * forgotten_change
        s.filtered[i, k] = filtered
        response += p.unemployment_weights[i, k] * filtered
    percent = 100.0 * response
    unemployed = response if percent > SOFTPLUS_LIMIT else 0.01 * math.log(1.0 + math.exp(percent))
    s.unemployed[i] = unemployed + p.baseline_unemployment[i]


def inverse_utility(productivity: float) -> float:
    """Returns 1 / productivity [of the maximum], which is clipped to 0.1 to 3."""
    return 1.0 / min(max(productivity, 0.1), 3.0)


def subsidy_of(i: int, s: State, p: ParamsWithTables) -> float:
    """Returns the daily subsidy of state i [of its maximal productivity]."""
    value: float = p.subsidy[i] * fraction(s.subsidy_level[0], p.num_subsidy_levels)
    return value


def live(i: int, s: State, action: int, key: Key, p: ParamsWithTables) -> None:
    """Phase in which state i sets its level, and its epidemic, unemployment and economy take a step of a day."""
    day, slot = key.step, key.step % TRANSMISSION_LAG
    level, lagged_level = np.int32(s.levels[i, (day - 1) % TRANSMISSION_LAG]), np.int32(s.levels[i, slot])
    new_level = action if action != 0 else level
    s.levels[i, slot] = new_level
    if s.closed_days[i] > 0:
        s.closed_days[i] -= 1
    else:
        s.closed_days[i] = p.cooldown - 1 if action != 0 else 0
    move_people(i, s, lagged_level, day, p)  # type: ignore[arg-type]  # an int32
    row = day - 1 - FILTER_WINDOW + len(p.forgotten_changes)
    forgotten_change = p.forgotten_changes[row, i] if 0 <= row < len(p.forgotten_changes) else 0.0
    update_unemployment(i, s, np.float32(new_level - level), forgotten_change, p)  # type: ignore[arg-type]  # a float32
    unable = (UNABLE_SHARE * s.infected[i] + s.deaths[i]) * WORKING_AGE_SHARE + s.unemployed[i]
    s.productivity[i] = max(0.0, WORKING_AGE_SHARE - unable) * p.production[i] + subsidy_of(i, s, p)
    s.health[i] = p.health_offset[i] - p.health_scale[i] * s.new_deaths[i]
    s.economy[i] = p.economy_offset[i] - p.economy_scale[i] * inverse_utility(s.productivity[i])


def weighted_new_deaths(i: int, s: State, p: ParamsWithTables) -> float:
    value: float = s.new_deaths[i] * p.population_share[i]
    return value


def weighted_net_output(i: int, s: State, p: ParamsWithTables) -> float:
    value: float = (s.productivity[i] - (1.0 + p.interest) * subsidy_of(i, s, p)) * p.production_share[i]
    return value


def weighted_deaths(i: int, s: State, p: ParamsWithTables) -> float:
    value: float = s.deaths[i] * p.population_share[i]
    return value


def weighted_unemployed(i: int, s: State, p: ParamsWithTables) -> float:
    value: float = s.unemployed[i] * p.population_share[i]
    return value


def health_part(i: int, s: State, p: ParamsWithTables) -> float:
    value: float = s.health[i] / np.float32(p.num_states)
    return value


def economy_part(i: int, s: State, p: ParamsWithTables) -> float:
    value: float = s.economy[i] / np.float32(p.num_states)
    return value


def assess(s: State, key: Key, p: ParamsWithTables) -> tuple[int, float, float]:
    """Computes the day and the indices of the planner."""
    constants = p.planner_constants
    health = constants[0] - constants[1] * s.total_new_deaths
    return key.step, health, constants[2] - constants[3] * inverse_utility(s.net_output)


def reward_of_state(i: int, s: State, t: Time, p: ParamsWithTables) -> float:
    weight = p.health_weight[i]
    value: float = weight * s.health[i] + (1.0 - weight) * s.economy[i]
    return value


def reward_of_planner(i: int, s: State, t: Time, p: ParamsWithTables) -> float:
    weight: float = p.planner_constants[4]
    return weight * s.planner_health + (1.0 - weight) * s.planner_economy


def terminated(i: int, s: State, p: ParamsWithTables) -> bool:
    return False


def allowed_levels(i: int, action: int, s: State, p: ParamsWithTables) -> bool:
    return action == 0 or s.closed_days[i] == 0


def allowed_subsidies(i: int, action: int, s: State, p: ParamsWithTables) -> bool:
    return action == 0 or s.day % p.subsidy_interval == 0


def spaces(p: Params) -> dict[str, tuple[Box, Discrete]]:
    # Subsidies add at most max_subsidy / productivity to the productivity, which has no simple bound.
    return {
        "state": (Box(0.0, np.inf, (p.num_states + 13,)), Discrete(NUM_LEVELS + 1)),
        "planner": (Box(0.0, np.inf, (9 * p.num_states + 4,)), Discrete(p.num_subsidy_levels + 1)),
    }


class Metrics(NamedTuple):
    planner_health: Annotated[float, "sum"]
    planner_economy: Annotated[float, "sum"]
    mean_health: Annotated[float, "sum"]  # of the states
    mean_economy: Annotated[float, "sum"]
    deaths_percent: float  # of all people
    unemployed_percent: Annotated[float, "mean"]


def metrics(s: State, p: ParamsWithTables) -> Metrics:
    return Metrics(
        s.planner_health,
        s.planner_economy,
        s.mean_health,
        s.mean_economy,
        100.0 * s.total_deaths,
        100.0 * s.total_unemployed,
    )


def field_ranges(p: Params) -> dict[str, tuple[float, float]]:
    return {
        "susceptible": (-1e12, 1e12),
        "infected": (-1e12, 1e12),
        "levels": (1, NUM_LEVELS),
        "closed_days": (0, p.cooldown - 1),
        "subsidy_level": (0, p.num_subsidy_levels),
        "day": (0, np.iinfo(np.int32).max),
    }


def check(p: Params) -> None:
    require_at_least_one(p, "num_states", "cooldown", "num_subsidy_levels", "subsidy_interval", "delivery_interval")
    require_not_negative(p, "region_seed", "state_health_scaling", "planner_health_scaling", "max_subsidy", "interest")
    require_not_negative(p, "vaccine_rate", "vaccine_start")
    require_finite(p, "state_health_scaling", "planner_health_scaling", "max_subsidy", "interest", "vaccine_rate")


def events(before: State, s: State, p: ParamsWithTables) -> list[tuple[str, str, tuple[int, ...]]]:
    """Returns changes of the rules of states and of subsidies, and the first delivery of vaccines."""
    levels = [state.levels[:, state.day % TRANSMISSION_LAG].astype(int) for state in (before, s)]
    changed = [
        ("stringency", f"stringency {verb} in {np.count_nonzero(mask)} of {p.num_states} states", np.flatnonzero(mask))
        for verb, mask in (("rises", levels[1] > levels[0]), ("falls", levels[1] < levels[0]))
    ]
    by_state = [(kind, text, tuple(states.tolist())) for kind, text, states in changed if len(states)]
    subsidy, last_subsidy = int(s.subsidy_level[0]), int(before.subsidy_level[0])
    verb = "rise" if subsidy > last_subsidy else "fall"
    others = (
        (subsidy != last_subsidy, "subsidy", f"subsidies {verb} to level {subsidy} of {p.num_subsidy_levels}", (p.num_states,)),
        (np.any(s.vaccinated) and not np.any(before.vaccinated), "vaccine", "the first vaccines are delivered", ()),
    )
    return by_state + [(kind, text, planner) for has_happened, kind, text, planner in others if has_happened]


def make_env(regions: EpidemicRegions | None = None) -> MultiAgentEnv:
    """Returns the environment.

    Args:
        regions: the states, for example of `load_regions`; None for synthetic ones by `num_states` and `region_seed`.
    """

    def own_tables(p: Params) -> dict[str, Any]:
        if regions is None:
            return tables(p)
        if p.num_states != len(regions.population):
            raise ValueError(f"num_states is {p.num_states}; it must be {len(regions.population)}, as in the tables.")
        return convert_tables(tables_of(regions, p))

    return MultiAgentEnv(
        state=State,
        params=Params() if regions is None else Params(num_states=len(regions.population)),
        spaces=spaces,
        agents=agents,
        roles=roles,
        tables=own_tables,
        reset=(each("state", reset_state), each("planner", reset_planner)),
        phases=(
            each("planner", set_subsidy),
            each("state", live),
            sum_of("total_new_deaths", weighted_new_deaths, over="state"),
            sum_of("net_output", weighted_net_output, over="state"),
            sum_of("mean_health", health_part, over="state"),
            sum_of("mean_economy", economy_part, over="state"),
            sum_of("total_deaths", weighted_deaths, over="state"),
            sum_of("total_unemployed", weighted_unemployed, over="state"),
            assign(("day", "planner_health", "planner_economy"), assess),
        ),
        reward={"state": reward_of_state, "planner": reward_of_planner},
        terminated=terminated,
        allowed={"state": allowed_levels, "planner": allowed_subsidies},
        observation=observation,
        metrics=metrics,
        structural=(
            "num_states",
            "region_seed",
            "state_health_scaling",
            "planner_health_scaling",
            "num_subsidy_levels",
            "max_subsidy",
            "vaccine_rate",
            "delivery_interval",
        ),
        max_episode_steps=540,
        field_ranges=field_ranges,
        check=check,
        draw=pictures.epidemic_economy,
        events=events,
        render_fps=30,
    )


ENV = make_env()
