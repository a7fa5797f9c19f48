"""Exact noise: known answers, every executor alike, against ball arithmetic, and what breaks if the kernel does.

Fixed keys; FALSE_ALARM is the probability with which a right generator would have failed when they were chosen.
"""

from __future__ import annotations

import math

import flint
import numpy as np
import pytest
from scipy import stats

from ballsbins.errors import InvalidInputError
from ballsbins.noise import SCALE, draw, rounded_normals
from ballsbins.noise import draw as decide
from ballsbins.noise.kernel import _ROOT_HALF_BITS, HALF, UNDECIDED_RATE, pair_function, with_numpy
from ballsbins.samplers import Key
from ballsbins.samplers.keystream import Keystream

FALSE_ALARM = 1e-6
EXECUTORS = ("numpy", "numba", "xla")
KEY = Key.from_seed(11)
# What this key gives must never change: a run that was begun must be continued with the same noise.
GOLDEN = {0: -16347628, 1: 76164613, 4095: 11723117, 4096: 69742856, 8191: -50013709, 8192: -56618684}


def balls(w, a, bits=64):
    """Both values by Arb, for all reals that begin with these bits: an evaluation that shares no code with ours."""
    flint.ctx.prec = bits + 64
    unit = flint.arb(2) ** -bits

    def begins_with(word):
        return (flint.arb(word) + flint.arb(0.5, 0.5)) * unit

    length = (begins_with(w).log() * -2).sqrt() * 2**26
    turn = (begins_with(a) * 8 - 1) / 4  # of π
    return length * turn.cos_pi(), length * turn.sin_pi()


def nearest(ball):
    """The nearest integer to all of a ball, or None."""
    found = (ball + flint.arb("0.5")).floor().unique_fmpz()
    return None if found is None else int(found)


def kernel(words, pair=with_numpy):
    w, a = (np.asarray(part, np.uint64).view(np.int64) for part in words)
    one, two, undecided = pair(w, a)
    return one, two, undecided


