"""The Spark engine: writes the same batch files as the embedded engine, on the machines of a cluster.

The plan is one shuffle. Every row gets its batch from (key, epoch, identity) alone and goes to the partition of its
part. Each partition is sorted and written as one part. `build` takes the arguments of the embedded `build`, and a
session:

    from ballsbins.batch_files import spark

    with spark.session("spark://master:7077") as session:
        spark.build(plan, directory, key, epoch=0, session=session)

Inputs and the output directory must be reachable under the same address from the driver and from all executors.
"""

from ballsbins.batch_files.spark.build import assign, build, build_epochs
from ballsbins.batch_files.spark.session import MissingJavaError, session

__all__ = ["MissingJavaError", "assign", "build", "build_epochs", "session"]
