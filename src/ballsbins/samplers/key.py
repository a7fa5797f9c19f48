"""The secret key that determines all batch assignments and all training noise.

Anybody who knows the key knows every batch, and then the privacy statement is void. So a key is read from a file that
only its owner can read; no repr, error or format shows its bytes; and only its commitment may be stored beside a
checkpoint.

A key file holds a master secret. Every run derives its own key from it and a public random run id
(`Key.for_run`), so one key file serves any number of runs and no two of them share batches or noise.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
from pathlib import Path
from typing import Any

from ballsbins import _check
from ballsbins._files import write_new
from ballsbins.errors import SecretError

KEY_BYTES = 32
KEY_FILE_VARIABLE = "BALLSBINS_KEY_FILE"
SEED_RUN = "seed"  # the run id of every run with a plain seed: such runs are meant to repeat
_RUN_ID = re.compile(r"[0-9a-f]{32}")
_DOMAIN = b"ballsbins/1"  # a change here changes every assignment ever drawn
_LARGEST_FILE = 4096  # bytes to read: enough to tell a key file from something else


class Key:
    """Thirty-two secret bytes, of which only a commitment is ever shown.

    Formal guarantees, assuming that HMAC-SHA256 is a pseudorandom function:

    * `derive` gives unrelated keys for different domains, and none of them reveals anything about this key;
    * `commitment` is the same for the same key, differs for two given keys except with probability 2⁻⁶⁴, and
      reveals nothing else about a key that came from the operating system;
    * `for_run` gives unrelated keys for different run ids: neither batches nor noise of one run reveal anything
      about those of another;
    * no repr, str, format or error shows the bytes. Pickles do contain them, since workers need the key: a pickled
      key is as secret as the key itself.

    Args:
        secret: 32 bytes, for example `secrets.token_bytes(32)`; `new_key()` does that.

    Example:
        >>> key = Key(bytes(32))  # never use such a key
        >>> key.is_secret, key == Key(bytes(32)), key.run
        (True, True, None)
    """

    __slots__ = ("_is_secret", "_master_commitment", "_run", "_secret")

    _secret: bytes
    _is_secret: bool
    _run: str | None
    _master_commitment: str | None

    def __init__(self, secret: bytes) -> None:
        """Take 32 bytes, for example `secrets.token_bytes(32)`; `new_key()` does that."""
        if not isinstance(secret, bytes):
            raise SecretError(
                f"A key is made of {KEY_BYTES} bytes, but this is of type {type(secret).__name__}. "
                "Make one with ballsbins.new_key(), or read one with Key.from_file(path)."
            )
        if len(secret) != KEY_BYTES:
            raise SecretError(
                f"This key has {len(secret)} bytes, but must have exactly {KEY_BYTES}. "
                "Make one with ballsbins.new_key(), or read one with Key.from_file(path)."
            )
        self._set(secret, is_secret=True)

    def _set(
        self, secret: bytes, *, is_secret: bool, run: str | None = None, master: str | None = None
    ) -> None:
        fields = {"_secret": secret, "_is_secret": is_secret, "_run": run, "_master_commitment": master}
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_seed(cls, seed: int) -> Key:
        """Make a key from a plain integer, for experiments that others should be able to repeat.

        The key is not secret: anybody who guesses the seed knows every batch and all noise. Never use it where the
        privacy statement must hold. `is_secret` is then False, so that a report can say so.

        Args:
            seed: from 0 to 2⁶⁴ − 1.

        Returns:
            The key, the same for the same seed.

        Raises:
            SecretError: the integer has more than 64 bits. It might be a key, so it is not shown.
            InvalidInputError: it is not an integer, or is negative.
        """
        bits = 64
        advice = "A seed is for experiments only; for a secret key use ballsbins.new_key()."
        # it might be key bytes as an integer: do not show them
        if isinstance(seed, int) and seed.bit_length() > bits:
            raise SecretError(
                f"This seed has {seed.bit_length()} bits, but may have at most {bits}. {advice}"
            )
        number = _check.integer("seed", seed, 0, 2**bits - 1, advice=advice)
        return _restore(hashlib.sha256(encode("seed", number)).digest(), False)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Key:
        """Read a key file: 32 raw bytes, or 64 hexadecimal digits and a newline.

        Args:
            path: a regular file of mode 0600 or 0400, which only its owner may read.

        Returns:
            The master key.

        Raises:
            SecretError: the file cannot be read, others can read it, or it does not hold a key.
        """
        if not isinstance(path, (str, os.PathLike)):
            raise SecretError(f"The path of a key file is text, not a {type(path).__name__}. Name the file.")
        secret = _decode(_read_private(Path(path)))
        if secret is None:
            raise SecretError(
                f"The key file {str(path)!r} does not hold exactly {KEY_BYTES} raw bytes or "
                f"{2 * KEY_BYTES} hexadecimal digits and a newline. Make a good one with "
                "`ballsbins key FILE` or ballsbins.new_key().save(path)."
            )
        return cls(secret)

    @classmethod
    def from_environment(cls) -> Key:
        """Read the key file that the environment variable BALLSBINS_KEY_FILE names.

        Returns:
            The master key.

        Raises:
            SecretError: the variable is not set, or the file is not a usable key file.
        """
        path = os.environ.get(KEY_FILE_VARIABLE, "")
        if not path:
            raise SecretError(
                f"The environment variable {KEY_FILE_VARIABLE} is not set, but must name a key file. "
                "Make one with `ballsbins key FILE` or ballsbins.new_key().save(path), then: "
                f"export {KEY_FILE_VARIABLE}=path"
            )
        return cls.from_file(path)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the key as hexadecimal digits to a new file of mode 0600; an existing file is never changed.

        Args:
            path: a file that does not exist yet.

        Raises:
            SecretError: the file exists, or cannot be written.
        """
        try:
            write_new(Path(path), self._secret.hex().encode("ascii") + b"\n")
        except FileExistsError:
            raise SecretError(
                f"{str(path)!r} exists, and a key file is never overwritten: a lost key cannot be had back. "
                "Choose another path, or move the old file away."
            ) from None
        except OSError as error:
            missing = isinstance(error, (FileNotFoundError, NotADirectoryError))
            advice = "Make the directory first" if missing else "Free some space"
            raise SecretError(
                f"The key file {str(path)!r} cannot be written ({error.strerror}), and nothing of it was left. "
                f"{advice}, or choose another path."
            ) from None

    @property
    def is_secret(self) -> bool:
        """Whether the key is more than a plain seed."""
        return self._is_secret

    @property
    def run(self) -> str | None:
        """The public id of the run that this key belongs to; None for a master key."""
        return self._run

    def for_run(self, run: str | None = None) -> Key:
        """Derive the key of one run from this master key and the run's public id.

        Args:
            run: the id of the run to continue, as recorded in its card, checkpoint or manifest. Omit it to start a
                new run with a new random id.

        Returns:
            The run's own key. A key that already belongs to a run is returned unchanged. A plain seed is its own run,
            with the id "seed", so that experiments repeat.

        Raises:
            SecretError: `run` is not a run id, or this key belongs to another run.

        Example:
            >>> master = Key(bytes(32))
            >>> first = master.for_run()
            >>> master.for_run(first.run) == first, master.for_run() == first
            (True, False)
        """
        if self._run is not None:
            if run not in (None, self._run):
                raise SecretError(
                    f"This key belongs to the run {self._run}, but the run {run} is asked for. Derive both from the "
                    "master key: Key.from_file(path).for_run(run)."
                )
            return self
        if not self._is_secret:
            if run not in (None, SEED_RUN):
                raise SecretError(
                    f"This key is a plain seed, whose only run is {SEED_RUN!r}, but the run {run!r} is asked for. "
                    "Continue that run with the secret key it began with."
                )
            return _restore(self._secret, False, SEED_RUN, self.commitment())
        chosen = secrets.token_hex(16) if run is None else run
        if not isinstance(chosen, str) or not _RUN_ID.fullmatch(chosen):
            raise SecretError(
                f"{chosen!r} is not a run id under a secret key, which has 32 hexadecimal digits. Take it from the "
                "card, the checkpoint or the manifest of the run, or leave it out to begin a new run."
            )
        return _restore(self.derive("run", chosen), True, chosen, self.commitment())

    def commitment(self) -> str:
        """Give sixteen hexadecimal digits that identify a master key: store them to detect a wrong key.

        All runs of one master key have the same commitment; `run` tells them apart.

        Returns:
            The commitment; it may be public.
        """
        return self._master_commitment or self.derive("commitment")[:8].hex()

    def require(self, commitment: str) -> None:
        """Raise if a run began with a different key: make this check when a run resumes.

        Args:
            commitment: the commitment stored when the run began.

        Raises:
            SecretError: it is not this key's commitment.
        """
        if not hmac.compare_digest(self.commitment().encode(), str(commitment).encode()):
            raise SecretError(
                f"This key has the commitment {self.commitment()}, but the run began with {commitment!s}. "
                "Resume with the key of that run; its batches and noise cannot be continued with another."
            )

    def derive(self, *domain: str | int | bytes) -> bytes:
        """Derive the secret for one purpose.

        Args:
            domain: texts, integers and bytes that name the purpose, such as ("noise", epoch).

        Returns:
            32 bytes, unrelated to those of any other domain.
        """
        return hmac.digest(self._secret, encode(*domain), "sha256")

    def __repr__(self) -> str:
        """Show the commitment, never the bytes."""
        of = "" if self._run is None else f", run={self._run!r}"
        note = "" if self._is_secret else ", from a seed: not secret"
        return f"Key(commitment={self.commitment()!r}{of}{note})"

    def __eq__(self, other: object) -> bool:
        """Compare in constant time."""
        return isinstance(other, Key) and hmac.compare_digest(self._secret, other._secret)

    def __hash__(self) -> int:
        """Hash the commitment, so that the hash reveals no more than the commitment does."""
        return hash(self.commitment())

    def __setattr__(self, name: str, value: Any) -> None:
        """Raise: a key never changes."""
        raise AttributeError(f"a Key cannot be changed, so {name} cannot be set; make a new one")

    def __reduce__(self) -> tuple[Any, tuple[bytes, bool, str | None, str | None]]:
        """Send the bytes to a worker process; the pickle is as secret as the key."""
        return _restore, (self._secret, self._is_secret, self._run, self._master_commitment)


