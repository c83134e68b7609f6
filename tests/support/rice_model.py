"""The RICE-N climate economy of one world in NumPy and float64, with which tests compare the environment and the recordings.

The equations are those of docs/rules/rice_n.md, in its order, and the letters in comments are its letters. Constants and
regions are read from fixtures/golden_rice. All state is public, so that a test can set it from a recorded state.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parents[1] / "fixtures" / "golden_rice"
NUM_REGIONS = 27
NUM_ACTIVITY_STEPS = 20
ACTIVITY, PROPOSE, EVALUATE = range(3)  # stages of a world with negotiation, the number of the step modulo 3


def load_constants() -> dict[str, Any]:
    """Returns the constants of the world, and of the regions those that all share, under their names in the file."""
    constants = json.loads((FOLDER / "rice_constants.json").read_text())
    for group in ("world", "region_shared", "armington"):
        constants |= constants.pop(group)
    return constants


def load_regions() -> dict[str, np.ndarray]:
    """Returns the columns of the file of regions, (27,) float64 each."""
    with (FOLDER / "rice_regions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}


def region_zeros() -> np.ndarray:
    """Returns zeros of the shape of a field of the regions, (27,)."""
    return np.zeros(NUM_REGIONS)


def pair_zeros() -> np.ndarray:
    """Returns zeros of the shape of a field of the pairs of regions, (27, 27)."""
    return np.zeros((NUM_REGIONS, NUM_REGIONS))


@dataclass
class RiceState:
    """The state of one world, N regions; in pairs (i, j) the first index is the region that decides."""

    step_count: int = 0  # t
    activity_count: int = 0  # k
    temperature: np.ndarray = field(default_factory=lambda: np.zeros(2))  # T, of air and deep ocean [degC above 1750]
    carbon: np.ndarray = field(default_factory=lambda: np.zeros(3))  # M, in air, upper and deep ocean [GtC]
    forcing: float = 0.0  # FX [W/m2]
    land_emissions: float = 0.0  # EL of one region [GtCO2/yr]
    capital: np.ndarray = field(default_factory=region_zeros)  # K [1e12 USD]
    labor: np.ndarray = field(default_factory=region_zeros)  # L [1e6 people]
    technology: np.ndarray = field(default_factory=region_zeros)  # A
    intensity: np.ndarray = field(default_factory=region_zeros)  # sigma [GtCO2 / 1e12 USD]
    mitigation_cost: np.ndarray = field(default_factory=region_zeros)  # theta1
    damage: np.ndarray = field(default_factory=region_zeros)  # Om, the factor that remains
    abatement: np.ndarray = field(default_factory=region_zeros)  # Lam
    production: np.ndarray = field(default_factory=region_zeros)  # Y [1e12 USD/yr]
    output: np.ndarray = field(default_factory=region_zeros)  # Q [1e12 USD/yr]
    investment: np.ndarray = field(default_factory=region_zeros)  # I [1e12 USD/yr]
    home_consumption: np.ndarray = field(default_factory=region_zeros)  # c [1e12 USD/yr]
    consumption: np.ndarray = field(default_factory=region_zeros)  # C, the aggregate [1e12 USD/yr]
    balance: np.ndarray = field(default_factory=region_zeros)  # B [1e12 USD]
    utility: np.ndarray = field(default_factory=region_zeros)  # U
    welfare: np.ndarray = field(default_factory=region_zeros)
    reward: np.ndarray = field(default_factory=region_zeros)
    savings: np.ndarray = field(default_factory=region_zeros)  # s
    mitigation: np.ndarray = field(default_factory=region_zeros)  # mu
    export_limit: np.ndarray = field(default_factory=region_zeros)  # x
    depreciation: np.ndarray = field(default_factory=region_zeros)  # the part of capital that remains after an activity step
    tariff_revenue: np.ndarray = field(default_factory=region_zeros)
    imports: np.ndarray = field(default_factory=pair_zeros)  # X [1e12 USD/yr]
    tariffed_imports: np.ndarray = field(default_factory=pair_zeros)  # C of pairs [1e12 USD/yr]
    tariffs: np.ndarray = field(default_factory=pair_zeros)  # tau, in force at the next activity step
    min_mitigation: np.ndarray = field(default_factory=region_zeros)  # minmit
    promises: np.ndarray = field(default_factory=pair_zeros)  # promise
    requests: np.ndarray = field(default_factory=pair_zeros)  # request
    decisions: np.ndarray = field(default_factory=pair_zeros)  # dec


class RiceModel:
    """One world.

    Args:
        negotiation: whether a stage of proposals and one of decisions precede each activity step.
        num_levels: n, the number of levels of a rate.
    """

    def __init__(self, negotiation: bool = False, num_levels: int = 10) -> None:
        self.negotiation, self.num_levels = negotiation, num_levels
        self.constants, self.regions = load_constants(), load_regions()
        self.num_steps = NUM_ACTIVITY_STEPS * (3 if negotiation else 1)
        self.state = RiceState()
        self.reset()

    @property
    def stage(self) -> int:
        """The stage of the last step; without negotiation it is always ACTIVITY."""
        return self.state.step_count % 3 if self.negotiation else ACTIVITY

    def reset(self) -> np.ndarray:
        """Returns the observation (27, D) after a reset, D being 1043, or 1207 with negotiation."""
        c, regions = self.constants, self.regions
        self.state = RiceState(
            temperature=np.array([c["T_AT_0"], c["T_LO_0"]]),
            carbon=np.array([c["M_AT_0"], c["M_UP_0"], c["M_LO_0"]], float),
            capital=regions["K_0"].copy(),
            labor=regions["L_0"].copy(),
            technology=regions["A_0"].copy(),
            intensity=regions["sigma_0"].copy(),
        )
        return self.observe()

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
        """Returns (observation, reward, done), of shapes (27, D) and (27,).

        Args:
            actions: (27, 57) levels, or (27, 138) with negotiation.
        """
        s, actions = self.state, np.asarray(actions, float)
        s.step_count += 1
        if self.stage == PROPOSE:
            self.propose(actions)
        elif self.stage == EVALUATE:
            self.evaluate(actions)
        else:
            self.act(actions)
        return self.observe(), s.reward.copy(), s.activity_count == NUM_ACTIVITY_STEPS

    def propose(self, actions: np.ndarray) -> None:
        """Each region i proposes to each region j its own mitigation, and that of j."""
        s, pairs = self.state, actions[:, 57:111].reshape(NUM_REGIONS, NUM_REGIONS, 2) / self.num_levels
        s.promises, s.requests = pairs[..., 0].copy(), pairs[..., 1].copy()
        s.reward = np.zeros(NUM_REGIONS)

    def evaluate(self, actions: np.ndarray) -> None:
        """Each region i accepts or rejects the proposal of each region j."""
        s = self.state
        s.decisions = actions[:, 111:138].copy()
        np.fill_diagonal(s.decisions, 0.0)
        s.min_mitigation = np.maximum(s.promises * s.decisions.T, s.requests.T * s.decisions).max(1)
        s.reward = np.zeros(NUM_REGIONS)

    def act(self, actions: np.ndarray) -> None:
        """The activity step: every equation reads the climate, the capital and the tariffs of the previous activity step."""
        s, rates = self.state, actions / self.num_levels
        s.activity_count += 1
        s.savings, s.mitigation, s.export_limit = rates[:, 0].copy(), rates[:, 1].copy(), rates[:, 2].copy()
        self.produce()
        self.trade(rates[:, 30:57])
        self.consume()
        self.settle_balance()
        self.change_climate()
        self.grow()
        s.tariffs = rates[:, 3:30].copy()

    def produce(self) -> None:
        """Equations 1 and 2: forcing, land emissions, output and investment."""
        s, c, k = self.state, self.constants, self.state.activity_count
        rise = c["f_1"] - c["f_0"]
        s.forcing = c["f_0"] + min(rise, rise * (k - 1) / c["t_f"])
        s.land_emissions = c["E_L0"] * (1.0 - c["delta_EL"]) ** (k - 1) / NUM_REGIONS

        s.mitigation_cost = c["p_b"] / (1000.0 * c["theta_2"]) * (1.0 - c["delta_pb"]) ** (k - 1) * s.intensity
        air = s.temperature[0]
        s.damage = np.full(NUM_REGIONS, 1.0 / (1.0 + c["a_1"] * air + c["a_2"] * air ** c["a_3"]))
        s.abatement = s.mitigation_cost * s.mitigation ** c["theta_2"]
        s.production = s.technology * s.capital ** c["gamma"] * (s.labor / 1000.0) ** (1.0 - c["gamma"])
        s.output = s.damage * (1.0 - s.abatement) * s.production
        s.investment = s.savings * s.output

    def trade(self, wishes: np.ndarray) -> None:
        """Equations 3 to 5: imports within the means of the importer and the limits of the exporter, and tariffs on them.

        Args:
            wishes: (27, 27) imports that region i wants from region j, as parts of the output of i.
        """
        s, c = self.state, self.constants
        debt = s.balance * (1.0 + c["balance_interest_rate"])
        wanted = wishes * s.output[:, None]
        np.fill_diagonal(wanted, 0.0)
        row_sums = wanted.sum(1)
        wanted *= np.where(row_sums > s.output, s.output / np.maximum(row_sums, 1e-300), 1.0)[:, None]
        wanted *= 1.0 + np.clip(c["debt_capital_multiplier"] * debt / self.regions["K_0"], -1.0, 0.0)[:, None]

        limits = np.minimum(s.export_limit * s.output, s.output - s.investment)
        column_sums = wanted.sum(0)
        s.imports = wanted * np.where(column_sums > limits, limits / np.maximum(column_sums, 1e-300), 1.0)

        s.tariffed_imports = s.imports * (1.0 - s.tariffs)
        s.tariff_revenue = (s.imports * s.tariffs).sum(1)

    def consume(self) -> None:
        """Equations 6 and 7: consumption, utility and welfare."""
        s, c, k = self.state, self.constants, self.state.activity_count
        s.home_consumption = np.maximum(0.0, s.output - s.investment - s.imports.sum(0))
        foreign_weight = 0.5 / (NUM_REGIONS - 1)
        power = c["sub_rate"]
        home = c["dom_pref"] * s.home_consumption**power
        s.consumption = (home + foreign_weight * (s.tariffed_imports**power).sum(1)) ** (1.0 / power)

        people, curvature = s.labor / 1000.0, 1.0 - c["alpha"]
        s.utility = people * ((s.consumption / people + c["utility_offset"]) ** curvature - 1.0) / curvature
        s.reward = s.utility.copy()
        s.welfare = s.utility / (1.0 + c["rho"]) ** (c["Delta"] * k)

    def settle_balance(self) -> None:
        """Equation 8: the balance of trade."""
        s, c = self.state, self.constants
        exports, imports = s.imports.sum(0), s.imports.sum(1)
        s.balance = s.balance * (1.0 + c["balance_interest_rate"]) + c["Delta"] * (exports - imports)

    def change_climate(self) -> None:
        """Equations 9 and 10: temperature and carbon."""
        s, c = self.state, self.constants
        radiation = c["F_2x"] * np.log2(s.carbon[0] / c["M_AT_1750"]) + s.forcing
        emissions = (s.intensity * (1.0 - s.mitigation) * s.production + s.land_emissions).sum()
        s.temperature = np.array(c["Phi_T"]) @ s.temperature + np.array(c["B_T"]) * radiation
        s.carbon = np.array(c["Phi_M"]) @ s.carbon + np.array(c["B_M"]) * emissions

    def grow(self) -> None:
        """Equation 11: capital, labor, technology and carbon intensity."""
        s, c, regions = self.state, self.constants, self.regions
        years = c["Delta"]
        elapsed = years * (s.activity_count - 1)
        s.depreciation = np.full(NUM_REGIONS, (1.0 - c["delta_K"]) ** years)
        s.capital = s.depreciation * s.capital + years * s.investment
        s.labor = s.labor * ((1.0 + regions["L_a"]) / (1.0 + s.labor)) ** regions["l_g"]
        growth = np.exp(c["long_run_tfp_growth"]) + regions["g_A"] * np.exp(-regions["delta_A"] * elapsed)
        s.technology = s.technology * growth
        s.intensity = s.intensity * np.exp(-c["g_sigma"] * (1.0 - c["delta_sigma"]) ** elapsed * years)

    def observe(self) -> np.ndarray:
        """Returns the observation of each region, (27, D)."""
        s = self.state
        time = [s.step_count / 100.0] + ([self.stage] if self.negotiation else [])
        world = [s.temperature / 10.0, s.carbon / 1e4, [s.forcing, s.land_emissions], time]
        economy = [s.capital / 1e4, s.depreciation, s.labor / 1e4, s.output / 1e3, s.investment / 1e3, s.consumption / 1e3]
        choices = [s.savings, s.mitigation, s.export_limit, s.balance / 1e3, s.tariffs.ravel() / 100.0]
        public = np.concatenate(world + economy + choices)
        own = [s.technology / 100.0, s.intensity / 0.1, s.mitigation_cost, s.damage, s.abatement, s.production / 1e3]
        own += [s.utility, s.welfare, s.reward]
        if self.negotiation:
            own.append(s.min_mitigation)
        blocks = [np.eye(NUM_REGIONS), np.tile(public, (NUM_REGIONS, 1)), np.stack(own, 1)]
        if self.negotiation:
            blocks += [s.promises, s.promises.T, s.requests, s.requests.T, s.decisions, s.decisions.T]
        return np.concatenate(blocks, 1)

    def mitigation_mask(self) -> np.ndarray:
        """Returns for each region and each level of mitigation whether the level is allowed, (27, n) bool."""
        smallest = np.array([round(rate * self.num_levels) for rate in self.state.min_mitigation.tolist()])
        return np.arange(self.num_levels) >= smallest[:, None]

    def action_mask(self) -> np.ndarray:
        """Returns for each region and each value of each component of the action whether it is allowed, (27, N) bool.

        N is 57 n, and 111 n + 54 with negotiation.
        """
        n = self.num_levels
        mask = np.ones((NUM_REGIONS, 111 * n + 54 if self.negotiation else 57 * n), bool)
        mask[:, n : 2 * n] = self.mitigation_mask()
        return mask
