"""Training with Hugging Face on the batches of a Mechanism: `PrivateTrainer`, for `transformers.Trainer`."""

from ballsbins import _extras

_extras.load("opacus", feature="Training with Hugging Face", extra="huggingface")
_extras.load("accelerate", feature="Training with Hugging Face", extra="huggingface")
_extras.load("transformers", feature="Training with Hugging Face", extra="huggingface")

from ballsbins.training.huggingface.versions import require_versions  # noqa: E402

require_versions()

from ballsbins.training.huggingface.trainer import PrivateTrainer  # noqa: E402

__all__ = ["PrivateTrainer"]
