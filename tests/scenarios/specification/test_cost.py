"""Money, energy and emissions: power by state, regions, and the published accounts derived again."""

import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.commands.command_line import run
from clustersim.scenarios.specification.cost import PowerByState, accounts, equivalents, regions

HELLO = {"training.samples": 320_000, "cost.gpu_hour": 3.0}


def training(changes):
    return Scenario.load("hello", {**HELLO, **changes}).run().summary()["training"]


def test_the_lectures_table_of_days_and_roubles():
    small, large, *_ = accounts()
    assert (round(small.days), round(large.days)) == (34, 84)
    assert (small.gpus, large.gpus) == (1024, 3072)
    # 5 roubles a GPU-minute: 250 million and 1.9 billion
    assert small.roubles == pytest.approx(34 * 1440 * 1024 * 5, rel=0.01)
    assert large.roubles == pytest.approx(84 * 1440 * 3072 * 5, rel=0.01)


def test_the_published_accounts_follow_from_their_assumptions():
    by_name = {one.run: one for one in accounts()}
    gpt = by_name["GPT-3 175B, published account"]
    assert (gpt.mwh, gpt.co2_t) == (pytest.approx(1287, rel=0.002), pytest.approx(552.1, rel=0.003))
    assert gpt.days == pytest.approx(14.8, rel=0.001)
    bloom = by_name["BLOOM 176B"]
    assert (bloom.mwh, bloom.co2_t) == (pytest.approx(433.2, rel=1e-3), pytest.approx(24.69, rel=1e-3))


def test_the_lectures_energy_of_gpt_3(capsys):
    """190 MWh, 85 t: 126 homes in Denmark, and a drive to the Moon and back; by FLOP, peak, power, PUE and carbon."""
    by_name = {one.run: one for one in accounts()}
    peak, published = by_name["GPT-3 175B, on V100 at their peak"], by_name["GPT-3 175B, published account"]
    assert peak.mwh == pytest.approx(3.14e23 / 125e12 / 3600 * 250 * 1.1 / 1e6)
    assert (peak.mwh, peak.co2_t) == (pytest.approx(190, rel=0.011), pytest.approx(85, rel=0.011))
    assert equivalents(190, 85).startswith("126 homes in Denmark for a year; 706,000 km")
    # V100 that reach 24.6 TFLOP/s and take 330 W make the published account seven times as large
    assert published.mwh is not None
    assert published.mwh / peak.mwh == pytest.approx((125 / 24.6) * (330 / 250), rel=0.01)
    assert run(["list", "accounts"]) == 0
    out = capsys.readouterr().out
    assert "191.9 (190)" in out and "ways to the Moon" in out


def test_energy_is_power_by_state_times_time():
    powers = {"cost.gpu_power": "400 W", "cost.communicating_power": "200 W", "cost.idle_power": "100 W"}
    result = Scenario.load("hello", {**HELLO, **powers, "cost.pue": 1.25, "cost.node_power": "1 kW"}).run()
    parts = result.breakdown
    step = sum(parts.values())
    watts = 4 * (400 * parts["compute"] + 200 * parts["exposed_dp"] + 100 * parts["bubble"]) / step
    watts += 4 * 400 * (parts["optimizer"] + parts["recompute"]) / step
    expected = 1.25 * (watts + 1000) * 10_000 * result.timeline.step_time / 3.6e9
    assert result.summary()["training"]["energy_mwh"] == pytest.approx(expected, rel=1e-12)
    assert PowerByState(3.0, 2.0, 1.0).of_step({}) == 3.0


def test_without_powers_by_state_the_energy_is_that_of_full_load():
    found = training({"cost.gpu_power": "400 W", "cost.pue": 1.5, "cost.carbon": 0.5})
    assert found["energy_mwh"] == pytest.approx(1.5 * 400 * found["gpu_hours"] / 1e6, rel=1e-12)
    assert found["co2_t"] == pytest.approx(0.5 * found["energy_mwh"], rel=1e-12)


def test_prices_on_demand_and_reserved():
    found = training({"cost.reserved_gpu_hour": 1.0})
    assert found["cost"] == pytest.approx(3 * found["gpu_hours"])
    assert found["cost_reserved"] == pytest.approx(found["gpu_hours"])
    assert "cost_reserved" not in training({})


def test_a_region_is_its_carbon_intensity():
    power = {"cost.gpu_power": "400 W"}
    assert training({**power, "cost.carbon": "sweden"}) == training({**power, "cost.carbon": regions()["sweden"]})


def test_an_unknown_region_is_told_with_the_nearest(capsys):
    assert run(["check", "hello", "--set", "cost.carbon=sweeden"]) == 2
    assert 'unknown region "sweeden"; there are australia' in (err := capsys.readouterr().err)
    assert 'did you mean "sweden"?' in err


def test_tables_are_listed(capsys):
    assert run(["list", "regions"]) == 0
    assert "france_bloom     0.057 kg/kWh" in capsys.readouterr().out
    assert run(["list", "accounts"]) == 0
    assert "1,289 (1287)" in capsys.readouterr().out
