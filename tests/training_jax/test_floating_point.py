"""Attacks on floating point, each on our step and, as a control that must succeed, on the arithmetic of old.

Fixed seeds; FALSE_ALARM is the probability with which a right step would have failed when they were chosen.
"""

import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from ballsbins.errors import InvalidInputError
from ballsbins.noise import rounded_normals
from ballsbins.samplers import Key
from ballsbins.training.grid import Grid, excess_of
from ballsbins.training.jax.machine_check import check_step
from ballsbins.training.jax.model import Batch, Layer, Model, Parameters
from ballsbins.training.jax.private_step import (
    CHUNK,
    Scalars,
    clipped_sum,
    grid_of,
    initial_state,
    private_step,
)

_spec = importlib.util.spec_from_file_location(
    "old_arithmetic", Path(__file__).with_name("old_arithmetic.py")
)
old = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(old)

FALSE_ALARM = 1e-6
WIDTH, ROWS, SIZE = 16, 6000, 64
TABLES = Model(2, (ROWS,), WIDTH, (8,))
SIGMA, CLIP = 1.1, 1.0


def drawn_batch(model, rows, seed=0):
    rng = np.random.default_rng(seed)
    return Batch(
        (rng.random(rows) < 0.5).astype(np.float32),
        rng.normal(size=(rows, model.num_integers)).astype(np.float32),
        np.stack([rng.integers(0, count, rows) for count in model.buckets], axis=1).astype(np.int32),
        np.ones(rows, np.float32),
    )


def first_moments(sigma=SIGMA):
    """Adam's first moment of the tables after one step, ours and of old, and which rows were looked up."""
    parameters, batch = TABLES.initial(Key.from_seed(1)), drawn_batch(TABLES, SIZE)
    grid = grid_of(TABLES, sigma, CLIP, SIZE)
    noise = rounded_normals(Key.from_seed(2), ("step",), TABLES.num_parameters)
    scalars = Scalars(np.float32(1e-3), np.float64(CLIP), np.float64(grid.unit), np.float64(SIZE))
    state, _ = private_step(TABLES, initial_state(jax.tree.map(jnp.copy, parameters)), batch, noise, scalars)
    ours = np.asarray(state.optimizer.mu.table)
    words = np.random.default_rng(3).integers(0, 2**32, old.words_for(ours.size), dtype=np.uint32)
    before = np.asarray(old.first_moment(TABLES, parameters, batch, CLIP, sigma, SIZE, jnp.asarray(words)))
    touched = np.zeros(ROWS, bool)
    touched[batch.categories[:, 0]] = True
    return ours, before, touched


@pytest.fixture(scope="module")
def checkpoints():
    return first_moments()


def unreachable(values, scale, expected):
    """Values that no float32 noise alone can give: no float32 z has 0.1·((scale·z)/expected) equal to them."""
    target = values.reshape(-1)
    guess = (target.astype(np.float64) / np.float32(0.1) * expected / scale).astype(np.float32)
    reached = np.zeros(target.shape, bool)
    for steps in range(-6, 7):
        z = (guess.view(np.int32) + steps).view(np.float32)
        reached |= np.float32(0.1) * ((np.float32(scale) * z) / np.float32(expected)) == target
    return ~reached.reshape(values.shape)


def off_the_grid(values, scale, expected):
    """Values that no integer noise alone can give: no integer r has 0.1·(unit·r/expected) equal to them."""
    unit = grid_of(TABLES, scale / CLIP, CLIP, SIZE).unit / expected
    best = np.zeros(values.shape, bool)
    # b1 = 0.9 is not a float: Adam's factor is the float32 next to 1 − 0.9, or one of its neighbours
    for factor in (np.float32(0.1), np.float32(1) - np.float32(0.9), np.float32(1.0 - 0.9)):
        integers = np.rint(values.astype(np.float64) / factor / unit)
        reached = np.zeros(values.shape, bool)
        for near in range(-30, 31):
            reached |= factor * ((integers + near) * unit).astype(np.float32) == values
        best = max(best, reached, key=np.mean)
    return ~best


def test_a_checkpoint_does_not_tell_which_rows_were_looked_up(checkpoints):
    """The old one does: most rows of the batch hold a value that noise alone cannot give, and no other row does."""
    ours, before, touched = checkpoints
    flagged = unreachable(before, SIGMA * CLIP, SIZE).any(axis=1)
    assert flagged[touched].mean() > 0.5
    assert not flagged[~touched].any()
    shown = unreachable(ours, SIGMA * CLIP, SIZE)
    table = [[int(part.sum()), int((~part).sum())] for part in (shown[touched], shown[~touched])]
    assert stats.fisher_exact(table).pvalue > FALSE_ALARM