def _restore(secret: bytes, is_secret: bool, run: str | None = None, master: str | None = None) -> Key:
    key = Key(secret)
    key._set(secret, is_secret=is_secret, run=run, master=master)
    return key


def new_key() -> Key:
    """Make a secret key from the operating system's random numbers.

    Store it with `Key.save`; `Key.for_run` derives a key for each run.

    Returns:
        A master key.

    Example:
        >>> key = new_key()
        >>> key.is_secret, key == new_key()
        (True, False)
    """
    return Key(secrets.token_bytes(KEY_BYTES))


def as_key(key: Key | bytes | int) -> Key:
    """Return `key` as a Key: 32 bytes are a secret key; an integer is a seed for experiments, and not secret."""
    if isinstance(key, Key):
        return key
    if not isinstance(key, bytes) and hasattr(key, "__index__") and not isinstance(key, bool):
        return Key.from_seed(key)
    return Key(key)  # type: ignore[arg-type]  # refuses whatever is not bytes


def encode(*domain: str | int | bytes) -> bytes:
    """Encode a domain as bytes so that different domains never collide: every part has its type and length."""
    parts = [_DOMAIN]
    for part in domain:
        if isinstance(part, str):
            raw = part.encode("utf-8")
            parts.append(b"s" + len(raw).to_bytes(8, "little") + raw)
        elif isinstance(part, bytes):
            parts.append(b"b" + len(part).to_bytes(8, "little") + part)
        else:
            advice = "Give a domain as text, bytes and integers."
            number = _check.integer("a part of the domain", part, 0, 2**64 - 1, advice=advice)
            parts.append(b"i" + number.to_bytes(8, "little"))
    return b"".join(parts)


