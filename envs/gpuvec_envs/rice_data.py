"""Constants and regions of RICE-N, the climate economy of Zhang et al. (2022), arXiv 2208.07004.

The numbers are those of the program that its authors published (https://github.com/mila-iqia/climate-cooperation-competition,
commit 148ed85), which is under the BSD-3-Clause licence, Copyright (c) 2022 Salesforce and MILA. The model descends from RICE
(Nordhaus and Yang, 1996, "A regional dynamic general-equilibrium model of alternative climate-change strategies").
"""

import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpuvec import Floats

REGIONS_FILE = Path(__file__).parent / "data" / "rice_regions.csv"
"""The file of the 27 regions, a row each."""

NUM_REGIONS = 27
NUM_ACTIVITY_STEPS = 20
YEARS_PER_STEP = 5.0  # [yr] of an activity step

# Climate
TEMPERATURE_START = (0.85, 0.0068)  # of air and deep ocean, above that of 1750 [degC]
TEMPERATURE_TRANSITION = ((0.8718, 0.0088), (0.025, 0.975))  # per activity step
TEMPERATURE_PER_FORCING = 0.1005  # of air [degC m2/W] per activity step
FORCING_PER_DOUBLING = 3.6813  # of the carbon in the air [W/m2]
FORCING_START, FORCING_END = 0.5, 1.0  # by other gases [W/m2]
FORCING_STEPS = 20  # activity steps from the start to the end
CARBON_1750 = 588.0  # in the air [GtC]
CARBON_START = (851.0, 460.0, 1740.0)  # in air, upper ocean and deep ocean [GtC]
CARBON_TRANSITION = ((0.88, 0.196, 0.0), (0.12, 0.797, 0.001465), (0.0, 0.007, 0.99853488))  # per activity step
CARBON_PER_EMISSIONS = 1.36388  # in the air, per activity step [GtC yr/GtCO2]
LAND_EMISSIONS = 2.6  # of all regions [GtCO2/yr]
LAND_EMISSIONS_DECLINE = 0.001  # per activity step

# Economy
CAPITAL_ELASTICITY = 0.3  # gamma, of production
DEPRECIATION_RATE = 0.1  # of capital [1/yr]
LONG_RUN_GROWTH = 0.0033  # of technology, the logarithm of its factor per activity step
DAMAGE_COEFFICIENTS = (0.0, 0.00236)  # of the temperature [1/degC] and of its power
DAMAGE_EXPONENT = 2
ABATEMENT_EXPONENT = 2.6  # of the mitigation rate
BACKSTOP_PRICE = 550.0  # at which all emissions are abated [USD/tCO2]
BACKSTOP_PRICE_DECLINE = 0.001  # per activity step
INTENSITY_DECLINE = 0.0025  # of carbon intensity [1/yr]
INTENSITY_DECLINE_SLOWDOWN = 0.1  # [1/yr]

# Trade and utility
BALANCE_INTEREST = 0.1  # per activity step
DEBT_MULTIPLIER = 10.0  # a debt of a tenth of the initial capital stops all imports
SUBSTITUTION_EXPONENT = 0.5  # of domestic and foreign goods
DOMESTIC_WEIGHT = 0.5
FOREIGN_WEIGHT = 0.5 / 26  # of each other region
RISK_AVERSION = 1.45  # alpha
UTILITY_OFFSET = 1.0  # added to consumption per person
TIME_PREFERENCE = 0.015  # rho [1/yr]

# Bounds of the indices of the competition that used RICE-N, see docs/rules/rice_n.md
SMALLEST_RISE, LARGEST_RISE = 1.2506777, 7.0067389  # of the air temperature in an episode [degC]
SMALLEST_OUTPUT, LARGEST_OUTPUT = 606.57278, 9673.5328  # of all regions, summed over activity steps [1e12 USD/yr]

RECORDED_COLUMNS = {
    "initial_labor": "L_0",
    "final_labor": "L_a",
    "labor_speed": "l_g",
    "initial_technology": "A_0",
    "technology_growth": "g_A",
    "technology_slowdown": "delta_A",
    "initial_intensity": "sigma_0",
    "initial_capital": "K_0",
}
"""{field of `Regions`: its column in the file}"""


class Regions(NamedTuple):
    """The numbers in which the regions differ, (27,) float32 each."""

    initial_labor: Floats  # [1e6 people]
    final_labor: Floats  # the limit that labor approaches [1e6 people]
    labor_speed: Floats  # exponent of the approach to the limit, per activity step
    initial_technology: Floats  # total factor productivity
    technology_growth: Floats  # initial growth of its factor, per activity step
    technology_slowdown: Floats  # decline of the growth [1/yr]
    initial_intensity: Floats  # of carbon [GtCO2 / 1e12 USD]
    initial_capital: Floats  # [1e12 USD]


def load_regions() -> Regions:
    """Returns the numbers of the regions in the order of the file, which is the order of the agents."""
    with REGIONS_FILE.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return Regions(
        *(np.array([row[column] for row in rows], np.float64).astype(np.float32) for column in RECORDED_COLUMNS.values())
    )
