"""Gaussian noise as exactly distributed integers: r = round(2²⁶·N(0, 1)), a pure function of key, domain and index.

    rounded_normals(key, ("training noise", step), count)      # int32[count], the same on every machine

Every other library draws floating-point numbers that are *nearly* normal, and the gaps between them reveal which sums
the noise was added to. Here the distribution is exact. Each pair of values has an infinite string of random bits, the
AES-256 keystream of its domain. The Box–Muller transform of the two real numbers with these bits is exactly
Gaussian, and r is that real number rounded to the nearest integer. Float64 arithmetic with a proved error bound
decides almost all values (`kernel`), and interval arithmetic with as many bits as needed decides the rest
(`draw`). So r is a function of the bits alone, and NumPy, numba and XLA give identical integers.

Adding r to an integer k gives round(k + 2²⁶·N(0, 1)): a post-processing of the continuous Gaussian mechanism. That is
why every accountant of the Gaussian mechanism holds for it unchanged. The only assumption left is that AES-256 in
counter mode cannot be distinguished from random bits.

This package does not depend on training.
"""

from ballsbins.noise.draw import Domain, rounded_normals
from ballsbins.noise.kernel import SCALE

__all__ = ["SCALE", "SOURCE", "Domain", "rounded_normals"]

SOURCE = "an exactly rounded Gaussian, from AES-256 in counter mode under the key of the run"
