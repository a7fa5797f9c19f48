"""Run by the peer's own Python: ε of Gaussian random allocation by PLD_accounting, with its CPU time, as JSON.

The time is the better of two calls: in the first, numba may have to compile.

python benchmarks/peer_random_allocation.py SIGMA STEPS EPOCHS DELTA
"""

import json
import sys
import time

from PLD_accounting import gaussian_allocation_epsilon_range, has_numba

sigma, steps, epochs, delta = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
seconds = float("inf")
for _ in range(2):
    begin = time.process_time()
    upper, lower = gaussian_allocation_epsilon_range(
        delta=delta, sigma=sigma, num_steps=steps, num_epochs=epochs
    )
    seconds = min(seconds, time.process_time() - begin)
print(json.dumps({"lower": lower, "upper": upper, "seconds": seconds, "compiled": has_numba()}))
