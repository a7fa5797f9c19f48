"""What floating point gives away: attacks on the arithmetic that everybody uses, and the same attacks on ours.

    python benchmarks/floating_point.py [--small]

The attacks are those of tests/training_jax/test_floating_point.py and tests/training_torch/test_norms.py, where each
must succeed on a copy of the old arithmetic and fail on ours. Here they are numbers. Norms are in clip norms.
"""

import argparse
import importlib.util
import os
import warnings
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
TESTS = Path(__file__).resolve().parents[1] / "tests"


def module(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def show(what, old, ours):
    print(f"{what:77}{old:>10}{ours:>10}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="fewer batch sizes")
    small = parser.parse_args().small
    warnings.filterwarnings("ignore")
    attacks = module(TESTS / "training_jax" / "test_floating_point.py")

    show("", "float32", "ours")
    ours, before, touched = attacks.first_moments()
    for name, rows in (("rows that the batch looked up", touched), ("other rows", ~touched)):
        shares = []
        for table, test in ((before, attacks.unreachable), (ours, attacks.off_the_grid)):
            shares.append(test(table, attacks.SIGMA * attacks.CLIP, attacks.SIZE).any(axis=1)[rows].mean())
        what = f"{rows.sum():,} {name}: hold a value that noise alone cannot have"
        show(what, *(f"{100 * share:.1f} %" for share in shares))
    for rows in (1024,) if small else (1024, 4096, 8192):
        given = attacks.one_row_batch(rows)
        moves = attacks.old_move(*given, 0, 1.0), attacks.our_move(*given, 0, 1.0)[0]
        show(
            f"one of {rows:,} examples of one table row: moves the sum by", *(f"{move:.4f}" for move in moves)
        )
    *given, clip = attacks.underflowing_batch()
    moves = attacks.old_move(*given, 0, clip) / clip, attacks.our_move(*given, 0, clip)[0] / clip
    show("an example whose squares underflow: moves the sum by", *(f"{move:.4f}" for move in moves))

    import torch
    from opacus.grad_sample.linear import compute_linear_norm_sample

    from ballsbins.training.torch.ghost_clipping import linear_norms

    norms = module(TESTS / "training_torch" / "test_norms.py")
    a, g = norms.cancelling()
    layer = torch.nn.Linear(a.shape[2], g.shape[2])
    found = [float(norm(layer, [a], g)[layer.weight]) for norm in (compute_linear_norm_sample, linear_norms)]
    true = float(norms.true_norms(a, g))
    show(
        f"ghost norm of a sequence that nearly cancels; the true one is {true:.3f}",
        *(f"{norm:.3f}" for norm in found),
    )


if __name__ == "__main__":
    main()