def test_every_value_of_a_checkpoint_is_one_that_noise_alone_can_give(checkpoints):
    """On the grid all integers are possible, whatever the sum: rows of the batch hold nothing that others cannot."""
    ours, _, touched = checkpoints
    outside = off_the_grid(ours, SIGMA * CLIP, SIZE)
    assert not outside[~touched].any()
    assert not outside[touched].any()


def small_pairs_off_the_circles(table, scale, expected):
    """Which pairs (cosine, sine) have a small radius, and which of them one that no float32 u near 1 gives."""
    z = table.reshape(-1).astype(np.float64) / np.float32(0.1) * expected / scale
    half = len(z) // 2
    place = np.square(z[:half]) + np.square(z[half:])
    ring = -np.expm1(-place / 2) * 2.0**24  # u = 1 − ring·2⁻²⁴
    small = (ring > 4) & (ring < 2e5)
    off = np.abs(ring - np.rint(ring)) > 0.15
    return small, off, half


@pytest.mark.parametrize("seed", [1])
def test_pairs_of_small_radius_tell_nothing(seed):
    """Where σC is a power of two every float32 is possible, but pairs were not: radii near 0 lay on few circles."""
    sigma = 1.0
    parameters, batch = TABLES.initial(Key.from_seed(seed)), drawn_batch(TABLES, SIZE, seed)
    touched = np.zeros((ROWS, WIDTH), bool)
    touched[batch.categories[:, 0]] = True
    marked = touched.reshape(-1)

    def shares(table):
        small, off, half = small_pairs_off_the_circles(table, sigma * CLIP, SIZE)
        both = marked[:half] | marked[half:]
        return [(int((small & off & side).sum()), int((small & side).sum())) for side in (both, ~both)]

    found = np.zeros((2, 2), int)
    ours = np.zeros((2, 2), int)
    for number in range(12):
        words = np.random.default_rng(number).integers(0, 2**32, old.words_for(marked.size), dtype=np.uint32)
        before = old.first_moment(TABLES, parameters, batch, CLIP, sigma, SIZE, jnp.asarray(words))
        found += np.array(shares(np.asarray(before)))
        grid = grid_of(TABLES, sigma, CLIP, SIZE)
        noise = rounded_normals(Key.from_seed(number), ("pairs",), TABLES.num_parameters)
        scalars = Scalars(np.float32(1e-3), np.float64(CLIP), np.float64(grid.unit), np.float64(SIZE))
        state = initial_state(jax.tree.map(jnp.copy, parameters))
        state, _ = private_step(TABLES, state, batch, noise, scalars)
        ours += np.array(shares(np.asarray(state.optimizer.mu.table)))
    assert found[0, 0] > 0.5 * found[0, 1] > 5  # of the batch's pairs most are off the circles
    assert found[1, 0] < 0.02 * found[1, 1]  # of the others hardly any
    table = [[int(part[0]), int(part[1] - part[0])] for part in ours]
    assert stats.fisher_exact(table).pvalue > FALSE_ALARM


# Sensitivity: how far one example, zeroed in place, moves the sum.


def summed(model, parameters, batch, clip, grid):
    with jax.enable_x64(True):
        found = jax.jit(clipped_sum, static_argnums=0)(
            model, parameters, batch, np.float64(clip), np.float64(grid.unit)
        )
        table = np.asarray(found.table.dense(model.num_rows))
    return [grid.unit * part for part in (table, *map(np.asarray, jax.tree.leaves(found.layers)))]


def moved(first, second):
    """The norm of the difference, in float64."""
    parts = [
        np.linalg.norm(np.asarray(a, np.float64) - np.asarray(b, np.float64))
        for a, b in zip(first, second, strict=True)
    ]
    return float(np.linalg.norm(parts))


def without(batch, place):
    weights = batch.weights.copy()
    weights[place] = 0.0
    return batch._replace(weights=weights)


def old_move(model, parameters, batch, place, clip):
    both = [
        jax.tree.leaves(jax.jit(old.clipped_sum, static_argnums=(0, 3))(model, parameters, given, clip)[0])
        for given in (batch, without(batch, place))
    ]
    return moved(*both)


def our_move(model, parameters, batch, place, clip, sigma=1.0):
    grid = grid_of(model, sigma, clip, len(batch.weights))
    both = [summed(model, parameters, given, clip, grid) for given in (batch, without(batch, place))]
    return moved(*both), clip * (1.0 + grid.eta)


