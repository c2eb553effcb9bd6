"""The errors of Remuda: one small tree, each saying what was wrong, with which value, and what to do."""


class RemudaError(Exception):
    """The root of every error that Remuda raises."""


class ConfigurationError(RemudaError, ValueError):
    """An option or a store URL does not make sense; nothing was started."""


class InvalidJobError(RemudaError, ValueError):
    """A job cannot be added as it is (name, time, priority, headers …); nothing was written."""


class EncodeError(InvalidJobError):
    """A payload or headers cannot be written as msgpack or JSON; nothing was written."""


class OversizeError(InvalidJobError):
    """A payload is larger than the queue allows; nothing was written."""


class QueueFullError(RemudaError):
    """The queue holds as many jobs as it may; nothing was written. Try again when some have ended."""


class DecodeError(RemudaError):
    """Bytes in the store are not what their content type says, or not of the type the handler asked for."""


class QueueClosedError(RemudaError):
    """The queue was closed; open a new one."""


class QueueBusyError(RemudaError):
    """Jobs of the queue run, and what was asked would take them from their workers."""


class IllegalMoveError(RemudaError):
    """A state change that the lifecycle does not know; it was not written."""


class StoreError(RemudaError):
    """The store refused an operation."""


class StoreUnavailableError(StoreError):
    """The store cannot be reached just now, or gave up a transaction; the same call may succeed later."""


class SchemaError(StoreError):
    """The tables in the database are not the ones that this version of Remuda works with."""


class JobFailedError(RemudaError):
    """The job whose result was asked for is a dead letter: the reason, and what its handler raised."""

    def __init__(
        self, job_id: str, reason: str, error_type: str | None = None, error_message: str | None = None
    ) -> None:
        self.job_id = job_id
        self.reason = reason
        self.error_type = error_type
        self.error_message = error_message
        raised = "" if error_type is None else f", {error_type}: {error_message}"
        super().__init__(f"job {job_id} failed ({reason}){raised}")


class NoResultError(RemudaError):
    """The job whose result was waited for has ended, or is gone, and no result of it is kept."""


class NoHandlerError(RemudaError):
    """No handler is registered for a job's name."""


class HandlerTimeoutError(RemudaError):
    """A handler ran longer than its time-out; it counts as a failure and is retried."""


class JobCancelledError(RemudaError):
    """Somebody has cancelled the job that runs. Raised by `Job.check_cancelled`; let it pass."""


class UnrecoverableError(RemudaError):
    """Raise it in a handler when a retry cannot help: the job becomes a dead letter at once."""


class JobRejectedError(RemudaError):
    """Stands in a dead letter for a job that its handler rejected by hand."""
