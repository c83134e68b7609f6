"""Recorded worlds of RICE-N, and how closely an implementation must follow them; see fixtures/golden_rice/README.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tests.support.rice_model import FOLDER, RiceModel, RiceState

FILES = sorted(FOLDER.glob("rice_*.npz"))
WITHOUT_TRADE = [file for file in FILES if file.stem in ("rice_zeros", "rice_no_mitigation")]
RECORDED_NAMES = {
    "temperature": "global_temperature",
    "carbon": "global_carbon_mass",
    "forcing": "global_exogenous_emissions",
    "land_emissions": "global_land_emissions",
    "capital": "capital_all_regions",
    "labor": "labor_all_regions",
    "technology": "production_factor_all_regions",
    "intensity": "intensity_all_regions",
    "mitigation_cost": "mitigation_cost_all_regions",
    "damage": "damages_all_regions",
    "abatement": "abatement_cost_all_regions",
    "production": "production_all_regions",
    "output": "gross_output_all_regions",
    "investment": "investment_all_regions",
    "consumption": "consumption_all_regions",
    "balance": "current_balance_all_regions",
    "utility": "utility_all_regions",
    "welfare": "social_welfare_all_regions",
    "reward": "reward_all_regions",
    "savings": "savings_all_regions",
    "mitigation": "mitigation_rate_all_regions",
    "export_limit": "max_export_limit_all_regions",
    "depreciation": "capital_depreciation_all_regions",
    "tariff_revenue": "tariff_revenue",
    "imports": "scaled_imports",
    "tariffed_imports": "tariffed_imports",
    "tariffs": "tariffs",
    "min_mitigation": "minimum_mitigation_rate_all_regions",
    "promises": "promised_mitigation_rate",
    "requests": "requested_mitigation_rate",
    "decisions": "proposal_decisions",
}
"""{field of the model's state: its name in the recording}; the last four are recorded with negotiation alone."""
DISTINCT = ("capital", "imports", "tariffed_imports", "tariff_revenue", "balance")
ILL_CONDITIONED = ("consumption", "utility", "welfare", "reward")


class Tolerances(NamedTuple):
    """The largest differences from the recording after one step from a recorded state, of an implementation in float64."""

    relative: float = 1.6e-7  # of fields that are not named below
    capital: float = 2.8e-7  # relative
    imports: float = 2e-7  # relative to the output of the importer
    balance: float = 1.2e-6  # relative to the trade of the region
    utility: float = 6e-5  # relative, of regions that consume more than 1e-4 of their output at home
    root_consumption: float = 2e-4  # of the root of consumption, relative to the root of output; holds always


class RiceRecording:
    """The contents of a file of recorded steps, under the names of the model.

    Attributes:
        actions: (K, 27, 57) or (K, 27, 138) int8.
        obs: (K + 1, 3, D) float32, of the regions `obs_regions`.
        reward: (K, 27) float32.
        done: (K,) bool.
        mitigation_mask: (K + 1, 27, 10) bool.
        states: {field: (K + 1, ...) float32}.
    """

    def __init__(self, file: Path) -> None:
        with np.load(file, allow_pickle=False) as arrays:
            contents = dict(arrays)
        self.params: dict[str, Any] = json.loads(str(contents["params_json"]))
        self.negotiation: bool = self.params["negotiation_on"]
        self.actions, self.reward, self.done = contents["actions"], contents["reward"], contents["done"]
        self.obs, self.obs_regions = contents["obs_features"], contents["obs_regions"]
        self.mitigation_mask = contents["mitigation_mask"].astype(bool)
        names = {field: f"state_{name}" for field, name in RECORDED_NAMES.items()}
        self.states = {field: contents[name] for field, name in names.items() if name in contents}
        for name in ("forcing", "land_emissions", "tariff_revenue"):
            self.states[name] = self.states[name][..., 0]

    def state(self, t: int) -> RiceState:
        """Returns the state after step t, in float64."""
        fields = {name: values[t].astype(np.float64) for name, values in self.states.items()}
        return RiceState(step_count=t, activity_count=t // 3 if self.negotiation else t, **fields)

    def model(self, t: int) -> RiceModel:
        """Returns a model in the state after step t."""
        model = RiceModel(self.negotiation, self.params["num_discrete_action_levels"])
        model.state = self.state(t)
        return model

    def check_state(self, t: int, fields: dict[str, Any], home_consumption: Any, tolerances: Tolerances) -> None:
        """Compares the state {field: array} after the step from the recorded state t - 1 to t with the recorded state t.

        Args:
            t: number of the step, 1 to K.
            fields: the fields of the state, by the names of the model.
            home_consumption: (27,) consumption of what a region itself produces, which the recording lacks.
            tolerances: the largest differences.
        """
        expected = {name: values[t].astype(np.float64) for name, values in self.states.items()}
        for name in expected.keys() - {*DISTINCT, *ILL_CONDITIONED}:
            np.testing.assert_allclose(fields[name], expected[name], rtol=tolerances.relative, atol=0, err_msg=name)
        np.testing.assert_allclose(fields["capital"], expected["capital"], rtol=tolerances.capital, atol=0)

        def check(name: str, scale: np.ndarray, tolerance: float) -> None:
            difference = np.abs(fields[name] - expected[name])
            assert (difference <= tolerance * scale).all(), f"{name}: {np.max(difference - tolerance * scale)} too far"

        output, imports = expected["output"], expected["imports"]
        for name in ("imports", "tariffed_imports"):
            check(name, output[:, None], tolerances.imports)
        check("tariff_revenue", output, tolerances.imports)
        check("balance", imports.sum(0) + imports.sum(1) + np.abs(expected["balance"]), tolerances.balance)
        consuming = home_consumption > 1e-4 * output
        for name in ILL_CONDITIONED:
            check(name, np.where(consuming, np.abs(expected[name]), np.inf), tolerances.utility)
        roots = np.abs(np.sqrt(fields["consumption"]) - np.sqrt(expected["consumption"]))
        assert (roots <= tolerances.root_consumption * np.sqrt(output)).all()
