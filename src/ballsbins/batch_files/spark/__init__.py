"""The Spark engine: the same batch files as the embedded one, by the machines of a cluster.

The plan is one shuffle: every row gets its batch from (key, epoch, identity) alone, goes to the partition of its
part, is sorted there, and each partition is written as one part. `build` here takes what the embedded `build` takes,
and a session:

    from ballsbins.batch_files import spark

    with spark.session("spark://master:7077") as session:
        spark.build(plan, directory, key, epoch=0, session=session)

Inputs and the output directory must be reachable under the same address from the driver and from all executors.
"""

from ballsbins.batch_files.spark.build import assign, build, build_epochs
from ballsbins.batch_files.spark.session import MissingJavaError, session

__all__ = ["MissingJavaError", "assign", "build", "build_epochs", "session"]
