"""A Spark session that does not leak secrets, and the checks that must pass before one can start.

The batches are as secret as the key, and Spark shows a lot by default. So a session started here has no web page, and
encrypts what it writes to local disks (shuffle files are batches; a broadcast variable holds the key). Traffic
between machines is encrypted by the cluster's own settings, `spark.authenticate` and `spark.network.crypto.enabled`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ballsbins import __version__
from ballsbins._extras import load
from ballsbins.errors import BallsBinsError, InvalidInputError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"
LEAST_JAVA = 17
LEAST_SPARK = (4, 1)  # the first version with repartitionById and arrow_udf
_OURS = {
    "spark.app.name": "ballsbins",
    "spark.ui.enabled": "false",  # the page shows how many rows every task read, which reveals batch sizes
    "spark.ui.showConsoleProgress": "false",
    "spark.eventLog.enabled": "false",  # the event log shows the same
    "spark.io.encryption.enabled": "true",
    "spark.sql.caseSensitive": "true",  # as in Parquet files and the embedded engine
    "spark.log.level": "ERROR",
}

_shipped: dict[str, tempfile.TemporaryDirectory[str]] = {}  # the shipped package, by Spark application


class MissingJavaError(BallsBinsError):
    """Spark needs Java, and found no version that it can use."""


@contextmanager
def session(master: str = LOCAL, settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Start a session on `master` and stop it at the end; `settings` are Spark settings that override ours."""
    sql = load("pyspark.sql", feature="The Spark engine", extra="spark")
    _check_spark_version()
    if not re.fullmatch(r"local(\[.+\])?|yarn|(spark|k8s)://.+", master):
        advice = "Name the master of a cluster, or leave it out to use this machine's cores."
        raise InvalidInputError("master", master, "local[…], spark://…, yarn or k8s://…", advice)
    require_java()
    if sql.SparkSession.getActiveSession() is not None:
        advice = "Stop it, or use it: build(…, session=it)."
        raise InvalidInputError("master", master, "left out while another Spark session is active", advice)
    if _is_local(master):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # otherwise workers run whatever `python3` is
    builder = sql.SparkSession.builder.master(master)
    for name, value in {**_OURS, **(settings or {})}.items():
        builder = builder.config(name, value)
    try:
        spark = builder.getOrCreate()
    except Exception as error:  # the errors of py4j and PySpark have no common base class
        raise BallsBinsError(
            f"Spark cannot start on {master!r}: {what_failed(error)} Check the address and that the cluster runs; "
            f"{LOCAL!r} needs none."
        ) from None
    try:
        yield spark
    finally:
        spark.stop()


def _is_local(master: str) -> bool:
    return master.startswith("local")


def require_java() -> None:
    """Raise unless a Java version that Spark can run on is installed."""
    install = f"Install Java {LEAST_JAVA} or later; on Debian: apt-get install default-jre-headless"
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None:
        raise MissingJavaError(f"Spark needs Java, and no `java` is on the PATH. {install}")
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        raise MissingJavaError(f"Spark needs Java, but {java!r} does not run. {install}") from None
    version = re.search(r'version "(?:1\.)?(\d+)', said.stderr + said.stdout)
    if version is None or int(version[1]) < LEAST_JAVA:
        found = "of an unknown version" if version is None else f"Java {version[1]}"
        raise MissingJavaError(
            f"Spark needs Java {LEAST_JAVA} or later, but {java!r} is {found}. {install}, and point JAVA_HOME to it."
        )


def _check_spark_version() -> None:
    version = load("pyspark", feature="The Spark engine", extra="spark").__version__
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < LEAST_SPARK:
        least = ".".join(map(str, LEAST_SPARK))
        raise InvalidInputError(
            "the version of pyspark", version, f"{least} or later", "Run: pip install -U 'ballsbins[spark]'"
        )


def ship(spark: SparkSession) -> None:
    """Send this package to the executors, which then need only numpy, pyarrow and cryptography.

    So the code that assigns rows is the same everywhere, whatever version is installed on the cluster's machines. The
    archive is kept until this process ends, because executors that start later ask for it again.
    """
    context = spark.sparkContext
    application = str(context.applicationId)
    if _is_local(context.master or LOCAL) or application in _shipped:
        return
    source = Path(__file__).parents[2]
    _shipped[application] = tempfile.TemporaryDirectory(prefix="ballsbins-")
    package = Path(_shipped[application].name, f"ballsbins-{__version__}.zip")
    with zipfile.ZipFile(package, "w") as archive:
        for path in sorted(source.rglob("*.py")):
            archive.write(path, Path("ballsbins") / path.relative_to(source))
    context.addPyFile(str(package))


@contextmanager
def broadcast(spark: SparkSession, secret: Any) -> Iterator[Any]:
    """Pass `secret` to the executors as a broadcast variable: plans and logs contain only its number."""
    variable = spark.sparkContext.broadcast(secret)
    try:
        yield variable
    finally:
        variable.destroy()


def what_failed(error: BaseException) -> str:
    """Extract from a Spark error the sentence that says what went wrong, without Java and Python stack traces."""
    text = str(error).strip()
    python = re.findall(r"^(\w+(?:\.\w+)*(?:Error|Exception): .+)$", text, re.MULTILINE)
    java = re.search(r"^: (.+)$", text, re.MULTILINE)  # follows the call that failed
    if python:
        return str(python[-1])
    return java[1] if java else (text.splitlines() or [type(error).__name__])[0]
