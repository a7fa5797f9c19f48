"""Train a small network with Opacus on balls-and-bins batches, and state its privacy.

Needs `pip install '.[torch]'`. Runs in a few seconds: python examples/train_pytorch.py
"""

from __future__ import annotations

import warnings
from textwrap import fill

import torch
from torch import nn
from torch.utils.data import TensorDataset

from ballsbins import BallsAndBins, calibrate, new_key
from ballsbins.report.numbers import stated, up
from ballsbins.training.torch import make_private

warnings.filterwarnings("ignore", message="Full backward hook is firing")  # Opacus' hooks, in every loop
EXAMPLES, STEPS, EPOCHS, DELTA = 4000, 50, 4, 1e-5

torch.manual_seed(0)
features = torch.randn(EXAMPLES + 1000, 20)
labels = (features[:, :3].sum(dim=1) > 0).long()
train = TensorDataset(features[:EXAMPLES], labels[:EXAMPLES])
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
criterion = nn.CrossEntropyLoss()

# The least noise for the target; a secret key, from which batches and noise follow.
mechanism = calibrate(BallsAndBins(steps=STEPS), epsilon=3.0, delta=DELTA, epochs=EPOCHS)
model, optimizer, loader = make_private(mechanism, model, optimizer, train, max_grad_norm=1.0, key=new_key())

for epoch in range(EPOCHS):
    for inputs, targets in loader:
        optimizer.zero_grad()
        criterion(model(inputs), targets).backward()
        optimizer.step()
    print(f"after epoch {epoch + 1}: ε ≤ {up(loader.accountant.get_epsilon(DELTA))} at δ = {stated(DELTA)}")

model.eval()
with torch.no_grad():
    accuracy = (model(features[EXAMPLES:]).argmax(dim=1) == labels[EXAMPLES:]).float().mean()
card = loader.card(DELTA, metrics={"test accuracy": round(float(accuracy), 4)})
print(f"test accuracy {accuracy:.3f}\n")
print(fill(card.statement().sentence, 110))  # card.write("card.json") keeps all of it, for others to check
