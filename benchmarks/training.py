"""What a private step costs, as ratios to the plain step and to Opacus' ghost clipping in the same run.

    python benchmarks/training.py [--small] [--torch] [--save]

The paper's network with 4 million parameters (26 categories of 2,000 buckets, 13 integers, three layers of 598) and
with the paper's 85 million, and Adam, on all cores. Steps of the kinds take turns, and the best of each counts, so
that other load on the machine matters little. What no step can go below is timed beside them: the products of
matrices alone, forward and back. Opacus is timed once more beside other busy processes, as on a shared machine, where
its threads wait for one another. The memory is what XLA plans for temporaries, by batch size and by number of rows.
The private step has the whole guarantee for floating point; η is the part of its noise that covers rounding.

`--torch` prints only the last table: the step of a PyTorch loop, with exact noise and safe sums, relative to Opacus'
own. Both run on one thread and take turns. Processor time counts, with that of the thread that draws the noise, so
that other load on the machine matters little.
"""

import argparse
import contextlib
import itertools
import subprocess
import sys
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np

import record
from ballsbins.data.criteo import DISPLAY_ADS
from ballsbins.noise import rounded_normals
from ballsbins.noise.draw import NoiseAhead
from ballsbins.samplers import Key
from ballsbins.training.jax.model import Batch, Model
from ballsbins.training.jax.private_step import (
    Scalars,
    _private_step,
    grid_of,
    initial_state,
    plain_step,
    private_step,
)

BUCKETS, CATEGORIES, INTEGERS = 2000, 26, 13
WIDTHS = (48 * CATEGORIES + INTEGERS, 598, 598, 598)
KEY = Key.from_seed(1)
SIGMA = 1.0


def draw(size):
    rng = np.random.default_rng(0)
    return Batch(
        (rng.random(size) < 0.3).astype(np.float32),
        rng.random((size, INTEGERS), dtype=np.float32),
        rng.integers(0, BUCKETS, (size, CATEGORIES)).astype(np.int32),
        np.ones(size, np.float32),
    )


def seconds(job, clock):
    begin = clock()
    job()
    return clock() - begin


def in_turns(jobs, rounds, summary=min, clock=time.perf_counter):
    """Seconds of each job (the least, unless told), all jobs taking turns, after one round that compiles."""
    for job in jobs.values():
        job()
    taken = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            taken[name].append(seconds(job, clock))
    return {name: float(summary(values)) for name, values in taken.items()}


@contextlib.contextmanager
def busy(count):
    """`count` other processes that never rest."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


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


def compare_with_opacus(model, batch, rounds):
    """Print the times of steps by kind, as ratios to ours: the best of an idle machine, means of a busy one."""
    jobs = {
        "private step, ours": jax_jobs(model, batch)["private"],
        "products of matrices alone": products_job(len(batch.labels)),
        "Opacus, a module for each table": opacus_job(batch, one_table=False),
        "Opacus, one module for all tables": opacus_job(batch, one_table=True),
    }
    for others, beside, summary in ((0, "the best", min), (4, "the mean beside 4 busy processes", np.mean)):
        with busy(others):
            taken = in_turns(jobs, rounds, summary)
        print(f"Opacus' ghost clipping, batch {len(batch.labels)}, {beside}:")
        for name, value in taken.items():
            print(f"  {name:34}{value:8.3f} s, {value / taken['private step, ours']:.2f} of ours")


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


def torch_models():
    """Name → (a model with ten classes, how to draw inputs for it)."""
    import torch
    from peft import LoraConfig, get_peft_model
    from torch import nn
    from transformers import BertConfig, BertForSequenceClassification

    class Transformer(nn.Module):
        def __init__(self, lora):
            super().__init__()
            config = BertConfig(
                vocab_size=1000, hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512,
                max_position_embeddings=32, num_labels=10, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
            )  # fmt: skip
            self.inner = BertForSequenceClassification(config)
            if lora:
                options = LoraConfig(r=8, target_modules=["query", "value"], modules_to_save=["classifier"])
                self.inner = get_peft_model(self.inner, options)
            for name, parameter in self.inner.named_parameters():  # lookups that do not depend on the example
                if "position_emb" in name or "token_type" in name:
                    parameter.requires_grad_(False)

        def forward(self, tokens):
            return self.inner(input_ids=tokens).logits

    def mlp():
        return nn.Sequential(
            nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
        )

    def cnn():
        convolutions = [
            layer
            for a, b in ((3, 32), (32, 64), (64, 64))
            for layer in (nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        ]
        return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(1024, 10))

    def tokens(count):
        return torch.randint(0, 1000, (count, 32))

    return {
        "MLP": (mlp, lambda count: torch.randn(count, 784)),
        "CNN": (cnn, lambda count: torch.randn(count, 3, 32, 32)),
        "transformer": (lambda: Transformer(False), tokens),
        "transformer, LoRA": (lambda: Transformer(True), tokens),
    }


def torch_jobs(make, draw, mode, size, steps):
    """A step by Opacus' own engine and by ours, each on a model of its own."""
    import torch
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    from ballsbins import Deterministic, Mechanism
    from ballsbins.training.torch import make_private

    def job(ours):
        torch.manual_seed(0)
        model, data = make(), TensorDataset(draw(size * steps), torch.randint(0, 10, (size * steps,)))
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        plain, criterion = torch.optim.SGD(trained, lr=1e-3), torch.nn.CrossEntropyLoss()
        options = {"max_grad_norm": 1.0, "grad_sample_mode": mode}
        if ours:
            options |= {"criterion": criterion} if mode == "ghost" else {}
            mechanism = Mechanism(Deterministic(steps), noise_multiplier=1.0)
            made = make_private(mechanism, model, plain, data, key=KEY, **options)
        else:
            made = PrivacyEngine().make_private(
                module=model, optimizer=plain, data_loader=DataLoader(data, size), criterion=criterion,
                noise_multiplier=1.0, poisson_sampling=False, **options,
            )  # fmt: skip
        private, optimizer, batches = made[0], made[1], iter(made[-1])
        criterion = made[2] if mode == "ghost" else criterion

        def step():
            inputs, targets = next(batches)
            optimizer.zero_grad()
            criterion(private(inputs), targets).backward()
            optimizer.step()
            if ours:
                optimizer.noise.wait()  # else the noise of the next step would be drawn in the other's time

        return step, sum(parameter.numel() for parameter in trained)

    return {"Opacus": job(False), "ours": job(True)}


