"""An append-only record of the steps that were taken, so that no step of a killed process is forgotten.

A killed process may have taken steps after its last checkpoint, and somebody may have seen their results. A resumed
run takes those steps again, on the same batches and with fresh noise, which is a second release. So each step is
written here, and reaches the disk, before its noisy gradient exists.

The file has one JSON object per line. The first line identifies the run. Then there is one line for each step, and
one line for each time that the run went back to a checkpoint:

    {"ledger": 1, "run": "…", "key_commitment": "…", "mechanism": {…}}
    {"step": 0, "noise": "…"}
    {"resume": 0, "lost": "accounted"}

`noise` is public and distinguishes different noise. It is the nonce of the process, or, if the run replays
(`noise_binding`), a code of everything that the step's noise is bound to.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from ballsbins._files import sync
from ballsbins.errors import DataError, RunError
from ballsbins.mechanism import Mechanism

SCHEMA = 1
UNPUBLISHED, ACCOUNTED = "unpublished", "accounted"
_REPEAT = "repeat"  # lost steps are repeated bit for bit, which is checked at each step
_WHAT_TO_SAY = (
    f"Say what became of them: make_private(..., lost_steps={UNPUBLISHED!r}) if nothing of them was or will be shown "
    f"to anybody, or lost_steps={ACCOUNTED!r} to have them counted, which costs privacy."
)


class Ledger:
    """The ledger of one run at one path. Nothing is written before the first step."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        key_commitment: str,
        mechanism: Mechanism,
        lost_steps: str | None = None,
    ) -> None:
        """Read an existing ledger. Refuse one of another key or mechanism, or a damaged one."""
        self.path = Path(path)
        self.run: str | None = None
        self._commitment, self._mechanism, self._word = key_commitment, mechanism, lost_steps
        self._taken: list[str] = []  # the noise of every step that led to the current state
        self._lost: list[str] = []  # the noise of later steps, which must be repeated
        self._again: Counter[int] = Counter()  # for each step, the number of other attempts that count
        self.unpublished: list[tuple[int, int]] = []
        self._pending: str | None = None  # what became of the lost steps; written at the next step
        self._size = 0
        self._descriptor: int | None = None
        for number, line in enumerate(self._lines(), start=1):
            try:
                self._read(json.loads(line), number)
            except (ValueError, TypeError, KeyError, AttributeError):
                raise DataError(
                    f"Line {number:,} of the ledger {str(self.path)!r} is damaged. Restore the file from a backup: "
                    "without it nobody knows which steps were taken."
                ) from None

    @property
    def mark(self) -> int:
        """The number of steps known to have been taken, including lost ones."""
        return len(self._taken) + len(self._lost)

    @property
    def repeats(self) -> int:
        """The largest number of times that a step was taken again after an earlier attempt that also counts."""
        return max(self._again.values(), default=0)

    @property
    def repeated_to(self) -> int:
        """The number of steps up to the last lost step that is still counted."""
        return max(self._again, default=-1) + 1

    def resume(self, run: str, step: int, noise: str | None, *, replays: bool) -> None:
        """Continue from a checkpoint, possibly an earlier one; the next step records this in the file.

        Args:
            run: the run's id.
            step: the number of steps in the checkpoint.
            noise: the noise of its last step, "" if it has no step, None if it is unknown.
            replays: whether lost steps will be repeated bit for bit, if nothing has changed.

        Raises:
            RunError: the ledger does not belong to this checkpoint, or it has later steps and `lost_steps` does not
                say what became of them.
        """
        self._require_run(run)
        known = self._taken + self._lost
        if step > len(known):
            raise RunError(
                f"The checkpoint is of step {step:,}, but the ledger {str(self.path)!r} knows of {len(known):,} "
                "steps: it is not the ledger of this run, or lines were lost. Give the ledger that was kept when the "
                "checkpoint was written."
            )
        if step > 0 and noise is not None and known[step - 1] != noise:
            raise RunError(
                f"The checkpoint of step {step:,} is not on the way that the ledger {str(self.path)!r} records: its "
                "last step was taken by another process, and was lost when the run went back. Load a checkpoint "
                "that was written since."
            )
        lost = known[step:]
        if not lost:
            return
        if self._word is None and not replays:
            raise RunError(
                f"The checkpoint is of step {step:,}, but {len(known):,} steps were taken by the ledger "
                f"{str(self.path)!r}: {len(lost):,} of them are lost and would be taken again. {_WHAT_TO_SAY}"
            )
        self._go_back(step, self._word or _REPEAT)
        self._pending = self._word or _REPEAT

    def take(self, run: str, step: int, noise: str) -> None:
        """Write a step to the ledger; return once it has reached the disk."""
        self._require_run(run)
        if self._lost and self._lost[0] != noise:
            raise RunError(
                f"Step {step:,} was taken before, and lost; it cannot be repeated, because its sums or what they "
                f"follow from have changed. {_WHAT_TO_SAY}"
            )
        if step != len(self._taken):
            raise RunError(
                f"The next step of the ledger {str(self.path)!r} is {len(self._taken):,}, but the run is at step "
                f"{step:,}. Load the checkpoint of the run before its first step, or name a new ledger."
            )
        lines: list[dict[str, Any]] = []
        if self.run is None:
            self.run = run
            lines.append(
                {
                    "ledger": SCHEMA,
                    "run": run,
                    "key_commitment": self._commitment,
                    "mechanism": self._mechanism.to_dict(),
                }
            )
        if self._pending is not None:
            lines.append({"resume": step, "lost": self._pending})
            self._pending = None
        lines.append({"step": step, "noise": noise})
        self._append("".join(json.dumps(line) + "\n" for line in lines))
        self._step(noise)

    def _step(self, noise: str) -> None:
        self._taken.append(noise)
        del self._lost[:1]

    def _go_back(self, step: int, word: str) -> None:
        known = self._taken + self._lost
        lost = known[step:]
        self._taken, self._lost = known[:step], lost if word == _REPEAT else []
        if word == ACCOUNTED:
            self._again.update(range(step, len(known)))
        elif word == UNPUBLISHED:
            self.unpublished.append((step, len(known)))

    def _require_run(self, run: str) -> None:
        if self.run not in (None, run):
            raise RunError(
                f"The ledger {str(self.path)!r} is that of run {self.run}, but this is run {run}. Load the "
                "checkpoint of that run, or name a new ledger."
            )

    def _lines(self) -> list[str]:
        """All complete lines. A partial last line means that the process was killed before its step had noise."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._unusable("read", error) from None
        whole = content[: content.rfind(b"\n") + 1]
        self._size = len(content)
        return whole.decode("utf-8", errors="replace").splitlines()

    def _read(self, line: dict[str, Any], number: int) -> None:
        if number == 1:
            self._read_first(line)
        elif set(line) == {"step", "noise"} and line["step"] == len(self._taken):
            if not isinstance(line["noise"], str) or (self._lost and self._lost[0] != line["noise"]):
                raise ValueError
            self._step(line["noise"])
        elif set(line) == {"resume", "lost"} and line["lost"] in (_REPEAT, UNPUBLISHED, ACCOUNTED):
            if not isinstance(line["resume"], int) or not 0 <= line["resume"] < self.mark:
                raise ValueError
            self._go_back(line["resume"], line["lost"])
        else:
            raise ValueError

    def _read_first(self, line: dict[str, Any]) -> None:
        if line.get("ledger") != SCHEMA:
            raise DataError(
                f"{str(self.path)!r} is not a ledger of this version (schema {line.get('ledger')!r}, not {SCHEMA}). "
                "Name another file, or update ballsbins if a later version wrote it."
            )
        saved = Mechanism.from_dict(line["mechanism"])
        mine = self._mechanism
        for what, found, wanted in (
            ("key", line["key_commitment"], self._commitment),
            ("mechanism", (saved.sampler, saved.noise_multiplier), (mine.sampler, mine.noise_multiplier)),
        ):
            if found != wanted:
                raise RunError(
                    f"The ledger {str(self.path)!r} is of another {what} ({found}, not {wanted}). Name a new file "
                    "for a new run."
                )
        if not isinstance(line["run"], str):
            raise ValueError
        self.run = line["run"]

    def _append(self, text: str) -> None:
        raw = text.encode("utf-8")
        try:
            if self._descriptor is None:
                self._descriptor = self._opened()
            if os.fstat(self._descriptor).st_size != self._size:
                raise RunError(
                    f"Somebody else has written to the ledger {str(self.path)!r}: is the run going on twice? Stop "
                    "one of them, and resume from its last checkpoint."
                )
            written = 0
            while written < len(raw):  # a nearly full disk may accept only part of the data
                written += os.write(self._descriptor, raw[written:])
            os.fsync(self._descriptor)
        except OSError as error:
            if self._descriptor is not None:
                with suppress(OSError):  # remove the partial line; a reader would ignore it anyway
                    os.ftruncate(self._descriptor, self._size)
            raise self._unusable("written", error) from None
        self._size += len(raw)

    def _opened(self) -> int:
        new = not self.path.exists()
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        if os.fstat(descriptor).st_size == self._size:  # else `_append` refuses
            content = os.pread(descriptor, self._size, 0)
            self._size = content.rfind(b"\n") + 1
            os.ftruncate(descriptor, self._size)  # removes a partial last line
        if new:  # the name of a new file must reach the disk too
            sync(self.path.parent)
        return descriptor

    def _unusable(self, verb: str, error: OSError) -> DataError:
        return DataError(
            f"The ledger {str(self.path)!r} cannot be {verb} ({error.strerror}), so the step is not taken. Name a "
            "file that can be read and written."
        )

    def __del__(self) -> None:
        """Close the file."""
        if getattr(self, "_descriptor", None) is not None:
            os.close(self._descriptor)  # type: ignore[arg-type]
