"""The worker: takes deliveries, runs handlers, settles outcomes.

`worker` is the public face; `shift` holds the loops of one run; `runner` runs one delivery;
`settler` writes outcomes; `outcomes` and `options` decide and do no I/O. From outside only the
names below may be touched.
"""

from remuda.worker.job import Job
from remuda.worker.options import AckPolicy, Retention, WorkerOptions
from remuda.worker.worker import Worker

__all__ = ["AckPolicy", "Job", "Retention", "Worker", "WorkerOptions"]
