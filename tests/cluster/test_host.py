"""What a hosted object raises reaches the caller, and its process goes on."""

from __future__ import annotations

import pickle
import sys

import pytest
from ray import cloudpickle

from marl_connectors.cluster.host import Host, Outcome
from marl_connectors.errors import MarlConnectorsError


class Leaver:
    """Ends the process in which it is."""

    def __init__(self, is_at_once=False):
        if is_at_once:
            sys.exit("not here")

    def leave(self, code):
        sys.exit(code)

    def leave_as_ray_does(self):
        stop = SystemExit(0)
        stop.ray_terminate_msg = "exit_actor() is called."  # type: ignore[attr-defined]
        raise stop


def host(*arguments):
    found = Host("EnvRunner0", 1, [])
    return found, found.begin(cloudpickle.dumps(Leaver), arguments)


@pytest.mark.parametrize(("code", "shown"), [(3, r"3"), (None, ""), ("no game", r"'no game'")])
def test_sys_exit_in_a_call_is_an_error(code, shown):
    outcome, payload = host()[0].call("leave", code)
    assert payload is None
    with pytest.raises(MarlConnectorsError, match=rf"(?s)EnvRunner0.*sys\.exit\({shown}\)"):
        outcome.result("env runner 0")


def test_sys_exit_while_the_object_is_made_is_an_error():
    with pytest.raises(MarlConnectorsError, match=r"sys\.exit\('not here'\)"):
        host(True)[1].result("env runner 0")


def test_an_object_is_told_something_as_soon_as_it_is_there():
    found = Host("EnvRunner0", 1, [])
    found.tell("append", 1)
    found.begin(cloudpickle.dumps(list), ())
    found.tell("append", 2)
    assert found._object == [2]


def test_ray_may_end_the_process():
    with pytest.raises(SystemExit):
        host()[0].call("leave_as_ray_does")


def test_an_error_that_cannot_be_unpickled_here_is_shown_as_text():
    error = (
        pickle.dumps(ZeroDivisionError())
        .replace(b"builtins", b"absentee")
        .replace(b"ZeroDivisionError", b"RemoteOnlyProblem")
    )
    with pytest.raises(MarlConnectorsError, match=r"runner 0.*\nthe traceback"):
        Outcome(error=error, where="the traceback").result("env runner 0")
