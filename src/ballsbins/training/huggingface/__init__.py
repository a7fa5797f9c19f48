"""Train with Hugging Face on the batches of a Mechanism: `PrivateTrainer` replaces `transformers.Trainer`.

`PrivateTrainer` overrides two internal methods of `transformers.Trainer` (`_init_training_state` and
`_prepare_for_training`) and, to keep gradients out of logs, two more (`_clip_grad_norm`, `_get_grad_norm`). A later
version may rename them, and would then train without privacy and without an error. So other versions are refused.
"""

from importlib import metadata

from ballsbins import _extras
from ballsbins.errors import InvalidInputError

_extras.load("opacus", feature="Training with Hugging Face", extra="huggingface")
_extras.load("accelerate", feature="Training with Hugging Face", extra="huggingface")
_extras.load("transformers", feature="Training with Hugging Face", extra="huggingface")

SUPPORTED = {"transformers": "5.22", "accelerate": "1.15", "peft": "0.21"}
_OPTIONAL = {"peft"}


def require_versions() -> None:
    """Refuse unsupported versions.

    Raises:
        InvalidInputError: a version is unsupported; the error names the library, its version and the one to install.
    """
    for name, wanted in SUPPORTED.items():
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            if name in _OPTIONAL:
                continue
            raise
        if found.split(".")[:2] != wanted.split("."):
            raise InvalidInputError(
                f"the version of {name}",
                found,
                f"{wanted}.*",
                "PrivateTrainer relies on internals of these libraries, which differ between versions. Install what "
                "it is tested with: pip install 'ballsbins[huggingface]'.",
            )


require_versions()

from ballsbins.training.huggingface.trainer import PrivateTrainer  # noqa: E402

__all__ = ["PrivateTrainer"]
