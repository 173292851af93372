"""Whether an environment is the same in a worker process as it is here."""

from __future__ import annotations

from marl_connectors.environments.env_copy import EnvCopy
from marl_connectors.environments.trial_record import TrialRecord
from marl_connectors.environments.worker_process import WorkerLost, WorkerProcess
from marl_connectors.errors import MarlConnectorsError

TRIAL_TIMEOUT_S = 30.0


def is_same_in_worker(maker: bytes, record: TrialRecord) -> bool:
    """Starts a worker process, plays a trial run's episode in it, and ends it.

    What differs depends on something that the other process does not have (a module's variable that was set here, a
    resource that there is only one of, a debugger) or on random numbers other than the seed's. It is asked once.

    Args:
        maker: A pickled function that makes a copy.
        record: Of the trial run.

    Returns:
        True for the same numbers; False too if the process failed, or took longer than ``TRIAL_TIMEOUT_S``.
    """
    found = record.is_same_in_worker
    if found is None:
        worker = WorkerProcess(maker, [EnvCopy(None, 0)], None, TRIAL_TIMEOUT_S)
        try:
            worker.start()
            worker.finish_start(TRIAL_TIMEOUT_S)
            worker.send("trial", record.actions)
            found = worker.receive().result == record.digest
        except (WorkerLost, MarlConnectorsError):
            found = False
        finally:
            worker.stop()
        record.is_same_in_worker = found
    return found
