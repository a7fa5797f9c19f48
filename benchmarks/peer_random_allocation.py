"""Run by the peer's own Python: ε of Gaussian random allocation by PLD_accounting, with its CPU time, as JSON.

python benchmarks/peer_random_allocation.py SIGMA STEPS EPOCHS DELTA
"""

import json
import sys
import time

from PLD_accounting import gaussian_allocation_epsilon_range

sigma, steps, epochs, delta = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
begin = time.process_time()
upper, lower = gaussian_allocation_epsilon_range(delta=delta, sigma=sigma, num_steps=steps, num_epochs=epochs)
print(json.dumps({"lower": lower, "upper": upper, "seconds": time.process_time() - begin}))
