"""What all tests share."""

import sys
from subprocess import CompletedProcess

import pytest


@pytest.fixture
def shell(monkeypatch, capsys):
    """Run the command line as the installed script does, in this process: starting another costs a second each."""

    def run(*words, cwd=None):
        from ballsbins.cli import main

        monkeypatch.setattr(sys, "argv", ["ballsbins", *map(str, words)])
        if cwd is not None:
            monkeypatch.chdir(cwd)
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return CompletedProcess(words, ended.value.code or 0, out, err)

    return run