def compare_in_torch(small, save):
    """Print the processor time of a PyTorch step relative to Opacus' own; write the results if told."""
    import torch

    rows = []
    torch.set_num_threads(1)
    size, rounds = (16, 2) if small else (64, 60)
    print(f"PyTorch, one thread, batch {size}, relative to Opacus' own step:")
    for name, (make, draw) in torch_models().items():
        for mode, most in (("hooks", 1.1), ("ghost", 1.25)):
            jobs = torch_jobs(make, draw, mode, size, rounds + 1)
            taken = in_turns({who: job for who, (job, _) in jobs.items()}, rounds, clock=time.process_time)
            count = jobs["ours"][1]
            print(
                f"  {name:18}{count:9,} parameters, {mode}: {taken['ours'] * 1e3:6.1f} ms, "
                f"{taken['ours'] / taken['Opacus']:.2f} of Opacus', at most {most}"
            )
            row = {"model": name, "parameters": count, "mode": mode, "batch": size}
            rows.append(row | {"seconds": taken["ours"], "ratio": taken["ours"] / taken["Opacus"]})
    if save:
        record.save("training-torch", rows, packages=("opacus", "torch", "numba", "numpy"))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a quick look: batches of 128, fewer rounds")
    parser.add_argument("--torch", action="store_true", help="only PyTorch beside Opacus")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/training-torch.json")
    options = parser.parse_args()
    small = options.small
    warnings.filterwarnings("ignore")
    if options.torch:
        compare_in_torch(small, options.save)
        return
    model = Model(INTEGERS, (BUCKETS,) * CATEGORIES)
    print(f"{jax.device_count()} device, the best of steps that take turns")
    print(
        f"{'parameters':>12}{'batch':>7}{'plain s':>10}{'private s':>11}{'ratio':>8}{'at most':>9}{'η':>10}"
    )
    paper = Model(INTEGERS, tuple(DISPLAY_ADS.buckets.values()))
    for network, size in [(model, 128)] if small else itertools.product((model, paper), (1024, 8192)):
        taken = in_turns(jax_jobs(network, draw(size)), 2 if small else (15 if size == 1024 else 7))
        ratio = taken["private"] / taken["plain"]
        count = network.num_parameters
        most = 1.35 if network is paper else 1.6 if size < 8192 else 1.55
        eta = grid_of(network, SIGMA, 1.0, size).eta
        print(
            f"{count:12,}{size:7}{taken['plain']:10.3f}{taken['private']:11.3f}{ratio:8.2f}{most:9}{eta:10.1e}"
        )

    compare_with_opacus(model, draw(128 if small else 1024), rounds=1 if small else 8)

    values = 200_000 if small else 4_000_000
    print(f"Noise for {values:,} parameters:")
    taken = noise_seconds(values)
    for name, value in taken.items():
        ratio = value / taken["torch.normal, float32"]
        print(f"  {name:40}{value / values * 1e9:8.1f} ns per value, {ratio:5.2f} of torch.normal")

    print(f"{'batch':>7}{'parameters':>13}{'temporaries':>14}")
    cases = [(128, 200)] if small else [(1024, 200), (2048, 200), (1024, 2000), (2048, 2000)]
    for size, buckets in cases:
        found, count = temporary_bytes(size, buckets)
        print(f"{size:7}{count:13,}{found / 2**20:10.0f} MiB")
    print(
        "One gradient for each of 1024 examples would take",
        f"{1024 * 4 * model.num_parameters / 2**30:.0f} GiB",
    )
    compare_in_torch(small, options.save)


if __name__ == "__main__":
    main()
