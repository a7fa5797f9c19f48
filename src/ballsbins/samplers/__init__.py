"""How batches are drawn: four samplers, the key that determines the batches, and physical batches."""

from ballsbins.samplers.balls_and_bins import BallsAndBins
from ballsbins.samplers.base import Batches, Sampler, pooled_noise
from ballsbins.samplers.even_batches import Deterministic, Shuffle
from ballsbins.samplers.key import KEY_FILE_VARIABLE, Key, as_key, new_key
from ballsbins.samplers.physical import PaddedBatch, pad, rank_slice, split, split_padded, truncate
from ballsbins.samplers.poisson import Poisson
from ballsbins.samplers.presorted import binomial_sizes, cut_in_order, thrown_sizes

__all__ = [
    "KEY_FILE_VARIABLE",
    "SAMPLERS",
    "BallsAndBins",
    "Batches",
    "Deterministic",
    "Key",
    "PaddedBatch",
    "Poisson",
    "Sampler",
    "Shuffle",
    "as_key",
    "binomial_sizes",
    "cut_in_order",
    "new_key",
    "pad",
    "pooled_noise",
    "rank_slice",
    "split",
    "split_padded",
    "thrown_sizes",
    "truncate",
]

# The samplers of the paper's comparison.
SAMPLERS: tuple[type[Sampler], ...] = (BallsAndBins, Poisson, Shuffle, Deterministic)