def one_row_batch(rows):
    """All examples look up one row. Half of them bring its float32 sum to a power of two, just above with the first
    example and just below without it; the others take a little away, which is lost above and doubled below.
    """
    width = 16
    model = Model(1, (4,), width, ())
    weight = np.ones((width + 1, 1), np.float32)
    parameters = Parameters(
        jnp.zeros((4, width), jnp.float32), (Layer(jnp.asarray(weight), jnp.zeros(1, jnp.float32)),)
    )
    each = 1.0 / np.sqrt(width + 1.0)  # a gradient clipped to 1 has so much in every coordinate of the row
    power = 2.0 ** np.floor(np.log2(each * rows / 1.9))
    many = int(np.ceil(power / each))
    labels, integers = np.zeros(rows, np.float32), np.zeros((rows, 1), np.float32)
    labels[many:] = 1.0
    # then the signal is −0.45 units in the last place of that power of two
    integers[many:] = np.log(1.0 / (0.45 * 2.0**-23 * power))
    return (
        model,
        parameters,
        Batch(labels, integers, np.zeros((rows, 1), np.int32), np.ones(rows, np.float32)),
    )


def test_an_example_among_many_in_one_row_moves_the_sum_within_the_bound():
    """Float32 sums of 8,192 examples move by nearly two clip norms when one of them is zeroed in place."""
    model, parameters, batch = one_row_batch(8192)
    assert old_move(model, parameters, batch, 0, 1.0) > 1.5
    for place in (0, 1, 5000, 8191):
        ours, bound = our_move(model, parameters, batch, place, 1.0)
        assert ours <= bound
    assert our_move(model, parameters, batch, 0, 1.0)[0] > 0.99


def underflowing_batch():
    """An activation of 10¹⁹ and a signal of 10⁻²³: the float32 norm is 0, the true one is 1.6 clip norms."""
    model = Model(1, (2,), 1, ())
    size, logit = 1e19, -53.0
    parameters = Parameters(
        jnp.zeros((2, 1), jnp.float32),
        (Layer(jnp.asarray([[0.0], [logit / size]], jnp.float32), jnp.zeros(1, jnp.float32)),),
    )
    batch = Batch(
        np.zeros(4, np.float32), np.array([[size], [0], [0], [0]], np.float32), np.zeros((4, 1), np.int32),
        np.array([1, 0, 0, 0], np.float32),
    )  # fmt: skip
    true = size / (1.0 + np.exp(-logit))
    return model, parameters, batch, float(true / 1.6)


def test_squares_that_underflow_do_not_escape_clipping():
    model, parameters, batch, clip = underflowing_batch()
    _, squares = old.clipped_sum(model, parameters, batch, clip)
    assert float(squares[0]) == 0.0
    assert old_move(model, parameters, batch, 0, clip) > 1.5 * clip
    ours, bound = our_move(model, parameters, batch, 0, clip)
    assert 0.99 * clip < ours <= bound


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("sigma", [0.3, 10.0])
def test_any_example_moves_the_sum_within_the_bound(scale, sigma):
    model = Model(3, (5, 7), 4, (16, 8))
    parameters, batch = model.initial(Key.from_seed(5)), drawn_batch(model, 150, 6)
    batch = batch._replace(integers=batch.integers * np.float32(scale))
    for place in range(0, 150, 37):
        ours, bound = our_move(model, parameters, batch, place, 0.1, sigma)
        assert ours <= bound


def test_a_row_of_infinities_equals_the_row_zeroed_in_place():
    model = Model(3, (5, 7), 4, (16, 8))
    parameters, batch = model.initial(Key.from_seed(5)), drawn_batch(model, 90, 6)
    broken = batch.integers.copy()
    broken[11] = np.inf
    grid = grid_of(model, 1.0, 0.1, 90)
    first = summed(model, parameters, batch._replace(integers=broken), 0.1, grid)
    second = summed(model, parameters, without(batch, 11), 0.1, grid)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("rows", [1, CHUNK, CHUNK + 1, 200])
def test_this_machine_keeps_rows_apart_and_repeats_itself(rows):
    model = Model(3, (5, 7), 4, (16, 8))
    found = check_step(model, model.initial(Key.from_seed(5)), rows)
    assert found.row_local
    assert found.reproducible
    assert found.precise
    assert found.failures == ()