def interesting_words(count, seed):
    """Random pairs, tails, values near U = 1, ends of quarters, and powers of two with their neighbours."""
    rng = np.random.default_rng(seed)
    w = rng.integers(0, 2**64, count, dtype=np.uint64)
    a = rng.integers(0, 2**64, count, dtype=np.uint64)
    shift = rng.integers(0, 22, count).astype(np.uint64)
    w[: count // 4] >>= shift[: count // 4]
    near = slice(count // 4, count // 2)
    w[near] = ~(w[near] >> (shift[near] + np.uint64(8)))
    quarters = rng.integers(0, 4, count // 8).astype(np.uint64) << np.uint64(62)
    a[: count // 8] = quarters + rng.integers(-3, 4, count // 8).astype(np.int64).view(np.uint64)
    powers = np.uint64(2) ** rng.integers(44, 64, count // 8).astype(np.uint64)
    w[-(count // 4) : -(count // 8)] = powers + rng.integers(-2, 3, count // 8).astype(np.int64).view(
        np.uint64
    )
    # where U and V change places, and √½, at which an exponent would be lost if they changed there
    for part, seam in (
        (slice(-(count // 16), None), 0.7071),
        (slice(-(count // 8), -(count // 16)), math.sqrt(0.5)),
    ):
        word = np.uint64(math.ceil(seam * 2.0**64))
        w[part] = word + rng.integers(-5, 6, len(w[part])).astype(np.int64).view(np.uint64)
    return w, a


def wrong_values(words, pair=with_numpy):
    """How many values the kernel calls decided and gets wrong, by ball arithmetic."""
    one, two, undecided = kernel(words, pair)
    wrong = 0
    for place in np.flatnonzero(~undecided):
        exact = balls(int(words[0][place]), int(words[1][place]))
        for mine, ball in zip((one[place], two[place]), exact, strict=True):
            wrong += nearest(ball) != int(mine)
    return wrong


def pair_without(old, new):
    """The kernel with one thing in its source changed."""
    import inspect

    from ballsbins.noise import kernel as module

    source = inspect.getsource(pair_function)
    assert old in source
    names = dict(vars(module))
    exec(source.replace(old, new), names)  # our own source
    return names["pair_function"](
        np.where, lambda x: x.view(np.int64), lambda i: i.view(np.float64), np.sqrt, np.rint
    )


def closest_to_half_integers(count, seed):
    """Of many random pairs those whose first value is nearest to a half-integer, but decided."""
    rng = np.random.default_rng(seed)
    w, a = (rng.integers(0, 2**64, 1 << 21, dtype=np.uint64) for _ in range(2))
    with np.errstate(all="ignore"):
        _, _, undecided = kernel((w, a))
    x = np.sqrt(-2 * np.log((w + 0.5) * 2.0**-64)) * np.cos(2 * np.pi * ((a + 0.5) * 2.0**-64) - np.pi / 4)
    distance = np.abs(np.mod(SCALE * x, 1.0) - 0.5)
    distance[undecided] = 1.0
    place = np.argsort(distance)[:count]
    return w[place], a[place]


def test_the_kernel_decides_nothing_wrongly():
    assert wrong_values(interesting_words(4000, 1)) == 0


def test_the_kernel_is_right_where_it_is_hardest():
    """Values nearest to half-integers; a kernel whose polynomials lack their last two or three terms fails here."""
    words = closest_to_half_integers(400, 2)
    assert wrong_values(words) == 0
    for terms in (
        "((2.0 / 19 * y + 2.0 / 17) * y + 2.0 / 15)",
        "(_INVERSE[16] * y - _INVERSE[14])",
        "(-_INVERSE[15] * y + _INVERSE[13])",
    ):
        assert wrong_values(words, pair_without(f"{terms} * y", "0.0 * y")) > 0


def test_the_error_of_the_kernel_is_within_the_analysis():
    """16u·R at the middle of the reals that begin with these bits; the largest seen is far below."""
    w, a = interesting_words(3000, 3)
    pair = pair_without("return one, two, undecided", "return first, second, undecided")
    first, second, undecided = kernel((w, a), pair)
    worst = 0.0
    for place in np.flatnonzero(~undecided):
        exact = balls(((2 * int(w[place]) + 1) << 191) - 1, int(a[place]) << 192, 256)
        length = float((exact[0] ** 2 + exact[1] ** 2).sqrt().mid())
        for mine, ball in zip((first[place], second[place]), exact, strict=True):
            worst = max(worst, float(abs(flint.arb(float(mine)) - ball).upper()) / length)
    assert worst * 2.0**53 < 16.0
    assert worst * 2.0**53 > 0.3  # the measurement measures


def test_undecided_pairs_are_as_rare_as_the_analysis_says():
    """A false bound would be seen by nothing else if it sent everything to the slow path, or nothing."""
    rng = np.random.default_rng(4)
    count = 1 << 22
    words = (rng.integers(0, 2**64, count, dtype=np.uint64) for _ in range(2))
    undecided = int(kernel(tuple(words))[2].sum())
    assert stats.binomtest(undecided, count, UNDECIDED_RATE).pvalue > FALSE_ALARM
    assert stats.binomtest(undecided, count, 4 * UNDECIDED_RATE).pvalue < FALSE_ALARM
    assert stats.binomtest(0, count, UNDECIDED_RATE).pvalue < 0.01


def test_ball_arithmetic_agrees_on_what_the_kernel_left_open():
    """Pairs with few bits and values at half-integers, where one level of words does not do."""
    rng = np.random.default_rng(5)
    for number in range(60):
        words = [tuple(int(x) for x in rng.integers(0, 2**64, 2, dtype=np.uint64)) for _ in range(4)]
        if number % 3 == 0:
            words[0] = (words[0][0] >> 40 + number % 20, words[0][1])
        if number % 3 == 1:
            words[0] = (2**64 - 1 - (words[0][0] >> 50), words[0][1])
        if number == 0:
            words[0] = (0, 0)
        w, a = (sum(level[k] << 64 * (3 - at) for at, level in enumerate(words)) for k in range(2))
        expected = tuple(nearest(ball) for ball in balls(w, a, 256))
        assert decide.decided_pair(lambda level, words=words: words[level]) == expected


def test_a_value_that_sits_on_a_half_integer_takes_another_level():
    """Find bits whose first level cannot tell, by following a half-integer back to its angle."""
    levels = []
    w, target = 2**62, flint.arb("12345678.5")
    flint.ctx.prec = 300
    length = (flint.arb(w).log() * -2 + 2 * 64 * flint.arb(2).log()).sqrt() * 2**26
    turn = (target / length).acos() / (2 * flint.arb.pi()) + flint.arb("0.125")
    a = int((turn * 2**64).floor().unique_fmpz())

    def words(level):
        levels.append(level)
        return (w, a) if level == 0 else (0, 2**63)

    decide.decided_pair(words)
    assert levels == [0, 1]


def test_known_answers():
    drawn = rounded_normals(KEY, ("known answers", 3), 10_000)
    assert {place: int(drawn[place]) for place in GOLDEN} == GOLDEN


@pytest.mark.parametrize("executor", EXECUTORS)
def test_executors_give_identical_integers(executor, monkeypatch):
    expected = rounded_normals(KEY, ("alike", 1), 300_001, executor="numpy", threads=1)
    for threads in (1, 2):
        np.testing.assert_array_equal(
            rounded_normals(KEY, ("alike", 1), 300_001, executor=executor, threads=threads), expected
        )
    # and on pairs that are rare: tails, seams, ends of quarters
    w, a = interesting_words(4 * HALF, 6)
    words = np.stack([w.reshape(-1, HALF), a.reshape(-1, HALF)], axis=1).reshape(-1).view(np.int64)
    found, reference = np.empty(len(words), np.int32), np.empty(len(words), np.int32)
    undecided = draw._fill(executor)(words, found)
    open_pairs = draw._fill("numpy")(words, reference)
    decided = np.ones(len(w), bool)
    decided[undecided] = decided[open_pairs] = False
    assert 0.5 < decided.mean() < 1.0
    both = [part.reshape(-1, 2, HALF).transpose(0, 2, 1).reshape(-1, 2) for part in (found, reference)]
    np.testing.assert_array_equal(both[0][decided], both[1][decided])


def test_float32_normals_are_not_these_integers():
    """The negative control of all above: what everybody does is wrong in the low bits of nearly every value."""
    stream = Keystream(KEY, "rounded normals", "known answers", 3)
    w, a = stream.words64(0, 0, 2 * HALF).reshape(2, HALF)
    u, turn = (w + 0.5) * np.float32(2.0**-64), (a * np.float32(2.0**-64)).astype(np.float32)
    angle = np.float32(2 * np.pi) * turn - np.float32(np.pi / 4)
    z = np.sqrt(-2 * np.log(u.astype(np.float32))) * np.cos(angle)
    exact = rounded_normals(KEY, ("known answers", 3), HALF)
    assert np.mean(np.rint(SCALE * z.astype(np.float32)) == exact) < 0.5
    np.testing.assert_allclose(exact / SCALE, z, atol=1e-4)


@pytest.fixture(scope="module")
def values():
    return rounded_normals(KEY, ("statistics",), 1 << 22)


def test_values_are_normal(values):
    z = values[: 1 << 20] / SCALE
    assert stats.kstest(z, "norm").pvalue > FALSE_ALARM
    for wrong in (1.02, 0.98):
        assert stats.kstest(z * wrong, "norm").pvalue < FALSE_ALARM
    total = float(np.square(values / SCALE).sum())
    assert min(stats.chi2.sf(total, values.size), stats.chi2.cdf(total, values.size)) > FALSE_ALARM / 2
    for limit in (3.0, 4.5):
        beyond = int((np.abs(values) > limit * SCALE).sum())
        assert stats.binomtest(beyond, values.size, 2 * stats.norm.sf(limit)).pvalue > FALSE_ALARM


def test_values_of_a_block_are_unrelated(values):
    cosines, sines = values.reshape(-1, 2, HALF).transpose(1, 0, 2).reshape(2, -1) / SCALE
    bound = stats.norm.isf(FALSE_ALARM / 2) / math.sqrt(cosines.size)
    for f in (lambda x: x, np.square, np.abs):
        assert abs(np.corrcoef(f(cosines), f(sines))[0, 1]) < bound
        assert abs(np.corrcoef(f(cosines[1:]), f(cosines[:-1]))[0, 1]) < bound


def low_bits_are_uniform(integers, bits):
    counts = np.bincount(np.asarray(integers, np.int64) & (2**bits - 1), minlength=2**bits)
    return stats.chisquare(counts).pvalue > FALSE_ALARM


def test_low_bits_are_uniform_also_of_small_and_large_values(values):
    """Float32 noise on the same grid is seen: its large values are multiples of 2, 4 and 8."""
    for part in (values, values[np.abs(values) < 2**22], values[np.abs(values) > 2**27]):
        assert low_bits_are_uniform(part, 4)
    coarse = np.rint(SCALE * (values / SCALE).astype(np.float32))
    assert not low_bits_are_uniform(coarse[np.abs(coarse) > 2**27], 4)
    assert not low_bits_are_uniform(16 * np.rint(values / 16.0), 4)


def test_the_tail_has_no_end():
    """A first word of 0 gives a value that no 64-bit generator reaches; more bits are drawn to tell which."""
    assert kernel(([0], [0]))[2].all()
    one, two = decide.decided_pair(lambda level: (0 if level == 0 else 2**63 + level, 5))
    assert math.hypot(one, two) / SCALE > 9.4
    assert math.hypot(one, two) / SCALE == pytest.approx(math.sqrt(2 * 65 * math.log(2)), rel=1e-8)


def test_a_shift_by_one_unit_costs_what_the_gaussian_says():
    """KL(k + r ‖ k + 1 + r) from the exact probabilities is 1/(2s²), s = the deviation in units; here s = 20.

    A coarse grid with uniform dither below it does not have that: one fine unit costs c times as much.
    """
    s, span = 20.0, 400
    at = np.arange(-span, span + 1)

    def probabilities(width):
        left = -np.abs(at)  # where the distribution function is accurate
        return stats.norm.cdf((left + width / 2) / s) - stats.norm.cdf((left - width / 2) / s)

    def divergence(p):
        inner = slice(120, -120)
        return float(np.sum(p[inner] * np.log(p[inner] / p[np.arange(len(p)) - 1][inner])))

    assert divergence(probabilities(1)) == pytest.approx(1 / (2 * s * s), rel=1e-3)
    c = 4  # Gaussian rounded to multiples of 4, then spread uniformly over the four units
    coarse = np.repeat(probabilities(c)[::c], c)[: len(at)] / c
    assert divergence(coarse) == pytest.approx(c / (2 * s * s), rel=0.01)


def test_values_follow_from_key_domain_and_index_alone():
    whole = rounded_normals(KEY, ("a", 1), 70_000)
    np.testing.assert_array_equal(whole[:9_000], rounded_normals(KEY, ("a", 1), 9_000))
    room = np.full(80_000, 7, np.int32)
    assert rounded_normals(KEY, ("a", 1), 70_000, out=room).base is room
    np.testing.assert_array_equal(room[:70_000], whole)
    assert (room[70_000:] == 7).all()
    others = [
        rounded_normals(KEY, ("a", 2), 70_000),
        rounded_normals(KEY, ("b", 1), 70_000),
        rounded_normals(Key.from_seed(12), ("a", 1), 70_000),
        np.roll(whole, HALF),
    ]
    for other in others:
        assert (whole == other).mean() < 1e-3
        assert abs(np.corrcoef(whole, other)[0, 1]) < stats.norm.isf(FALSE_ALARM) / math.sqrt(70_000)


@pytest.mark.parametrize("count", [0, 1, HALF - 1, 2 * HALF + 1])
def test_any_number_of_values(count):
    assert len(rounded_normals(KEY, ("a", 1), count)) == count


def test_bad_input():
    with pytest.raises(InvalidInputError, match="count"):
        rounded_normals(KEY, ("a",), -1)
    with pytest.raises(
        InvalidInputError, match=r"out is 'int64\(5,\)', but must be int32 of at least \(5,\)"
    ):
        rounded_normals(KEY, ("a",), 5, out=np.empty(5, np.int64))
    with pytest.raises(InvalidInputError, match="out"):
        rounded_normals(KEY, ("a",), 5, out=np.empty(4, np.int32))
    with pytest.raises(InvalidInputError, match="executor is 'cuda'"):
        rounded_normals(KEY, ("a",), 5, executor="cuda")


def test_constants_are_what_their_names_say():
    assert np.int64(_ROOT_HALF_BITS).view(np.float64) == math.sqrt(0.5)
    assert pytest.approx(3.1e-6, rel=0.02) == UNDECIDED_RATE
