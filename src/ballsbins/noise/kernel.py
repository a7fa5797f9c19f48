"""The float64 arithmetic of the Box–Muller transform, its error bound, and which values it leaves undecided.

A pair of values has two 64-bit words w and a, the first bits of two infinite strings. They stand for the real numbers

    U = (w + θ)·2⁻⁶⁴   and   A = (a + θ′)·2⁻⁶⁴,   θ, θ′ in [0, 1] the bits that follow,

and the values are 2²⁶·R·cos φ and 2²⁶·R·sin φ with R = √(−2 ln U) and φ = 2πA − π/4 (a rotation of the circle does
not change the distribution, and puts the middle of a quarter where the polynomials are best).

**Arithmetic.** The kernel uses only + − × ÷ √, which IEEE 754 rounds correctly, exact operations on bits, and
polynomials. Let u = 2⁻⁵³. A multiply-add may be fused or not: the bound counts the roundings of both.

1. *Near 1 the complement is used.* If U ≥ 0.7071, V = 1 − U = (¬w + 1 − θ)·2⁻⁶⁴ is used in place of U, so that no
   rounded difference is ever converted. With n = w or ¬w, x = (n + ½)·2⁻⁶⁴ has relative error at most 2u
   (conversion and the addition of ½), and n + θ differs from n + ½ by at most ½. The seam lies so far below √½ that
   what is not near 1 stays below √½ when it is rounded: its exponent e is at most −1.
2. *Logarithm.* Away from 1: x = 2ᵉ·m with m in [√½, √2), exact on the bits; t = (m − 1)/(m + 1). Near 1: t = −x/(2
   − x). In both |t| ≤ 0.1716, and ln m (or ln(1 − x)) = 2 artanh t = t·(2 + 2t²/3 + … + 2t¹⁸/19) with a relative
   truncation error below t²⁰/21/(1 − t²) < 2.5·10⁻¹⁷ < 0.3u. t has relative error 2u (m − 1 is exact, m + 1 and the
   quotient round), the polynomial's part beyond its constant is at most 0.011 of it and adds 0.2u, its last
   addition u, the product u: together 4.5u. Away from 1, e·ln 2 has relative error 2u, and because ln U ≤ −0.3466
   where e < 0, |e·ln 2| ≤ 2·|ln U|: with the sum's rounding −ln U has relative error (2·2 + 4.5 + 1)u, and from the
   2u of x, which move ln U by 2u ≤ 5.8u·|ln U|, in all 15.3u. Near 1 it is 4.5u + 2u·1.2 < 7u. So R = √(−2 ln U) is
   right to 15.3u/2 + u < 8.7u.
3. *Angle.* Two bits of a choose the quarter, 62 the angle X in [−π/4, π/4). X has relative error 3u (conversion,
   constant, product). The sine is X·(1 − X²/6 + … − X¹⁴/15!), truncated at X¹⁶/17! < 6·10⁻¹⁷ < 0.6u: relative error
   6u. The cosine is 1 − X²/2 + … + X¹⁶/16!, truncated below 2·10⁻¹⁸, absolute error below 3.6u where it is at least
   √½: relative error below 5.1u.
4. *Product.* R·cos φ and R·sin φ: (8.7 + 6 + 1)u = 15.7u, second-order terms included: below 16u·R = 2⁻⁴⁹·R.
   The factor 2²⁶ is exact: below 2⁻²³·R in units of r.
5. *Unspecified bits.* θ moves x by at most a factor 1 ± 1/(2n). Away from 1 that moves −ln U by ½/n and R by
   ½/(n·R); near 1 it moves R by R/(4n)·1.2. Left undecided are pairs with n < 2⁴⁴ away from 1 and with n < 2³² near
   1. For all others, in units of r, this is at most 2⁻¹⁹/R ≤ 2⁻²¹·³ away from 1 (at n = 2⁴⁴, where R = 5.26; it
   falls as n grows), a quarter of what point 6 allows there, and at most 2⁻²³·² near 1 (where R = √(2n·2⁻⁶⁴)),
   which is less than half of it. θ′ moves the values by less than 2⁻³⁵.
6. *Decision.* A value is decided if it is further than 2⁻²²·(R + 1) from the nearest half-integer. The error of 4
   is below half of that wherever R is large; near 1, where R < 0.84, it is below a quarter. So 4 and 5 together
   stay below it. All others, about 3·10⁻⁶ of the pairs, are decided in `draw`.

`tests/noise` compares every step with ball arithmetic, and confirms that a kernel fails if a polynomial lacks a term.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

SCALE_BITS = 26
SCALE = float(2**SCALE_BITS)  # r is a normal variable in units of 2⁻²⁶ standard deviations, rounded
HALF = 4096  # pairs per block: it has HALF words w, then HALF words a; its values are cosines, then sines
# Of pairs: 2⁻²⁰ with few bits (point 5), and two values within the tolerance of either side (point 6), E[R] = √(π/2).
UNDECIDED_RATE = 2.0**-20 + 4.0 * 2.0**-22 * (1.0 + math.sqrt(math.pi / 2.0))

_TOLERANCE = 2.0**-22  # point 6
_LEAST, _LEAST_NEAR = 2.0**-20, 2.0**-32  # of x: n ≥ 2⁴⁴ away from 1, n ≥ 2³² near 1 (point 5)
# All integer constants are signed 64-bit values, because NumPy, numba and XLA agree on how to treat these.
_NEAR = math.ceil(0.7071 * 2.0**64) - 2**63  # 0.7071·2⁶⁴ as a signed word with its first bit flipped
_SIGN = -(2**63)
_ROOT_HALF_BITS = int(np.float64(math.sqrt(0.5)).view(np.int64))
_BITS_2_52 = int(np.float64(2.0**52).view(np.int64))
_BITS_2_84 = int(np.float64(2.0**84).view(np.int64))
_LOW = 2**32 - 1
_ANGLE = math.pi / 4 * 2.0**-63
_LN2 = math.log(2.0)
_INVERSE = tuple(1.0 / math.factorial(k) for k in range(17))


def pair_function(
    where: Callable[..., Any],
    bits_of: Callable[[Any], Any],
    float_of: Callable[[Any], Any],
    root: Callable[[Any], Any],
    nearest: Callable[[Any], Any],
) -> Callable[[Any, Any], tuple[Any, Any, Any]]:
    """Return the arithmetic of one pair (or of arrays of pairs) in terms of given operations.

    Args:
        where: (condition, a, b) → a where the condition holds, else b.
        bits_of: the bits of a float64 as int64.
        float_of: the float64 with these bits.
        root: the square root.
        nearest: the nearest integer, as float64.

    Returns:
        A function of two int64 words w and a: the two integers, as float64, and whether they are undecided.
    """

    def pair(w: Any, a: Any) -> tuple[Any, Any, Any]:
        near = (w ^ _SIGN) >= _NEAR
        n = where(near, ~w, w)
        # An unsigned 64-bit integer as float64, in two halves whose bits are set into 2⁸⁴ and 2⁵².
        high, low = float_of(((n >> 32) & _LOW) | _BITS_2_84), float_of((n & _LOW) | _BITS_2_52)
        x = (((high - (2.0**84 + 2.0**52)) + low) + 0.5) * 2.0**-64
        above = bits_of(x) - _ROOT_HALF_BITS
        exponent = above >> 52
        m = float_of(bits_of(x) - (exponent << 52))
        # The exponent, from −64 to −1, as float64: its twelve bits are set into 2⁵².
        e = where(near, 0.0, float_of((exponent & 0xFFF) | _BITS_2_52) - (2.0**52 + 4096.0))
        t = where(near, -x, m - 1.0) / where(near, 2.0 - x, m + 1.0)
        y = t * t
        # Written out, not looped: numba and XLA then keep everything in registers.
        q = ((2.0 / 19 * y + 2.0 / 17) * y + 2.0 / 15) * y + 2.0 / 13
        q = ((q * y + 2.0 / 11) * y + 2.0 / 9) * y + 2.0 / 7
        q = ((q * y + 2.0 / 5) * y + 2.0 / 3) * y + 2.0
        radius = root(-2.0 * (e * _LN2 + t * q))

        turned = a << 2
        high, low = (
            float_of(((turned >> 32) & _LOW) | _BITS_2_84),
            float_of((turned & _LOW) | _BITS_2_52),
        )
        angle = ((high - (2.0**84 + 2.0**63)) + (low - 2.0**52)) * _ANGLE
        y = angle * angle
        sine = ((-_INVERSE[15] * y + _INVERSE[13]) * y - _INVERSE[11]) * y + _INVERSE[9]
        sine = (((sine * y - _INVERSE[7]) * y + _INVERSE[5]) * y - _INVERSE[3]) * y + 1.0
        sine = sine * angle
        cosine = ((_INVERSE[16] * y - _INVERSE[14]) * y + _INVERSE[12]) * y - _INVERSE[10]
        cosine = (((cosine * y + _INVERSE[8]) * y - _INVERSE[6]) * y + _INVERSE[4]) * y - 0.5
        cosine = cosine * y + 1.0
        # Quarters 0, 1, 2, 3 turn (c, s) to (c, s), (−s, c), (−c, −s), (s, −c).
        odd = (a & 2**62) != 0
        length = float_of(bits_of(radius * SCALE) ^ (a & _SIGN))
        first = length * where(odd, -sine, cosine)
        second = length * where(odd, cosine, sine)
        one, two = nearest(first), nearest(second)
        limit = 0.5 - _TOLERANCE * (radius + 1.0)
        least = where(near, _LEAST_NEAR, _LEAST)
        undecided = (abs(first - one) > limit) | (abs(second - two) > limit) | (x < least)
        return one, two, undecided

    return pair


with_numpy = pair_function(
    np.where, lambda x: x.view(np.int64), lambda i: i.view(np.float64), np.sqrt, np.rint
)


@cache
def with_xla() -> Callable[[NDArray[np.int64], NDArray[np.int32]], NDArray[np.int64]]:
    """The kernel compiled by XLA, for machines with JAX but without numba. Always on the CPU, in float64."""
    import jax
    import jax.numpy as jnp

    pair = pair_function(
        jnp.where,
        lambda x: jax.lax.bitcast_convert_type(x, jnp.int64),
        lambda i: jax.lax.bitcast_convert_type(i, jnp.float64),
        jnp.sqrt,
        jnp.rint,
    )

    @jax.jit
    def blocks(words: jax.Array) -> tuple[jax.Array, jax.Array]:
        one, two, undecided = pair(words[:, 0], words[:, 1])
        return jnp.stack([one, two], axis=1).astype(jnp.int32), undecided

    def fill(words: NDArray[np.int64], out: NDArray[np.int32]) -> NDArray[np.int64]:
        with jax.enable_x64(True), jax.default_device(jax.local_devices(backend="cpu")[0]):
            drawn, undecided = blocks(words.reshape(-1, 2, HALF))
            out[:] = np.asarray(drawn).reshape(-1)
            return np.flatnonzero(np.asarray(undecided))

    return fill
