"""What a private step in JAX costs, as ratios to the plain step and to what others take in the same run.

    python benchmarks/training.py [--small] [--save [DIR]]

The paper's network with 4 million parameters (26 categories of 2,000 buckets, 13 integers, three layers of 598) and
with the paper's 85 million, and Adam, on all cores. Steps of the kinds take turns, and the best of each counts, so
that other load on the machine matters little. What no step can go below is timed beside them: the products of
matrices alone, forward and back. Peers take the same step: jax_privacy, which forms the gradients of single examples,
and Opacus' ghost clipping, which does not. Opacus is timed once more beside other busy processes, as on a shared
machine, where its threads wait for one another. The memory is what XLA plans for temporaries, by batch size and by
number of rows. The private step has the whole guarantee for floating point; η is the part of its noise that covers
rounding. benchmarks/training_torch.py has the steps of PyTorch.
"""

import argparse
import itertools
import warnings

import jax
import jax.numpy as jnp
import numpy as np

import record
from ballsbins.data.criteo import DISPLAY_ADS
from ballsbins.noise import rounded_normals
from ballsbins.noise.draw import NoiseAhead
from ballsbins.samplers import Key
from ballsbins.training.jax.model import Batch, Model, losses
from ballsbins.training.jax.private_step import (
    Scalars,
    _private_step,
    grid_of,
    initial_state,
    plain_step,
    private_step,
)
from turns import busy, in_turns

BUCKETS, CATEGORIES, INTEGERS = 2000, 26, 13
WIDTHS = (48 * CATEGORIES + INTEGERS, 598, 598, 598)
KEY = Key.from_seed(1)
SIGMA = 1.0
MODEL = Model(INTEGERS, (BUCKETS,) * CATEGORIES)
OURS = "private step, ours"
MICROBATCH = 1  # the fastest here of 1, 4, 16, 32 and 64 examples at once


def draw(size):
    rng = np.random.default_rng(0)
    return Batch(
        (rng.random(size) < 0.3).astype(np.float32),
        rng.random((size, INTEGERS), dtype=np.float32),
        rng.integers(0, BUCKETS, (size, CATEGORIES)).astype(np.int32),
        np.ones(size, np.float32),
    )


def jax_jobs(model, batch):
    """A plain step and a private one, each with a state of its own."""
    size = len(batch.labels)
    unit = grid_of(model, SIGMA, 1.0, size).unit
    scalars = Scalars(np.float32(1e-3), np.float64(1.0), np.float64(unit), np.float64(size))
    states = [initial_state(model.initial(KEY)) for _ in range(2)]
    noise, numbers = NoiseAhead(rooms=2, wait=jax.block_until_ready), itertools.count()
    count = model.num_parameters

    def plain():
        states[0], _ = plain_step(model, states[0], batch, scalars)
        jax.block_until_ready(states[0])

    def private():
        step = next(numbers)
        drawn = noise.of(KEY, ("benchmark", step), count)
        states[1], watched = private_step(model, states[1], batch, drawn, scalars)
        noise.read_by(watched)
        noise.begin(KEY, ("benchmark", step + 1), count)
        jax.block_until_ready(states[1])

    return {"plain": plain, "private": private}


def products_job(size):
    """The products of matrices that any step of this network takes: one forward, two back, for each layer."""
    random = np.random.default_rng(0)
    layers = [
        [jnp.asarray(random.random(shape, np.float32)) for shape in ((size, a), (a, b), (size, b))]
        for a, b in itertools.pairwise(WIDTHS)
    ]
    products = jax.jit(lambda layers: [(x @ w, g @ w.T, x.T @ g) for x, w, g in layers])
    return lambda: jax.block_until_ready(products(layers))