def test_the_check_of_a_machine_sees_rows_that_meet(monkeypatch):
    """A network that centres its activations over the batch is not row-local."""
    from ballsbins.training.jax import machine_check

    model = Model(3, (5, 7), 4, (16, 8))
    own = machine_check.private_step

    def mixing(given, state, batch, noise, scalars):
        with np.errstate(invalid="ignore"):  # of a row with infinities
            mixed = batch.integers - batch.integers.mean(axis=0, keepdims=True)
        return own(given, state, batch._replace(integers=mixed), noise, scalars)

    monkeypatch.setattr(machine_check, "private_step", mixing)
    found = check_step(model, model.initial(Key.from_seed(5)), 40)
    assert not found.row_local
    assert "depends on the other rows" in found.failures[0]


def test_the_check_of_a_machine_sees_sums_that_do_not_repeat(monkeypatch):
    from ballsbins.training.jax import machine_check

    model, calls = Model(3, (5, 7), 4, (16, 8)), []
    own = machine_check.private_step

    def wavering(given, state, batch, noise, scalars):
        calls.append(1)
        noise = noise.copy()
        noise[0] += len(calls) % 2
        return own(given, state, batch, noise, scalars)

    monkeypatch.setattr(machine_check, "private_step", wavering)
    assert not check_step(model, model.initial(Key.from_seed(5)), 40).reproducible


def test_the_check_of_a_machine_sees_products_of_few_bits(monkeypatch):
    from ballsbins.training.jax import machine_check

    def coarse(a, v):
        product = jnp.matmul(a.astype(jnp.bfloat16).T, v.astype(jnp.bfloat16))
        return product.astype(jnp.float64)

    monkeypatch.setattr(machine_check, "chunked_product", coarse)
    model = Model(3, (5, 7), 4, (16, 8))
    found = check_step(model, model.initial(Key.from_seed(5)), 100)
    assert not found.precise
    assert "less precise than their bound" in found.failures[0]


def test_the_check_of_a_machine_sees_infinities_that_are_not_left_out(monkeypatch):
    """As fast-math has it, which takes for granted that there are none."""
    from ballsbins.training.jax import machine_check

    own = machine_check.private_step

    def blind(given, state, batch, noise, scalars):
        state, watched = own(given, state, batch, noise, scalars)
        return state, watched._replace(finite=np.True_)

    monkeypatch.setattr(machine_check, "private_step", blind)
    model = Model(3, (5, 7), 4, (16, 8))
    assert not check_step(model, model.initial(Key.from_seed(5)), 40).precise


# The grid.


def test_eta_covers_what_is_said_to_move():
    """η from its parts, by hand: 64 rows of float32 and 1.5 million dense coordinates at σ = 1."""
    grid = Grid(1.0, 1.0, 64, excess_of(64, 2.0**-24), 1_500_000)
    assert grid.eta == pytest.approx(2 * 64 * 64 * 2.0**-24 + np.sqrt(1.5e6) * 2.0**-26, rel=1e-3)
    assert grid.unit == pytest.approx((1 + grid.eta) * 2.0**-26, rel=1e-12)
    # in units: the clipped contribution, what rounding adds, and the grid, are within 2²⁶/σ
    assert 1.0 / grid.unit * (1 + grid.excess) + np.sqrt(grid.dense) <= 2.0**26
    less = grid.unit / (1 + grid.eta) * (1 + 0.9 * grid.eta)
    assert 1.0 / less * (1 + grid.excess) + np.sqrt(grid.dense) > 2.0**26


@pytest.mark.parametrize("sigma", [0.05, 1.0, 10.0])
@pytest.mark.parametrize("rows", [1024, 8192])
def test_eta_of_the_papers_network_is_small(sigma, rows):
    model = Model(13, (2000,) * 26)
    assert grid_of(model, sigma, 1.0, rows).eta < 2e-3


def test_plans_that_cannot_be_covered_are_refused_with_the_numbers():
    with pytest.raises(
        InvalidInputError, match=r"rows · 2²⁶/σ is '40,000,000 · 2²⁶/1 = .*at most 33,554,432"
    ):
        Grid(1.0, 1.0, 40_000_000, 0.0, 10)
    with pytest.raises(InvalidInputError, match=r"η, .* is '.*', but must be at most 0.5.*σ = 10000"):
        Grid(1e4, 1.0, 10, 0.0, 85_000_000)
    with pytest.raises(InvalidInputError, match="nothing can be claimed"):
        Grid(0.0, 1.0, 10, 0.0, 10)
    with pytest.raises(InvalidInputError, match="unit of the grid"):
        Grid(1.0, 1e-30, 10, 0.0, 10)
    with pytest.raises(InvalidInputError, match="number of parameters"):
        Grid(1.0, 1.0, 10, 0.0, 2 * 10**9)
    with pytest.raises(InvalidInputError, match="clip_norm"):
        Grid(1.0, float("nan"), 10, 0.0, 10)