def _read_private(path: Path) -> bytes:
    """Read a regular file on which group and others have no rights at all."""
    try:
        # O_NONBLOCK: a named pipe must be refused, not waited for.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        raise SecretError(
            f"The key file {str(path)!r} cannot be read ({error.strerror}). "
            "Check the path, or make a key with `ballsbins key FILE` or ballsbins.new_key().save(path)."
        ) from None
    try:
        status = os.fstat(descriptor)  # status of the open file, so that nobody can swap it after the check
        if not stat.S_ISREG(status.st_mode):
            raise SecretError(f"The key file {str(path)!r} is not a regular file. Name a file of mode 0600.")
        mode = stat.S_IMODE(status.st_mode)
        if os.name == "posix" and mode & 0o077:
            raise SecretError(
                f"The key file {str(path)!r} has mode {mode:04o}, so that others than its owner can use it, "
                f"but must have 0600 or 0400. Run: chmod 600 {str(path)!r}; if others may have read it, make "
                "a new key."
            )
        return os.read(descriptor, _LARGEST_FILE)
    finally:
        os.close(descriptor)


def _decode(content: bytes) -> bytes | None:
    """Return the key in a key file's content, or None. It raises no error, since an error could show the content."""
    if len(content) == KEY_BYTES:
        return content
    digits = content.removesuffix(b"\n").removesuffix(b"\r")
    if len(digits) != 2 * KEY_BYTES or not all(digit in b"0123456789abcdefABCDEF" for digit in digits):
        return None
    return bytes.fromhex(digits.decode("ascii"))