def opacus_job(batch, *, one_table):
    """The same network and step in PyTorch, clipped by Opacus without per-example gradients.

    Its tables are one module each, or one matrix for all of them as in our own step.
    """
    import torch
    from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import (
        GradSampleModuleFastGradientClipping,
    )
    from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            count, rows = (1, CATEGORIES * BUCKETS) if one_table else (CATEGORIES, BUCKETS)
            self.tables = torch.nn.ModuleList(torch.nn.Embedding(rows, 48) for _ in range(count))
            layers = []
            for a, b in itertools.pairwise(WIDTHS):
                layers += [torch.nn.Linear(a, b), torch.nn.ReLU()]
            self.dense = torch.nn.Sequential(*layers, torch.nn.Linear(598, 1))

        def forward(self, integers, categories):
            if one_table:
                rows = [self.tables[0](categories + BUCKETS * torch.arange(CATEGORIES)).flatten(1)]
            else:
                rows = [table(categories[:, k]) for k, table in enumerate(self.tables)]
            return self.dense(torch.cat([*rows, integers], dim=1))[:, 0]

    size = len(batch.labels)
    network = GradSampleModuleFastGradientClipping(
        Network(), max_grad_norm=1.0, use_ghost_clipping=True, loss_reduction="mean"
    )
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.Adam(network.parameters(), lr=1e-3),
        noise_multiplier=0.5,
        max_grad_norm=1.0,
        expected_batch_size=size,
        loss_reduction="mean",
    )
    loss = DPLossFastGradientClipping(
        network, optimizer, torch.nn.BCEWithLogitsLoss(reduction="mean"), "mean"
    )
    labels, integers = torch.from_numpy(batch.labels), torch.from_numpy(batch.integers)
    categories = torch.from_numpy(batch.categories).long()

    def step():
        optimizer.zero_grad()
        loss(network(integers, categories), labels).backward()
        optimizer.step()

    return step


def jax_privacy_job(model, batch):
    """The same network and step by jax_privacy and optax: the gradient of each example is formed, clipped and added.

    Its noise is jax.random.normal's, in float32.
    """
    import jax_privacy
    import optax

    size = len(batch.labels)

    def loss(parameters, examples):
        return losses(model.forward(parameters, examples).logits, examples).mean()

    gradient = jax_privacy.clipped_grad(loss, l2_clip_norm=1.0, normalize_by=size, microbatch_size=MICROBATCH)
    noise = jax_privacy.noise_addition.gaussian_privatizer(stddev=SIGMA / size, prng_key=jax.random.key(0))
    optimizer = optax.adam(1e-3)
    parameters = model.initial(KEY)
    state = [parameters, noise.init(parameters), optimizer.init(parameters)]

    @jax.jit
    def take(parameters, noise_state, moments):
        noisy, noise_state = noise.update(gradient(parameters, batch), noise_state)
        updates, moments = optimizer.update(noisy, moments)
        return optax.apply_updates(parameters, updates), noise_state, moments

    def step():
        state[:] = take(*state)
        jax.block_until_ready(state)

    return step


def compare_steps(small):
    """The private step beside the plain one, by size of the network and of the batch."""
    model, paper = MODEL, Model(INTEGERS, tuple(DISPLAY_ADS.buckets.values()))
    rows = []
    print(f"{jax.device_count()} device, the best of steps that take turns")
    print(
        f"{'parameters':>12}{'batch':>7}{'plain s':>10}{'private s':>11}{'ratio':>8}{'at most':>9}{'η':>10}"
    )
    for network, size in [(model, 128)] if small else itertools.product((model, paper), (1024, 8192)):
        taken = in_turns(jax_jobs(network, draw(size)), 2 if small else (15 if size == 1024 else 7))
        ratio = taken["private"] / taken["plain"]
        count = network.num_parameters
        most = 1.35 if network is paper else 1.6 if size < 8192 else 1.55
        eta = grid_of(network, SIGMA, 1.0, size).eta
        print(
            f"{count:12,}{size:7}{taken['plain']:10.3f}{taken['private']:11.3f}{ratio:8.2f}{most:9}{eta:10.1e}"
        )
        row = {"part": "step", "parameters": count, "batch": size, "plain": taken["plain"]}
        rows.append(row | {"seconds": taken["private"], "ratio": ratio, "eta": eta, "aim": f"≤ {most}"})
    return rows


def compare_with_peers(small):
    """Times of steps by kind, as ratios to ours: the best of an idle machine, means of a busy one."""
    size, rounds, rows = (128, 1, []) if small else (1024, 8, [])
    batch = draw(size)
    jobs = {
        OURS: jax_jobs(MODEL, batch)["private"],
        "products of matrices alone": products_job(size),
        "Opacus, ghost, a module for each table": opacus_job(batch, one_table=False),
        "Opacus, ghost, one module for all tables": opacus_job(batch, one_table=True),
    }
    slow = {"jax_privacy, one example at a time": jax_privacy_job(MODEL, batch)}
    for others, beside, summary in ((0, "the best", min), (4, "the mean beside 4 busy processes", np.mean)):
        with busy(others):
            taken = in_turns(jobs, rounds, summary)
            if not others:  # it takes so long that two rounds tell enough
                taken |= in_turns(slow, min(rounds, 2), summary)
        print(f"{MODEL.num_parameters:,} parameters, batch {size}, {beside}:")
        for name, value in taken.items():
            print(f"  {name:42}{value:8.3f} s, {value / taken[OURS]:.2f} of ours")
            row = {"part": "peers", "parameters": MODEL.num_parameters, "batch": size, "busy": others}
            rows.append(row | {"job": name, "seconds": value, "ratio": value / taken[OURS]})
    return rows


