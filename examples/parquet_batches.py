"""Balls-and-bins batches of a Parquet data set: written once, in batch order, and read front to back.

The table may be larger than memory. Needs `pip install '.[data]'`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ballsbins import BallsAndBins, Mechanism, new_key
from ballsbins.batch_files import BatchFiles
from ballsbins.batch_files.build import build_epochs
from ballsbins.batch_files.build_plan import plan_build
from ballsbins.batch_files.inputs import open_inputs
from ballsbins.report.numbers import up

folder = Path(tempfile.mkdtemp())
random = np.random.default_rng(0)
for part in range(4):  # a data set in four files, as another program might have written it
    rows = 25_000
    table = pa.table({"x": random.random(rows, np.float32), "label": random.integers(0, 2, rows)})
    pq.write_table(table, folder / f"clicks-{part}.parquet")

mechanism = Mechanism(BallsAndBins(steps=200), noise_multiplier=0.8, epochs=2)
inputs = open_inputs(sorted(folder.glob("clicks-*.parquet")))
prepared = plan_build(inputs, mechanism.sampler)
key = new_key()  # in earnest: ballsbins key run.key, and Key.from_file("run.key")
build_epochs(prepared, folder / "batches", key, epochs=range(mechanism.epochs))

files = BatchFiles.open(folder / "batches")
steps = seen = 0
for epoch in range(mechanism.epochs):
    # a batch is used like a pyarrow record batch; an empty one is a step too, of noise alone
    for batch in files.batches(epoch):
        features = batch["x"].to_numpy()
        steps, seen = steps + 1, seen + len(features)  # train here: clip, sum, add noise, divide by n/T
print(f"{steps} steps, {seen:,} rows: every one of the {prepared.num_examples:,} once in each of 2 epochs")

expected = prepared.num_examples / mechanism.sampler.steps
print(f"divide every noisy sum by the public n/T = {expected:g}, never by the size of the batch")
print(f"ε ≤ {up(mechanism.epsilon(1e-6).upper)} at δ = 1e-6, if the files stay as secret as the key")
