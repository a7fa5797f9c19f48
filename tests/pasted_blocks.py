"""Paste the blocks of one document, in order, as a reader would; `test_documents.py` runs this in an empty directory.

Standard input has the blocks as JSON, [[kind, text, place], …]; standard output gets what each of them printed. The
Python blocks of a document are one session, so that a page imports its libraries once.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
from contextlib import redirect_stdout


def _paste(kind: str, text: str, place: str, session: dict[str, object]) -> str:
    if kind == "python":
        with redirect_stdout(io.StringIO()) as printed:
            exec(compile(text, place, "exec"), session)
        return printed.getvalue()
    done = subprocess.run(["bash", "-ec", text], capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        sys.exit(f"{place}: exit code {done.returncode}\n{text}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    session: dict[str, object] = {"__name__": "__main__"}
    print(json.dumps([_paste(*block, session) for block in json.load(sys.stdin)]))