def temporary_bytes(size, buckets):
    model = Model(INTEGERS, (buckets,) * CATEGORIES)
    state = jax.eval_shape(lambda: initial_state(model.zeros()))
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), draw(1))
    batch = Batch(*(jax.ShapeDtypeStruct((size, *part.shape[1:]), part.dtype) for part in shapes))
    noise = jax.ShapeDtypeStruct((model.num_parameters,), jnp.int32)
    with jax.enable_x64(True):
        kinds = (jnp.float32, jnp.float64, jnp.float64, jnp.float64)
        scalars = Scalars(*(jax.ShapeDtypeStruct((), kind) for kind in kinds))
        compiled = _private_step.lower(model, state, batch, noise, scalars).compile()
    return compiled.memory_analysis().temp_size_in_bytes, model.num_parameters


def noise_seconds(count):
    """Seconds for `count` values: exact integers by each executor, and what others draw in float32."""
    import torch

    from ballsbins.noise.draw import installed
    from ballsbins.training.torch.clipped_sums import write_gradients

    room = np.empty(count, np.int32)
    drawn = {
        f"exact integers (ours), {name}": lambda name=name: rounded_normals(
            KEY, ("benchmark",), count, executor=name, out=room
        )
        for name in installed()
    }
    drawn["torch.normal, float32"] = lambda: torch.normal(0.0, 1.0, (count,))
    parameter = torch.nn.Parameter(torch.zeros(count))
    parameter.summed_grad = torch.zeros(count, dtype=torch.float64)
    noise, numbers = NoiseAhead(), itertools.count()
    drawn["drawn and added in PyTorch (ours)"] = lambda: write_gradients(
        [parameter], noise.of(KEY, ("benchmark", next(numbers)), count), 1e-8
    )
    for name in ("threefry2x32", "rbg"):
        key, draw_normal = jax.random.key(0, impl=name), jax.jit(lambda key: jax.random.normal(key, (count,)))
        drawn[f"jax.random.normal, float32, {name}"] = lambda key=key, f=draw_normal: f(key)
    return in_turns({name: lambda job=job: jax.block_until_ready(job()) for name, job in drawn.items()}, 7)


def compare_noise(small):
    """Noise alone, beside what others draw in float32."""
    values, rows = 200_000 if small else 4_000_000, []
    print(f"Noise for {values:,} parameters:")
    taken = noise_seconds(values)
    for name, value in taken.items():
        ratio = value / taken["torch.normal, float32"]
        print(f"  {name:40}{value / values * 1e9:8.1f} ns per value, {ratio:5.2f} of torch.normal")
        rows.append(
            {"part": "noise", "job": name, "values": values, "seconds": value / values, "ratio": ratio}
        )
    return rows


def compare_memory(small):
    """Temporaries of a step, by batch size and by number of rows."""
    rows = []
    print(f"{'batch':>7}{'parameters':>13}{'temporaries':>14}")
    cases = [(128, 200)] if small else [(1024, 200), (2048, 200), (1024, 2000), (2048, 2000)]
    for size, buckets in cases:
        found, count = temporary_bytes(size, buckets)
        print(f"{size:7}{count:13,}{found / 1e6:10.0f} MB")
        rows.append({"part": "memory", "parameters": count, "batch": size, "megabytes": found / 1e6})
    print(f"One gradient for each of 1024 examples would take {1024 * 4 * MODEL.num_parameters / 1e9:.0f} GB")
    return rows


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="a quick look: batches of 128, fewer rounds")
    record.add_save(parser)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    parts = (compare_steps, compare_with_peers, compare_noise, compare_memory)
    rows = [row for part in parts for row in part(options.small)]
    if options.save:
        packages = ("jax", "jax-privacy", "optax", "opacus", "torch", "numba", "numpy")
        record.save(options.save, "training-jax", rows, packages=packages)


if __name__ == "__main__":
    main()
