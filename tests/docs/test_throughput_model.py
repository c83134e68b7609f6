"""Tests of the throughput model: its arithmetic, what trainings exchange, and the tables that it writes."""

from __future__ import annotations

import math
from typing import Any

import pytest

from benchmarks.tools.quote import requote
from benchmarks.tools.throughput_cases import CASES, Case, describe_cases
from benchmarks.tools.throughput_model import (
    NVLINK,
    PEER_MEMORY,
    TWO_NODES,
    Exchange,
    Workload,
    exchange_us,
    interpolate,
    predict,
)
from benchmarks.tools.throughput_page import Figures, scale_of, update_tables

DOCUMENT = "Before.\n<!-- throughput model -->\nan old table\n<!-- end of throughput model -->\nAfter.\n"
ONE_KB = (Exchange(1024),) * 4


class TestExchange:
    def test_a_table_is_interpolated(self) -> None:
        table = {10: 1.0, 20: 3.0, 40: 4.0}
        assert [interpolate(table, x) for x in (0, 10, 15, 20, 30, 40, 60)] == [1.0, 1.0, 2.0, 3.0, 3.5, 4.0, 5.0]

    @pytest.mark.parametrize("table", [NVLINK, TWO_NODES, PEER_MEMORY])
    def test_public_figures_are_in_ascending_order(self, table: dict[int, float]) -> None:
        assert list(table) == sorted(table)

    def test_one_gpu_exchanges_nothing(self) -> None:
        assert exchange_us(Exchange(1 << 20), 1) == exchange_us(Exchange(1 << 20, True), 1, in_order=True) == 0.0

    def test_the_tables_hold_for_one_and_two_nodes(self) -> None:
        exchange = Exchange(1 << 16)
        assert exchange_us(exchange, 8) == exchange_us(exchange, 2) == NVLINK[1 << 16]
        assert exchange_us(exchange, 16) == exchange_us(exchange, 9) == TWO_NODES[1 << 16]

    def test_inboxes_are_of_one_node_and_in_order(self) -> None:
        exchange = Exchange(1 << 15, has_inboxes=True)
        assert exchange_us(exchange, 8) == exchange_us(exchange, 8, in_order=True) == PEER_MEMORY[1 << 15]
        assert exchange_us(exchange, 16) == TWO_NODES[1 << 15]

    def test_each_doubling_of_the_nodes_adds_the_same(self) -> None:
        times = [exchange_us(Exchange(1 << 16), 8 * nodes) for nodes in (1, 2, 4, 128)]
        step = TWO_NODES[1 << 16] - NVLINK[1 << 16]
        assert times == pytest.approx([NVLINK[1 << 16] + steps * step for steps in (0, 1, 2, 7)])

    def test_a_fixed_order_exchanges_the_numbers_of_all_gpus(self) -> None:
        assert exchange_us(Exchange(1 << 13), 8, in_order=True) == exchange_us(Exchange(1 << 16), 8)


class TestPrediction:
    def test_exchanges_are_added_to_an_iteration(self) -> None:
        workload = Workload(steps=1000, iteration_us=50.0, exchanges=ONE_KB)
        alone, eight = predict(workload, 1), predict(workload, 8)
        assert alone == (pytest.approx(20e6), 1.0)
        assert eight.efficiency == pytest.approx(50.0 / (50.0 + 4 * NVLINK[1024]))
        assert eight.steps_per_second == pytest.approx(8 * 1000 / (50.0 + 4 * NVLINK[1024]) * 1e6)

    def test_measured_exchanges_scale_the_model(self) -> None:
        workload = Workload(steps=1000, iteration_us=50.0, exchanges=ONE_KB)
        assert predict(workload, 8, scale=0.0).efficiency == 1.0
        assert predict(workload, 8, scale=2.0).efficiency == pytest.approx(50.0 / (50.0 + 8 * NVLINK[1024]))


