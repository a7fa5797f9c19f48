"""Models of the kinds that Opacus' own examples train: an image CNN, GroupNorm, an LSTM, a text classifier, a GAN."""

import pytest
import torch
from opacus.layers import DPLSTM
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from ballsbins import BallsAndBins, Mechanism
from ballsbins.errors import RunError
from ballsbins.training.torch import make_private

EXAMPLES, STEPS, LENGTH, CLIP = 24, 3, 7, 0.5
MECHANISM = Mechanism(BallsAndBins(STEPS), noise_multiplier=1.0)


class CharLSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.lstm, self.last = (
            nn.Embedding(30, 4),
            DPLSTM(4, 5, batch_first=True),
            nn.Linear(5, 3),
        )

    def forward(self, tokens):
        return self.last(self.lstm(self.table(tokens))[0][:, -1])


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.last = nn.Embedding(30, 4), nn.Linear(4, 3)

    def forward(self, tokens):
        return self.last(self.table(tokens).transpose(1, 2).mean(dim=2))


def images(channels):
    return torch.randn(EXAMPLES, channels, 8, 8)


def tokens():
    return torch.randint(0, 30, (EXAMPLES, LENGTH))


KINDS = {
    "mnist": (lambda: nn.Sequential(nn.Conv2d(1, 4, 3, 2), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Flatten(),
                                    nn.Linear(16, 3)), lambda: images(1)),
    "cifar10": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(),
                                      nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.Linear(4, 3)),
                lambda: images(3)),
    "char-lstm": (CharLSTM, tokens),
    "imdb": (Pooled, tokens),
}  # fmt: skip


def sums_seen(optimizer):
    """Have the clipped sum of every step kept, before its noise."""
    found = []
    add_noise = type(optimizer).add_noise

    def keep():
        sums = [parameter.summed_grad.reshape(-1) * optimizer.grid.unit for parameter in optimizer.params]
        found.append(torch.cat(sums))
        add_noise(optimizer)

    optimizer.add_noise = keep
    return found


def clipped(net, loss):
    flat = torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, list(net.parameters()))])
    return flat.double() * min(1.0, CLIP / float(flat.norm()))


@pytest.mark.parametrize("kind", KINDS)
def test_their_loop_runs_and_clips_each_example(kind):
    torch.manual_seed(0)
    make, inputs_of = KINDS[kind]
    net, plain, data = make(), make(), TensorDataset(inputs_of(), torch.arange(EXAMPLES) % 3)
    model, optimizer, loader = make_private(
        MECHANISM, net, torch.optim.SGD(net.parameters(), lr=0.5), data, max_grad_norm=CLIP, key=1
    )
    found = sums_seen(optimizer)
    for inputs, targets in loader:  # as their loops have it
        optimizer.zero_grad()
        plain.load_state_dict(net.state_dict())
        expected = sum(
            clipped(plain, functional.cross_entropy(plain(inputs[i : i + 1]), targets[i : i + 1]))
            for i in range(len(targets))
        )
        functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        assert torch.allclose(found[-1], expected, rtol=1e-3, atol=1e-5)
    assert loader.accountant.get_epsilon(1e-5) == MECHANISM.epsilon(1e-5).upper


NOISE = 3  # numbers from which an image is made


class Adversaries:
    """A discriminator that sees real images privately, and a generator that sees only the discriminator."""

    def __init__(self, images, left_out=(), mode="hooks"):
        torch.manual_seed(0)
        self.generator = nn.Sequential(nn.Linear(NOISE, 16), nn.Tanh())
        self.net = nn.Sequential(nn.Linear(16, 4), nn.LeakyReLU(inplace=True), nn.Linear(4, 1))
        self.free = torch.optim.SGD(self.generator.parameters(), lr=0.1)
        # Every example brings the numbers of its public row along, so that runs with and without it can be compared.
        data = TensorDataset(images, torch.randn(len(images), NOISE))
        options = {"criterion": nn.BCEWithLogitsLoss()} if mode == "ghost" else {}
        made = make_private(
            MECHANISM, self.net, torch.optim.SGD(self.net.parameters(), lr=0.0), data,
            max_grad_norm=CLIP, key=1, grad_sample_mode=mode, **options,
        )  # fmt: skip
        self.model, self.optimizer, self.loader = made[0], made[1], made[-1]
        self.loader.leave_out(torch.as_tensor(left_out, dtype=torch.long).numpy())
        self.sums = sums_seen(self.optimizer)

    def loss(self, outputs, real):
        return functional.binary_cross_entropy_with_logits(outputs, torch.full_like(outputs, float(real)))

    def train(self, public_rows=lambda rows: rows):
        for real, numbers in self.loader:
            self.optimizer.zero_grad(set_to_none=True)
            of_real = self.loss(self.model(real), real=True)
            fake = self.generator(numbers[: public_rows(len(numbers))])
            with self.optimizer.public_pass():
                of_fake = self.loss(self.model(fake.detach()), real=False)
            (of_real + of_fake).backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self.free.zero_grad()
            made = self.generator(torch.randn(8, NOISE))  # a public number of images
            self.loss(self.model(made), real=True).backward()
            self.free.step()


def real_images():
    torch.manual_seed(1)
    return 100.0 * torch.randn(EXAMPLES, 16)  # gradients far above the clip norm


def test_an_example_moves_a_discriminator_by_at_most_the_clip_norm():
    whole = Adversaries(real_images())
    whole.train()
    assert whole.loader.as_run() == MECHANISM
    assert any("public passes" in words for words in whole.loader.card(1e-5).not_covered)
    moved = []
    for example in range(4):
        other = Adversaries(real_images(), left_out=[example])
        other.train()
        moved.append([float((a - b).norm()) for a, b in zip(whole.sums, other.sums, strict=True)])
    # The learning rate is 0, so that only the step of the example itself can differ.
    assert all(sum(each > 1e-6 for each in norms) == 1 for norms in moved)
    assert all(0.9 * CLIP < max(norms) <= CLIP for norms in moved)  # all are clipped


def test_real_and_generated_rows_are_clipped_as_one_example():
    whole = Adversaries(real_images())
    real, numbers = next(iter(whole.loader))
    plain = [whole.loss(whole.net(real[i : i + 1]), True)
             + whole.loss(whole.net(whole.generator(numbers[i : i + 1]).detach()), False)
             for i in range(len(real))]  # fmt: skip
    whole.model.disable_hooks()
    expected = sum(clipped(whole.net, each) for each in plain)
    whole.model.enable_hooks()
    fresh = Adversaries(real_images())
    fresh.train()
    assert torch.allclose(fresh.sums[0], expected, rtol=1e-3, atol=1e-5)


def test_public_passes_that_cannot_be_right_are_refused():
    with pytest.raises(RunError, match="as many as the batch has examples"):
        Adversaries(real_images()).train(public_rows=lambda rows: rows - 1)
    unmarked = Adversaries(real_images())
    unmarked.optimizer.public_pass = torch.enable_grad
    with pytest.raises(RunError, match=r"called 2 times for one step.*public_pass"):
        unmarked.train()
    for mode in ("ew", "ghost"):
        adversaries = Adversaries(real_images(), mode=mode)
        with pytest.raises(RunError, match="'hooks' and 'functorch'"), adversaries.optimizer.public_pass():
            pass
