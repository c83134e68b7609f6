"""The state, the parameters and the tables of `rice_n`."""

from typing import Annotated, NamedTuple

import numpy as np

from gpuvec import Bools, Floats, UInt8s
from gpuvec_envs.rice_data import (
    ABATEMENT_EXPONENT,
    BACKSTOP_PRICE,
    BACKSTOP_PRICE_DECLINE,
    DEPRECIATION_RATE,
    FORCING_END,
    FORCING_START,
    FORCING_STEPS,
    INTENSITY_DECLINE,
    INTENSITY_DECLINE_SLOWDOWN,
    LAND_EMISSIONS,
    LAND_EMISSIONS_DECLINE,
    NUM_ACTIVITY_STEPS,
    NUM_REGIONS,
    TIME_PREFERENCE,
    YEARS_PER_STEP,
    load_regions,
)

ACTIVITY, PROPOSAL, EVALUATION = 0, 1, 2  # stages
NUM_STAGES = 3


class State(NamedTuple):
    # The world
    stage: int  # of the last step
    activity_count: int  # activity steps since the reset
    air_temperature: float  # above that of 1750 [degC]
    ocean_temperature: float
    air_carbon: float  # [GtC]
    upper_ocean_carbon: float
    deep_ocean_carbon: float
    damage: float  # the part of production that warming leaves
    emissions: float  # of all regions [GtCO2/yr]
    world_output: float  # [1e12 USD/yr]
    # Regions
    capital: Floats  # [1e12 USD]
    labor: Floats  # [1e6 people]
    technology: Floats  # total factor productivity
    intensity: Floats  # of carbon [GtCO2 / 1e12 USD]
    mitigation_cost: Floats  # the part of production that full mitigation costs
    abatement: Floats  # the part of production that the mitigation of the last activity step cost
    production: Floats  # before damage and abatement [1e12 USD/yr]
    output: Floats  # [1e12 USD/yr]
    investment: Floats  # [1e12 USD/yr]
    home_consumption: Floats  # of what the region produces itself [1e12 USD/yr]
    consumption: Floats  # the aggregate of domestic and foreign goods [1e12 USD/yr]
    exports: Floats  # [1e12 USD/yr]
    balance: Floats  # of trade [1e12 USD]
    utility: Floats
    welfare: Floats  # discounted utility
    import_scale: Floats  # imports that a level of a wish stands for, before the limits of exporters [1e12 USD/yr]
    export_scale: Floats  # the part of the demand that an exporter meets
    savings: UInt8s  # levels, as all below
    mitigation: UInt8s
    export_limit: UInt8s
    min_mitigation: UInt8s  # the least level that the region has agreed to
    # Pairs (i, j), chosen by region i
    wishes: Annotated[UInt8s, "pairs"]  # imports of i from j
    tariffs: Annotated[UInt8s, "pairs"]  # on imports of i from j, in force at the next activity step
    promises: Annotated[UInt8s, "pairs"]  # mitigation of i, proposed to j
    requests: Annotated[UInt8s, "pairs"]  # mitigation of j, requested by i
    decisions: Annotated[Bools, "pairs"]  # whether i accepts the proposal of j


class Params(NamedTuple):
    negotiation: bool = False
    num_action_levels: int = 10  # of rates


class ParamsWithTables(Params):
    # Of regions, (27,)
    initial_labor: Floats
    final_labor: Floats
    labor_speed: Floats
    initial_technology: Floats
    technology_growth: Floats
    technology_slowdown: Floats
    initial_intensity: Floats
    initial_capital: Floats
    # Of activity steps, (21,), with element 0 for the time before the first
    forcing: Floats  # [W/m2]
    land_emissions: Floats  # of a region [GtCO2/yr]
    remaining_capital: Floats  # the part that depreciation leaves
    backstop: Floats  # [1e12 USD/GtCO2], the cost of full mitigation divided by the intensity
    intensity_factor: Floats
    discount: Floats


def tables(p: Params) -> dict[str, Floats]:
    """Returns what differs between regions, (27,), and between activity steps, (21,)."""
    elapsed = np.arange(NUM_ACTIVITY_STEPS)  # activity steps before this one
    years = YEARS_PER_STEP * elapsed
    rise = FORCING_END - FORCING_START
    schedules = {
        "forcing": FORCING_START + np.minimum(rise, rise * elapsed / FORCING_STEPS),
        "land_emissions": LAND_EMISSIONS * (1.0 - LAND_EMISSIONS_DECLINE) ** elapsed / NUM_REGIONS,
        "remaining_capital": np.full(NUM_ACTIVITY_STEPS, (1.0 - DEPRECIATION_RATE) ** YEARS_PER_STEP),
        "backstop": BACKSTOP_PRICE / (1000.0 * ABATEMENT_EXPONENT) * (1.0 - BACKSTOP_PRICE_DECLINE) ** elapsed,
        "intensity_factor": np.exp(-INTENSITY_DECLINE * YEARS_PER_STEP * (1.0 - INTENSITY_DECLINE_SLOWDOWN) ** years),
        "discount": (1.0 + TIME_PREFERENCE) ** -(years + YEARS_PER_STEP),
    }
    return load_regions()._asdict() | {name: np.r_[0.0, values].astype(np.float32) for name, values in schedules.items()}
