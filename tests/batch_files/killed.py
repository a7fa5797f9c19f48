"""Build an epoch in a process that is killed (signal 9) at its n-th look at the file system, then build it again.

    python killed.py INPUTS OUT

for n = 1, 2, … until a build ends by itself. Prints one line for each n: what was there after the kill. Forks before
Arrow starts any thread, so that the imports are paid once.
"""

import os
import signal
import sys
from pathlib import Path

from ballsbins import BallsAndBins, Key
from ballsbins.batch_files.build import build
from ballsbins.batch_files.build_plan import plan_build
from ballsbins.batch_files.inputs import open_inputs

EVENTS = {
    "open",
    "os.mkdir",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.chmod",
    "os.listdir",
    "os.scandir",
    "shutil.rmtree",
}
STEPS, SEED = 40, 11


def one_build(inputs, out, kill_at):
    seen = 0

    def look(event, arguments):
        nonlocal seen
        if event in EVENTS and str(out) in str(arguments[0]):
            seen += 1
            if seen == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(look)
    build(plan_build(open_inputs([inputs]), BallsAndBins(STEPS), workers=1), out, Key.from_seed(SEED), 0)


def forked(*arguments):
    """Run a build in a child; return the signal that ended it, or 0."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            one_build(*arguments)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the build failed"
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def main():
    inputs, base = Path(sys.argv[1]), Path(sys.argv[2])
    for kill_at in range(1, 1000):
        out = base / f"{kill_at}"
        ended = forked(inputs, out, kill_at)
        epoch = out / "epoch-000000"
        state = "whole" if (epoch / "manifest.json").exists() else "part" if epoch.exists() else "none"
        assert forked(inputs, out, 0) == 0
        print(ended, state, flush=True)
        if ended == 0:
            return


if __name__ == "__main__":
    main()
