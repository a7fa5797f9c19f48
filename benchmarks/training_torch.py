"""The step of a PyTorch loop, with exact noise and safe sums, relative to Opacus' own step.

    python benchmarks/training_torch.py [--small] [--save [DIR]]

Both run on one thread and take turns. Processor time counts, with that of the thread that draws the noise, so that
other load on the machine matters little.
"""

import argparse
import itertools
import time
import warnings

import torch
from opacus import PrivacyEngine
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification

import record
from ballsbins import Deterministic, Key, Mechanism
from ballsbins.training.torch import make_private
from turns import in_turns

KEY = Key.from_seed(1)


def torch_models():
    """Name → (a model with ten classes, how to draw inputs for it)."""

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


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="a quick look: small batches, two rounds")
    record.add_save(parser)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    rows = []
    sizes, rounds = ((16,), 2) if options.small else ((64, 16), 60)
    print("PyTorch, one thread, relative to Opacus' own step:")
    for size, (name, (make, draw)) in itertools.product(sizes, torch_models().items()):
        for mode, most in (("hooks", 1.1), ("ghost", 1.25)):
            jobs = torch_jobs(make, draw, mode, size, rounds + 1)
            taken = in_turns({who: job for who, (job, _) in jobs.items()}, rounds, clock=time.process_time)
            count = jobs["ours"][1]
            bound = f", at most {most}" if size == 64 else ""
            print(
                f"  {name:18}{count:9,} parameters, batch {size}, {mode}: {taken['ours'] * 1e3:6.1f} ms, "
                f"{taken['ours'] / taken['Opacus']:.2f} of Opacus'{bound}",
                flush=True,
            )
            row = {"model": name, "parameters": count, "mode": mode, "batch": size}
            rows.append(row | {"seconds": taken["ours"], "ratio": taken["ours"] / taken["Opacus"]})
    if options.save:
        packages = ("opacus", "torch", "numba", "numpy", "transformers", "peft")
        record.save(options.save, "training-torch", rows, packages=packages)


if __name__ == "__main__":
    main()
