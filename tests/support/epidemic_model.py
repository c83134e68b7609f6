"""A float64 model of one world of the epidemic economy, written from its rules alone.

It shares no code with `gpuvec_envs`: the unemployment filter is the sum over the window of 600 days, and not its recursion.
"""

from typing import NamedTuple

import numpy as np

RECOVERY_RATE = 1.0 / 14.0
DEATH_RATE = 0.02
LAG = 29
NUM_LEVELS = 10
DECAYS = (27.72427749633789, 62.91925048828125, 129.2318572998047, 264.43182373046875, 542.06005859375)
WINDOW = 600
GDP = 65_300.0
VALUE_OF_LIFE = 1.0e7


class Settings(NamedTuple):
    """The configuration of the published training."""

    episode_length: int = 540
    working_age_share: float = 0.6
    unable_share: float = 0.1
    interest: float = 0.03
    risk_aversion: float = 2.0
    state_health_scaling: float = 0.3
    planner_health_scaling: float = 0.45
    cooldown: int = 28
    num_subsidy_levels: int = 20
    subsidy_interval: int = 90
    max_subsidy: float = 20_000.0  # [USD/person/year]
    vaccine_rate: float = 3_000.0  # [1/million people/day]
    delivery_interval: int = 1
    vaccine_start: int = 296


class Step(NamedTuple):
    """What a reset or a step returns; rewards and indices are 0 after a reset."""

    state_obs: np.ndarray  # (N, N + 13)
    planner_obs: np.ndarray  # (9 N + 4,)
    state_mask: np.ndarray  # (N, 11)
    planner_mask: np.ndarray  # (21,)
    state_reward: np.ndarray  # (N,)
    planner_reward: float
    done: bool


def crra(share, risk_aversion):
    """Returns the daily utility of a day's productivity, given as a share of a year's maximum."""
    clipped = np.clip(365.0 * share, 0.1, 3.0)
    return (1.0 + (clipped ** (1.0 - risk_aversion) - 1.0) / (1.0 - risk_aversion)) / 365.0


def normalized(value, minimum, maximum):
    return (value - minimum) / (maximum - minimum + 1e-10)


def scaled_weight(weight, scaling):
    """Returns the weight of health after the odds of health against the economy were multiplied by `scaling`."""
    odds = scaling * weight / (1.0 - weight)
    return odds / (1.0 + odds)


