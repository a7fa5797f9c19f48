"""A real Spark cluster on the loopback: a standalone master and its workers, each a process group of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyspark
import pytest
from filelock import FileLock

from ballsbins.batch_files.spark.session import MissingJavaError, require_java

_SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
LIGHT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # for Java that starts fast and does not run long
# PySpark leaves it to the garbage collector to close the sockets by which it talks to Java.
OPEN_SOCKETS = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings(
        r"ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
    ),
]
_PATIENCE = 120.0  # seconds until something that never comes is an error


def install_java() -> None:
    """Make sure that there is Java: root may install it, anybody else is told how."""
    try:
        require_java()
    except MissingJavaError as missing:
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise AssertionError(f"The Spark tests cannot run. {missing}") from missing
        with FileLock(Path(tempfile.gettempdir()) / "ballsbins-apt.lock"):  # one installs at a time
            for command in (["apt-get", "update"], ["apt-get", "install", "-y", "default-jre-headless"]):
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    said = done.stderr.strip()[-300:]
                    raise AssertionError(
                        f"The Spark tests cannot run. {missing} ({' '.join(command)} failed: {said})"
                    ) from missing
        require_java()


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Cluster:
    """Started by `with`; `url` is the master's address."""

    def __init__(self, directory: Path, workers: int = 2) -> None:
        """Keep logs and scratch space of the cluster in `directory`."""
        self.directory, self._count = directory, workers
        self.url = f"spark://127.0.0.1:{free_port()}"
        self._groups: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Cluster:
        port = self.url.rpartition(":")[2]
        master = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", port]
        self._start("master", [*master, "--webui-port", str(free_port())], {})
        try:
            self._await("master", "I have been elected leader")
            for number in range(self._count):
                self.start_worker(number)
        except BaseException:
            self.__exit__()
            raise
        return self

    def start_worker(self, number: int) -> None:
        """Start a worker of one core, and wait until the master knows it."""
        name = f"worker-{number}"
        worker = [
            "org.apache.spark.deploy.worker.Worker",
            "--host",
            "127.0.0.1",
            "--cores",
            "1",
            "--memory",
            "1g",
        ]
        ports = ["--port", str(free_port()), "--webui-port", str(free_port())]
        scratch = self.directory / name
        scratch.mkdir()
        own = {"SPARK_WORKER_DIR": str(scratch), "SPARK_LOCAL_DIRS": str(scratch)}
        self._start(name, [*worker, *ports, self.url], own)
        self._await(name, "Successfully registered with master")

    def kill_worker(self, number: int) -> None:
        """Kill a worker and its executors at once, as a machine that loses its power."""
        self._end(f"worker-{number}", signal.SIGKILL)

    def __exit__(self, *_: object) -> None:
        for name in list(self._groups):
            self._end(name, signal.SIGKILL)

    def _start(self, name: str, command: list[str], own: dict[str, str]) -> None:
        environment = {
            **os.environ,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_DAEMON_MEMORY": "256m",
            "JAVA_TOOL_OPTIONS": LIGHT,
            **own,
        }
        with self._log(name).open("wb") as log:
            self._groups[name] = subprocess.Popen(
                [str(_SPARK_CLASS), *command],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a process group, so that executors end with their worker
            )

    def _log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def _await(self, name: str, sentence: str) -> None:
        deadline = time.monotonic() + _PATIENCE
        while sentence not in self._log(name).read_text(errors="replace"):
            if self._groups[name].poll() is not None or time.monotonic() > deadline:
                text = self._log(name).read_text(errors="replace")
                raise AssertionError(f"Spark's {name} did not come up:\n{text[-2000:]}")
            time.sleep(0.05)

    def _end(self, name: str, how: signal.Signals) -> None:
        process = self._groups.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        process.wait()
