import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgeo.evaluation import volume

LABELS = np.zeros(100, dtype=int)
LABELS[20:30] = LABELS[60:65] = 1


def _score() -> np.ndarray:
    score = np.random.default_rng(0).random(100)
    score[22:26] += 1
    score[62] += 0.5
    score[80] += 0.9
    return score


streams = (
    st.lists(st.tuples(st.integers(0, 6), st.booleans(), st.integers(0, 7)), min_size=2, max_size=50)
    .map(lambda rows: tuple(np.array(column) for column in zip(*rows, strict=True)))
    .filter(lambda s: s[1][s[2] > 0].any() and not s[1][s[2] > 0].all())
)


@pytest.mark.parametrize(
    ("buffer", "roc", "pr"),
    [
        (0, 0.49098039215686273, 0.2909997828174484),
        (5, 0.543941582828978, 0.30752458995362697),
        (10, 0.6231213023320624, 0.35329286703144436),
    ],
)
def test_values_of_the_present_definition(buffer: int, roc: float, pr: float) -> None:
    found = volume.vus(_score(), LABELS, buffer)
    assert found == pytest.approx((roc, pr, buffer), rel=1e-12)


def _by_loops(score: np.ndarray, y: np.ndarray, buffer: int) -> tuple[float, float]:
    """The definition, row by row and threshold by threshold."""
    n, falling = len(y), np.sort(score)[::-1]
    runs = np.split(np.flatnonzero(y), np.flatnonzero(np.diff(np.flatnonzero(y)) > 1) + 1)
    areas = []
    for length in range(buffer + 1):
        half, soft = length // 2, y.astype(float)
        for run in runs:
            for d in range(1, half + 1):
                for row in (run[0] - d, run[-1] + d):
                    if 0 <= row < n:
                        soft[row] += np.sqrt(1 - d / length)
        soft = np.minimum(soft, 1)
        zones = [[runs[0][0] - half, runs[0][-1] + half]]
        for run in runs[1:]:
            if zones[-1][1] < run[0] - half:
                zones.append([run[0] - half, run[-1] + half])
            zones[-1][1] = run[-1] + half
        curve, precision = [(0.0, 0.0)], []
        for rank in np.linspace(0, n - 1, 250).astype(int):
            alarm = score >= falling[rank]
            hits = float(soft @ alarm)
            positives = (y.sum() + y.sum() + (soft * alarm)[y == 0].sum()) / 2
            touched = np.mean([alarm[max(a, 0) : b + 1].any() for a, b in zones])
            curve.append((min(hits / positives, 1) * touched, (alarm.sum() - hits) / (n - positives)))
            precision.append(hits / alarm.sum())
        tpr, fpr = np.array([*curve, (1.0, 1.0)]).T
        areas.append((np.diff(fpr) @ (tpr[1:] + tpr[:-1]) / 2, np.diff(tpr[:-1]) @ precision))
    return tuple(np.mean(areas, axis=0))


@settings(max_examples=40)
@given(stream=streams, buffer=st.integers(0, 8))
def test_vectorised_equals_loops(stream, buffer: int) -> None:
    score, labels, _ = stream
    if labels.all() or not labels.any():
        return
    found = volume.vus(score, labels, buffer)
    assert found[:2] == pytest.approx(_by_loops(score, labels.astype(int), buffer), abs=1e-12)


@given(stream=streams, buffer=st.integers(0, 12))
def test_order_alone_counts_and_values_are_shares(stream, buffer: int) -> None:
    score, labels, kept = stream
    score = np.where(kept > 0, score.astype(float), np.nan)
    found = volume.vus(score, labels, buffer)
    assert 0 <= found.roc <= 1
    assert 0 <= found.pr <= 1
    for mapped in (np.exp(score), score**3 - 1e6, np.where(score > 5, np.inf, score)):
        assert volume.vus(mapped, labels, buffer) == found
    assert volume.vus(labels.astype(float), labels, buffer) == pytest.approx((1.0, 1.0, buffer))


def test_rows_without_score_are_cut_out_and_join_no_events() -> None:
    nan = np.full(7, np.nan)
    late = volume.vus(np.r_[nan, _score()], np.r_[0, 1, 1, 0, 0, 1, 0, LABELS], 10)
    assert late == volume.vus(_score(), LABELS, 10)
    labels, score = np.array([0, 1, 0, 1, 0, 0]), np.array([0.0, 2.0, np.nan, 1.0, 0.0, 0.0])
    assert volume.vus(score, labels, 0)[:2] == (1.0, 1.0)
    missed = np.where(score == 1.0, -1.0, score)
    assert volume.vus(missed, labels, 0).roc == 0.25  # half of the rows times half of the events, of two


def test_larger_buffers_raise_both_values() -> None:
    values = np.array([volume.vus(_score(), LABELS, buffer)[:2] for buffer in (0, 5, 10, 20)])
    assert (np.diff(values, axis=0) > 0).all()


@pytest.mark.parametrize("labels", [np.zeros(5), np.ones(5)])
def test_one_class_is_undefined(labels: np.ndarray) -> None:
    for score in (np.arange(5.0), np.full(5, np.nan)):
        assert np.isnan(volume.vus(score, labels, 3)[:2]).all()
    assert volume.vus(np.zeros(0), np.zeros(0), 3).buffer == 3


@pytest.mark.parametrize("buffer", [-1, 2.5])
def test_buffers_that_are_no_row_counts_are_named(buffer) -> None:
    with pytest.raises(ValueError, match=f"buffer={buffer}; want a whole number of rows"):
        volume.vus(np.zeros(3), np.array([0, 1, 0]), buffer)


def test_buffer_length_is_the_period_of_a_channel() -> None:
    t, rng = np.arange(4000), np.random.default_rng(0)
    for period in (7, 50, 144):
        wave = np.sin(2 * np.pi * t / period) + 0.1 * rng.standard_normal(4000)
        assert volume.buffer_length(wave) == period
        assert volume.buffer_length(1e6 + 1e-3 * wave) == period
    assert volume.buffer_length(np.sin(2 * np.pi * t / 310)) == volume.DEFAULT_BUFFER
    assert (
        volume.buffer_length(np.sign(np.sin(2 * np.pi * (t + 0.5) / 4))) == 125
    )  # its peaks lie at 4, 8, ...


@pytest.mark.parametrize(
    "channel", [np.ones(100), np.arange(50.0), np.zeros(0), np.zeros(1), np.array([1.0, 2.0])]
)
def test_channel_without_period_gets_the_default(channel: np.ndarray) -> None:
    assert volume.buffer_length(channel) == volume.DEFAULT_BUFFER


def test_channels_that_cannot_be_used_are_named() -> None:
    with pytest.raises(ValueError, match=r"shape \(3, 2\); want one channel"):
        volume.buffer_length(np.zeros((3, 2)))
    with pytest.raises(ValueError, match="1 NaN or infinite rows"):
        volume.buffer_length(np.array([0.0, np.nan]))