class EpidemicModel:
    """One world of N states and a planner; `reset` starts an episode and `step` continues it."""

    def __init__(self, regions, **settings):
        self.regions, self.settings = regions, Settings(**settings)
        r, c = regions, self.settings
        self.population = np.asarray(r.population, np.float64)
        self.total_population = self.population.sum()
        open_unemployed = (np.log(2.0) + r.baseline_unemployment) * self.population / 100.0
        self.workforce = int(self.total_population * c.working_age_share - open_unemployed.sum())
        self.worker_productivity = GDP / (self.workforce / self.total_population) / 365.0
        self.max_productivity = (self.population * c.working_age_share - open_unemployed) * self.worker_productivity
        self.year = 365.0 * self.max_productivity
        self.delivery = np.floor(c.delivery_interval * c.vaccine_rate * self.population / 1e6)
        self.max_subsidy = self.population * c.max_subsidy / 365.0
        self.health_weight = scaled_weight(r.health_weight, c.state_health_scaling)
        self.planner_health_weight = scaled_weight(r.planner_health_weight, c.planner_health_scaling)
        self.window = np.array([[np.exp(-age / decay) for age in range(WINDOW)] for decay in DECAYS])

    @property
    def level(self):
        """The current stringency levels, (N,)."""
        return self.levels[-1]

    def level_at(self, day):
        """Returns the stringency levels on a day, which is negative before the start."""
        return self.levels[WINDOW + day]

    def reset(self):
        r = self.regions
        self.day = 0
        self.levels = [np.array(row, np.int64) for row in r.past_levels]
        self.susceptible, self.infected, self.recovered, self.vaccinated, self.unemployed = (
            np.array(x, np.float64) for x in (r.susceptible, r.infected, r.recovered, r.vaccinated, r.unemployed)
        )
        self.deaths = DEATH_RATE * (self.recovered - self.vaccinated)
        n = len(self.population)
        self.subsidy, self.productivity = np.zeros(n), np.zeros(n)
        self.subsidy_level, self.until = 0, np.zeros(n, np.int64)
        self.raw_health, self.raw_economic, self.raw_planner_health, self.raw_planner_economic = [], [], [], []
        return self.result(np.zeros(n), 0.0)

    def step(self, state_actions, planner_action):
        c, state_actions = self.settings, np.asarray(state_actions)
        self.day += 1
        self.levels.append(np.where(state_actions == 0, self.level, state_actions))
        due = self.day == self.until + 1
        self.until = self.until + due * np.where(state_actions == 0, 1, c.cooldown)
        if (self.day - 1) % c.subsidy_interval == 0:
            self.subsidy_level = int(planner_action)
        self.subsidy = self.subsidy_level / c.num_subsidy_levels * self.max_subsidy
        delivered = self.day >= c.vaccine_start and self.day % c.delivery_interval == 0
        previous_deaths = self.deaths
        self.spread(self.delivery if delivered else np.zeros_like(self.delivery))
        self.unemployed = (self.unemployment_response() + self.regions.baseline_unemployment) * self.population / 100.0
        unable = (c.unable_share * self.infected + self.deaths) * c.working_age_share + self.unemployed
        working = np.maximum(0.0, self.population * c.working_age_share - unable)
        self.productivity = working * self.worker_productivity + self.subsidy
        return self.result(*self.rewards(self.deaths - previous_deaths))

    def spread(self, doses):
        """Moves people between the compartments of the epidemic for one day."""
        r, s, i = self.regions, self.susceptible, self.infected
        transmission = r.transmission_intercept + r.transmission_slope * self.level_at(self.day - LAG)
        protected, used = np.minimum(1.0, doses / (s + 1e-10)), np.minimum(doses, s)
        change_s = -transmission * (s / self.population) * i * (1.0 - protected) - used
        change_r = RECOVERY_RATE * i + used
        self.susceptible = np.maximum(0.0, s + change_s)
        self.infected = np.maximum(0.0, i - change_s - change_r)
        self.recovered = np.maximum(0.0, self.recovered + change_r)
        self.vaccinated = np.maximum(0.0, self.vaccinated + used)
        self.deaths = DEATH_RATE * (self.recovered - self.vaccinated)

    def unemployment_response(self):
        """Returns the softplus of the weighted sums over the changes of the last 600 days [% of the population]."""
        last = np.array(self.levels[-(WINDOW + 1) :])
        changes = (last[1:] - last[:-1])[::-1]  # (600, N), the newest first
        x = np.einsum("nk,ka,an->n", self.regions.unemployment_weights, self.window, changes, optimize=True)
        return np.array([np.log(1.0 + np.exp(value)) if value <= 20.0 else value for value in x])

    def rewards(self, deaths):
        """Returns the rewards of the states and of the planner for the deaths of a day, (N,)."""
        r, c = self.regions, self.settings
        self.raw_health.append(-deaths * VALUE_OF_LIFE / self.year)
        self.raw_economic.append(crra(self.productivity / self.year, c.risk_aversion))
        self.raw_planner_health.append(-deaths.sum() * VALUE_OF_LIFE / self.year.sum())
        net = self.productivity.sum() - (1.0 + c.interest) * self.subsidy.sum()
        self.raw_planner_economic.append(crra(net / self.year.sum(), c.risk_aversion))
        health = normalized(self.raw_health[-1], r.health_min, r.health_max)
        economic = normalized(self.raw_economic[-1], r.economic_min, r.economic_max)
        planner_health = normalized(self.raw_planner_health[-1], r.planner_health_min, r.planner_health_max)
        planner_economic = normalized(self.raw_planner_economic[-1], r.planner_economic_min, r.planner_economic_max)
        weight, planner_weight = self.health_weight, self.planner_health_weight
        return weight * health + (1.0 - weight) * economic, float(
            planner_weight * planner_health + (1.0 - planner_weight) * planner_economic
        )

    def days_to_vaccines(self):
        """Returns the time to the next delivery, as a share of the interval between deliveries."""
        w, start, day = self.settings.delivery_interval, self.settings.vaccine_start, self.day + 1
        first = -(-start // w) * w
        return (min(1.0, (first - day) / w) if day <= first else w - day % w) / w

    def result(self, state_reward, planner_reward):
        c, n = self.settings, len(self.population)
        people = (self.susceptible, self.infected, self.recovered, self.deaths, self.vaccinated, self.unemployed)
        of_states = np.stack(
            [x / self.population for x in people]
            + [self.productivity / self.max_productivity]
            + [self.level_at(self.day - LAG + 1) / NUM_LEVELS, self.level / NUM_LEVELS],
            axis=1,
        )
        to_subsidy = (c.subsidy_interval - self.day % c.subsidy_interval) / c.subsidy_interval
        of_world = np.array(
            [
                self.day / c.episode_length,
                to_subsidy,
                self.subsidy_level / c.num_subsidy_levels,
                self.days_to_vaccines(),
            ]
        )
        state_mask = np.ones((n, NUM_LEVELS + 1), bool)
        state_mask[:, 1:] = (self.day >= self.until)[:, None]
        planner_mask = np.ones(c.num_subsidy_levels + 1, bool)
        planner_mask[1:] = self.day % c.subsidy_interval == 0
        return Step(
            np.concatenate([np.eye(n), of_states, np.tile(of_world, (n, 1))], axis=1),
            np.concatenate([of_states.T.ravel(), of_world]),
            state_mask,
            planner_mask,
            state_reward,
            planner_reward,
            self.day >= c.episode_length,
        )