def test_exchanges_of_a_training_are_counted() -> None:
    """PPO exchanges a gradient in 16 updates, moments in 4 epochs, twice metrics, and the rows of faults."""
    pytest.importorskip("torch")
    fused, case = describe_cases(["ppo.65536", "ppo.65536.torch"])
    policy, value = ((inputs + 1) * 64 + 65 * 64 + 65 * outputs for inputs, outputs in ((4, 2), (4, 1)))
    assert (case.num_envs, case.num_agents, case.num_parameters) == (65_536, 1, policy + value)
    gradients = [exchange for exchange in case.exchanges if exchange.num_bytes >= 4 * case.num_parameters]
    assert (len(gradients), len(case.exchanges)) == (16, 23)
    assert max(gradients).num_bytes < 4 * case.num_parameters + 64
    assert [exchange.num_bytes for exchange in fused.exchanges if exchange.has_inboxes] == [x.num_bytes for x in gradients]
    assert len(fused.exchanges) == 16 + 3


class TestPage:
    @pytest.fixture
    def cases(self) -> list[Case]:
        """Two trainings with a figure, and one without."""
        sizes = {"ppo.65536": 1, "ppo.65536.torch": 1, "a2c.grid.2000x5": 5}
        return [Case(name, 1000, agents, 32, 256, ONE_KB) for name, agents in sizes.items()]

    @pytest.fixture
    def records(self) -> dict[str, Any]:
        figures = {"learners.ppo.65536": {"value": 640.0}, "learners.ppo.65536.torch": {"value": 40.0}}
        return {"h200.json": {"device": "a card", "commit": "abcdef0123", "figures": figures}}

    def test_a_document_gets_a_row_for_each_training(self, cases: list[Case], records: dict[str, Any]) -> None:
        text = update_tables(DOCUMENT, records, cases)
        assert text.startswith("Before.\n<!-- throughput model -->\nMeasured on one a card at commit abcdef0.\n")
        assert text.endswith("<!-- end of throughput model -->\nAfter.\n")
        assert "an old table" not in text
        rows = [line for line in text.splitlines() if line.startswith(f"| {CASES['ppo.65536']} |")]
        assert len(rows) == 2
        assert "TagGridWorld" not in text
        prediction = predict(Workload(32_000, 50.0, ONE_KB), 8)
        assert rows[0].startswith(
            f"| {CASES['ppo.65536']} | 1,000 x 1 | 256 | 4 | 640.0 <!-- h200.json learners.ppo.65536 --> | "
            f"{prediction.steps_per_second / 1e6:,.0f} ({prediction.efficiency:.0%}) |"
        )
        # A second run writes the same, and each quotation is that of the record.
        assert update_tables(text, records, cases) == text == requote(text, records)

    def test_measurements_on_several_gpus_are_compared_with_the_model(self, cases: list[Case], records: dict[str, Any]) -> None:
        iteration_ms = 32_000 / 40.0 / 1e3 + 2 * 4 * NVLINK[1024] / 1e3
        share = 2 * 4 * NVLINK[1024] / 1e3 / iteration_ms  # exchanges take twice as long as in the tables
        details = {"efficiency": 0.9, "ms": iteration_ms, "exchange_share": share}
        records["x8.json"] = {"device": "eight cards", "commit": "1234567890", "figures": {
            "multi_gpu.1.torch": {"value": 40.0, "details": {"efficiency": 1.0}},
            "multi_gpu.8.torch.plain": {"value": 99.0, "details": details},
            "multi_gpu.1.torch.shards8": {"value": 9.0, "details": {}},
        }}  # fmt: skip
        assert scale_of(Figures(records), {case.name: case for case in cases}) == pytest.approx(2.0)
        text = update_tables(DOCUMENT, records, cases)
        assert "one a card at commit abcdef0, and one eight cards at commit 1234567." in text
        (row,) = [line for line in text.splitlines() if "multi_gpu" in line]
        predicted = 800.0 / (800.0 + 2 * 4 * NVLINK[1024])
        assert row == f"| 8 | torch.plain | 99.00 <!-- x8.json multi_gpu.8.torch.plain --> | 90% | {predicted:.0%} |"
        assert "Exchanges took 2.00 times as long as in the public figures" in text

    def test_a_document_without_a_place_is_refused(self, cases: list[Case], records: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="the document must have the lines"):
            update_tables("No table.", records, cases)


def test_efficiency_falls_with_the_number_of_gpus() -> None:
    workload = Workload(1000, 300.0, ONE_KB)
    efficiencies = [predict(workload, gpus).efficiency for gpus in (1, 8, 64, 1024)]
    assert efficiencies == sorted(efficiencies, reverse=True)
    assert math.isclose(efficiencies[0], 1.0)
