"""A generated federation of sensor plants with labelled faults. Nothing here was measured.

Each client is a heated two-tank water plant. Water is pumped into tank 1, heated there, runs through a pipe
into tank 2 and from there to a consumer, through a valve that follows the consumer's demand. One controller
holds the level of tank 2 with the pump, another its temperature with the heater. With levels h [m], water
temperatures T [degC], flows q [m3/s], heater power P [W] and heat capacity c = 4.186e6 J/(m3 K):

    area_1 h1' = q_in - q_pipe - q_leak                 q_pipe = pipe * head(h1 - h2)
    area_2 h2' = q_pipe - q_out                         q_out  = outlet * opening * head(h2)
                                                        q_leak = leak * head(h1)
    area_1 h1 T1' = q_in (T_in - T1) + max(-q_pipe, 0) (T2 - T1) + (efficiency P - loss (T1 - T_amb)) / c
    area_2 h2 T2' = max(q_pipe, 0) (T1 - T2) - loss (T2 - T_amb) / c
    lag_pump q_in' = pump_max u_pump - q_in             lag_heater P' = heater_max u_heater - P

where ``head(d) = sqrt(2 g) d / sqrt(|d| + 0.01 m)`` is Torricelli's law made smooth at d = 0. Euler steps of
10 s integrate the equations; every 30 s the sensors are read and both proportional-integral controllers act.
Demand and ambient temperature vary over the day (2880 rows), the level set-point with the shift, and demand,
supply and ambient temperature also at random.

Plants differ in size, pipes, losses, lags, climate, demand, set-points, controller gains and sensor noise.
The test stream of each plant contains each of :data:`FAULTS` once, and its labels are 1 exactly while a fault
acts; the recovery after it is labelled normal. Shapes: K clients, T rows, C = 10 channels.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd

from fedgeo.data.streams import Streams, from_arrays

CHANNELS = (
    "level_1_m",
    "level_2_m",
    "temperature_1_c",
    "temperature_2_c",
    "inflow_l_s",
    "outflow_l_s",
    "pump_command",
    "heater_power_kw",
    "demand_opening",
    "ambient_c",
)

FAULTS = ("drifting sensor", "stuck sensor", "leak", "slow pump", "fouled heater")
"""Temperature 1 reads wrong by a growing amount; the outflow meter repeats its last reading; tank 1 leaks;
the pump follows its command several times slower; part of the heater's power is lost."""

_GRAVITY = 9.81
_HEAT = 4.186e6  # J/(m3 K)
_ROW = 30.0  # s
_STEP = 10.0  # s
_DAY = 2880  # rows
_WARM_UP = 400  # rows that are simulated and dropped, until the start no longer shows


_Arrays = TypeVar("_Arrays", bound=tuple[Any, ...])


class _Plant(NamedTuple):
    """One plant's constants; as a whole federation every field is ``(K,)``."""

    area_1: float  # m2
    area_2: float  # m2
    pipe: float  # m2
    outlet: float  # m2
    pump_max: float  # m3/s
    heater_max: float  # W
    loss: float  # W/K
    pump_lag: float  # s
    heater_lag: float  # s
    level_gain: float  # 1/m
    level_time: float  # s
    heat_gain: float  # 1/K
    heat_time: float  # s
    target_temperature: float  # degC


class _Drivers(NamedTuple):
    """What acts on a plant from outside, ``(rows,)``; as a whole federation ``(rows, K)``."""

    opening: np.ndarray
    ambient: np.ndarray  # degC
    supply: np.ndarray  # degC
    target_level: np.ndarray  # m


class _Faults(NamedTuple):
    """The faults as disturbances that are neutral at (0, False, 0, 1, 1), ``(rows,)`` or ``(rows, K)``."""

    drift: np.ndarray  # K, added to the reading of temperature 1
    stuck: np.ndarray  # bool, the outflow meter repeats its reading
    leak: np.ndarray  # m2
    pump_slowness: np.ndarray  # factor on the pump's lag
    efficiency: np.ndarray


def plants(clients: int = 8, seed: int = 0, *, rows: int = 3000) -> Streams:
    """Simulate a federation of plants; the same arguments always give the same streams.

    A plant depends on the seed and its number only: a larger federation contains the smaller one.

    Args:
        clients: K.
        seed: of everything that is drawn.
        rows: T, of the training stream and again of the test stream.
    """
    schedule = fault_schedule(clients, seed, rows=rows)
    names = [f"plant-{k}" for k in range(clients)]
    total = _WARM_UP + 2 * rows
    constants, drivers, faults, noise = [], [], [], []
    for k, name in enumerate(names):
        rng = np.random.default_rng([seed, k])
        constants.append(_draw_plant(rng))
        drivers.append(_draw_drivers(rng, total))
        of_plant = schedule[schedule["client"] == name]
        faults.append(_draw_faults(np.random.default_rng([seed, k, 2]), of_plant, total, constants[-1], rows))
        noise.append(_draw_noise(rng, total))
    plant = _Plant(*np.array(constants).T)
    readings = _simulate(
        plant, _stacked(_Drivers, drivers), _stacked(_Faults, faults), np.stack(noise, axis=1)
    )

    labels = {name: np.zeros(rows, dtype=np.int64) for name in names}
    for name, start, stop in zip(schedule["client"], schedule["start"], schedule["stop"], strict=True):
        labels[name][start:stop] = 1
    train = {name: readings[_WARM_UP : _WARM_UP + rows, k] for k, name in enumerate(names)}
    test = {name: readings[_WARM_UP + rows :, k] for k, name in enumerate(names)}
    return from_arrays(train, test, labels, channels=CHANNELS, name="plants (generated)")


