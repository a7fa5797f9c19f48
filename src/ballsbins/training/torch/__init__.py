"""Train in PyTorch with Opacus on the batches of a Mechanism: `make_private`."""

from ballsbins import _extras

_extras.load("opacus", feature="Training in PyTorch", extra="torch")

from ballsbins.training.torch.accountant import BallsBinsAccountant  # noqa: E402
from ballsbins.training.torch.loader import BallsBinsLoader  # noqa: E402
from ballsbins.training.torch.private_training import make_private  # noqa: E402

__all__ = ["BallsBinsAccountant", "BallsBinsLoader", "make_private"]
