"""Train in JAX on the batches of a Mechanism: `train`."""

from ballsbins import _extras

for _module in ("jax", "optax"):
    _extras.load(_module, feature="Training in JAX", extra="jax")

from ballsbins.training.jax.trainer import InMemory, Result, train  # noqa: E402
from ballsbins.training.training_plan import TrainingPlan  # noqa: E402

__all__ = ["InMemory", "Result", "TrainingPlan", "train"]