def fault_schedule(clients: int = 8, seed: int = 0, *, rows: int = 3000) -> pd.DataFrame:
    """When each fault of :func:`plants` acts: ``client``, ``fault``, and test rows ``start`` to ``stop``."""
    if clients < 1:
        raise ValueError(f"clients={clients}; want at least one")
    if rows < 1000:
        raise ValueError(
            f"rows={rows}; want at least 1000, to hold {len(FAULTS)} faults and normal rows between"
        )
    records = []
    slot = rows // len(FAULTS)  # one fault in each slot, clear of its borders
    for k in range(clients):
        rng = np.random.default_rng([seed, k, 1])
        for place, fault in enumerate(rng.permutation(FAULTS)):
            length = int(rng.integers(slot // 12, slot // 5))
            start = place * slot + int(rng.integers(slot // 8, slot // 2))
            records.append((f"plant-{k}", str(fault), start, start + length))
    return pd.DataFrame(records, columns=["client", "fault", "start", "stop"])


def _draw_plant(rng: np.random.Generator) -> _Plant:
    def about(value: float, spread: float = 0.25) -> float:
        return value * float(np.exp(rng.uniform(-spread, spread)))

    return _Plant(
        area_1=about(4.0, 0.4),
        area_2=about(4.0, 0.4),
        pipe=about(1.7e-3),
        outlet=about(2.1e-3),
        pump_max=about(14e-3, 0.1),
        heater_max=about(1.1e6, 0.1),
        loss=about(2.5e3, 0.5),
        pump_lag=about(50.0, 0.3),
        heater_lag=about(90.0, 0.3),
        level_gain=about(0.8),
        level_time=about(1500.0),
        heat_gain=about(0.03),
        heat_time=about(2400.0),
        target_temperature=rng.uniform(32.0, 40.0),
    )


def _draw_drivers(rng: np.random.Generator, rows: int) -> _Drivers:
    day = 2 * np.pi * np.arange(rows) / _DAY
    shape = rng.uniform(0.04, 0.09) * np.sin(day + rng.uniform(0, 2 * np.pi))
    shape += rng.uniform(0.02, 0.05) * np.sin(3 * day + rng.uniform(0, 2 * np.pi))
    opening = rng.uniform(0.45, 0.6) + shape + _wander(rng, rows, time=40.0, sd=0.025)
    ambient = rng.uniform(5.0, 25.0) + rng.uniform(2.0, 6.0) * np.sin(day + rng.uniform(0, 2 * np.pi))
    supply = rng.uniform(12.0, 18.0) + _wander(rng, rows, time=200.0, sd=0.4)
    base, high = rng.uniform(1.1, 1.3), rng.uniform(0.06, 0.15)
    shift = rng.integers(0, _DAY // 4)
    target = base + high * (
        (np.arange(rows) + shift) // (_DAY // 4) % 2
    )  # the plant works in shifts of six hours
    return _Drivers(
        np.clip(opening, 0.1, 1.0), ambient + _wander(rng, rows, time=100.0, sd=0.5), supply, target
    )


def _draw_faults(
    rng: np.random.Generator, schedule: pd.DataFrame, total: int, plant: _Plant, rows: int
) -> _Faults:
    faults = _Faults(
        drift=np.zeros(total),
        stuck=np.zeros(total, dtype=bool),
        leak=np.zeros(total),
        pump_slowness=np.ones(total),
        efficiency=np.ones(total),
    )
    offset = total - rows
    for fault, start, stop in zip(schedule["fault"], schedule["start"], schedule["stop"], strict=True):
        span = slice(offset + start, offset + stop)
        if fault == "drifting sensor":
            end = rng.choice([-1.0, 1.0]) * rng.uniform(1.5, 3.0)
            faults.drift[span] = np.linspace(0.0, end, stop - start + 1)[1:]
        elif fault == "stuck sensor":
            faults.stuck[span] = True
        elif fault == "leak":
            faults.leak[span] = rng.uniform(0.1, 0.2) * plant.outlet
        elif fault == "slow pump":
            faults.pump_slowness[span] = rng.uniform(8.0, 14.0)
        else:
            faults.efficiency[span] = rng.uniform(0.75, 0.88)
    return faults


def _draw_noise(rng: np.random.Generator, rows: int) -> np.ndarray:
    """Sensor noise ``(rows, C)`` in the units of :data:`CHANNELS`; commands are known exactly."""
    sd = np.array([0.005, 0.005, 0.08, 0.08, 0.06, 0.06, 0.0, 4.0, 0.003, 0.1])
    return sd * np.exp(rng.uniform(-0.5, 0.5, len(sd))) * rng.normal(size=(rows, len(sd)))


def _wander(rng: np.random.Generator, rows: int, *, time: float, sd: float) -> np.ndarray:
    """A stationary random walk around zero (Ornstein-Uhlenbeck) with a correlation time in rows."""
    from scipy.signal import lfilter  # a second of every start of the command line otherwise

    keep = np.exp(-1.0 / time)
    shocks = rng.normal(size=rows) * sd * np.sqrt(1.0 - keep**2)
    path, _ = lfilter([1.0], [1.0, -keep], shocks, zi=[keep * rng.normal() * sd])
    return path


def _stacked(kind: Callable[..., _Arrays], parts: Sequence[tuple[np.ndarray, ...]]) -> _Arrays:
    return kind(*(np.stack(arrays, axis=1) for arrays in zip(*parts, strict=True)))


def _head(difference: np.ndarray) -> np.ndarray:
    return np.sqrt(2 * _GRAVITY) * difference / np.sqrt(np.abs(difference) + 0.01)


def _simulate(plant: _Plant, drivers: _Drivers, faults: _Faults, noise: np.ndarray) -> np.ndarray:
    """Readings ``(rows, K, C)`` of all plants side by side."""
    rows, clients, _ = noise.shape
    readings = np.empty_like(noise)
    level_1, level_2 = np.full(clients, 1.8), np.full(clients, 1.2)
    heat_1, heat_2 = np.full(clients, 35.0), np.full(clients, 35.0)
    inflow, power = np.full(clients, 5e-3), np.full(clients, 5e5)
    level_integral, heat_integral = np.full(clients, 0.4), np.full(clients, 0.5)
    metered = np.zeros(clients)
    for t in range(rows):
        opening, ambient, supply, target_level = (driver[t] for driver in drivers)
        drift, stuck, leak, slowness, efficiency = (fault[t] for fault in faults)
        outflow = plant.outlet * opening * _head(level_2)

        metered = np.where(stuck, metered, 1e3 * outflow + noise[t, :, 5])
        seen_2, seen_heat_2 = level_2 + noise[t, :, 1], heat_2 + noise[t, :, 3]
        pump, level_integral = _control(
            target_level - seen_2, level_integral, plant.level_gain, plant.level_time
        )
        heater, heat_integral = _control(
            plant.target_temperature - seen_heat_2, heat_integral, plant.heat_gain, plant.heat_time
        )
        exact = (level_1, level_2, heat_1 + drift, heat_2, 1e3 * inflow, 1e3 * outflow, pump, 1e-3 * power)
        readings[t] = np.stack([*exact, opening, ambient], axis=1) + noise[t]
        readings[t, :, 5] = metered

        for _ in range(round(_ROW / _STEP)):
            through = plant.pipe * _head(level_1 - level_2)
            outflow = plant.outlet * opening * _head(level_2)
            lost = leak * _head(level_1)
            gain_1 = (efficiency * power - plant.loss * (heat_1 - ambient)) / _HEAT
            gain_2 = -plant.loss * (heat_2 - ambient) / _HEAT
            mixed_1 = inflow * (supply - heat_1) + np.maximum(-through, 0.0) * (heat_2 - heat_1)
            mixed_2 = np.maximum(through, 0.0) * (heat_1 - heat_2)
            heat_1 = heat_1 + _STEP * (mixed_1 + gain_1) / (plant.area_1 * level_1)
            heat_2 = heat_2 + _STEP * (mixed_2 + gain_2) / (plant.area_2 * level_2)
            level_1 = np.maximum(level_1 + _STEP * (inflow - through - lost) / plant.area_1, 0.05)
            level_2 = np.maximum(level_2 + _STEP * (through - outflow) / plant.area_2, 0.05)
            inflow = inflow + _STEP * (plant.pump_max * pump - inflow) / (plant.pump_lag * slowness)
            power = power + _STEP * (plant.heater_max * heater - power) / plant.heater_lag
    return readings


def _control(
    error: np.ndarray, integral: np.ndarray, gain: np.ndarray | float, time: np.ndarray | float
) -> tuple[np.ndarray, np.ndarray]:
    """A proportional-integral command in [0, 1]; the integral holds while the command is at a limit."""
    command = gain * error + integral
    limited = np.clip(command, 0.0, 1.0)
    return limited, np.where(command == limited, integral + gain * error * _ROW / time, integral)
