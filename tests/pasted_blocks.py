"""Paste the blocks of one document, in order, as a reader would; `test_documents.py` runs this in an empty directory.

Standard input has the blocks as JSON, [[kind, text, place], …]; standard output gets what each of them printed. The
Python blocks of a document are one session, so that a page imports its libraries once. Plain calls of `ballsbins` run
in copies of a process that has our command line loaded already; all other shell goes to bash.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from contextlib import redirect_stdout
from multiprocessing import Pipe
from multiprocessing.connection import Connection

SHELL = re.compile(r"[|<>;&$`*]")  # what only a shell understands


def calls_of(text: str) -> list[list[str]] | None:
    """The arguments of every line, if all lines are plain calls of `ballsbins`."""
    if SHELL.search(text):
        return None
    lines = [shlex.split(line, comments=True) for line in text.replace("\\\n", " ").splitlines()]
    calls = [line for line in lines if line]
    return [call[1:] for call in calls] if all(call[0] == "ballsbins" for call in calls) else None


def _call(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Run our command line with these arguments in a copy of this process."""
    import ballsbins.curves
    from ballsbins import cli

    del ballsbins
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if not child:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            sys.argv, code = ["ballsbins", *arguments], 1
            try:
                cli.main()
                code = 0
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(arguments, code, out.read(), err.read())


def _copied() -> Connection:
    """A copy of this process that answers arguments with what `ballsbins` does; it ends with this process.

    It is made before a page loads anything: a process with JAX, torch or pyarrow has threads and must not be copied.
    """
    here, there = Pipe()
    if os.fork():
        there.close()
        return here
    here.close()
    try:
        while True:
            folder, arguments = there.recv()
            os.chdir(folder)
            there.send(_call(arguments))
    except EOFError:
        os._exit(0)
    finally:
        os._exit(1)


def _run(text: str, copy: Connection) -> list[subprocess.CompletedProcess[str]]:
    calls = calls_of(text)
    if calls is None:
        return [
            subprocess.run(["bash", "-ec", text], capture_output=True, text=True, check=False, timeout=300)
        ]
    ended = []
    for arguments in calls:
        copy.send((os.getcwd(), arguments))
        ended.append(copy.recv())
    return ended


def _paste(kind: str, text: str, place: str, session: dict[str, object], copy: Connection) -> str:
    if kind == "python":
        with redirect_stdout(io.StringIO()) as printed:
            exec(compile(text, place, "exec"), session)
        return printed.getvalue()
    for done in (ended := _run(text, copy)):
        if done.returncode:
            sys.exit(f"{place}: exit code {done.returncode}\n{text}\n{done.stdout}{done.stderr}")
    return "".join(done.stdout for done in ended)


if __name__ == "__main__":
    session: dict[str, object] = {"__name__": "__main__"}
    blocks, copy = json.load(sys.stdin), _copied()
    print(json.dumps([_paste(*block, session, copy) for block in blocks]))
    copy.close()
    os.wait()
