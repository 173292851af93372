"""Two processes hear what the other one says, and that it is gone."""

from __future__ import annotations

import os
import threading

import pytest

from marl_connectors.environments.vector.channel import _LETTER, _ROOM, channel


@pytest.fixture(params=[True, False], ids=["eventfd", "connection only"])
def ends(request, monkeypatch):
    if not request.param:
        monkeypatch.delattr(os, "eventfd", raising=False)
    elif not hasattr(os, "eventfd"):
        pytest.skip("this system has no eventfd")
    here, there = channel()
    yield here, there
    here.close()
    there.close()


def test_messages_arrive_whole_and_in_order_both_ways(ends):
    here, there = ends
    for message in (b"s", b"", b"letter", bytes(range(256)), b"s"):
        here.send(message)
        assert there.receive(1.0) == message
        there.send(message[::-1])
        assert here.receive() == message[::-1]


@pytest.mark.parametrize("size", [_ROOM, _ROOM + 1, 5_000_000])
def test_a_message_may_be_larger_than_what_the_system_keeps_for_the_reader(ends, size):
    here, there = ends
    message = os.urandom(size)
    sender = threading.Thread(target=here.send, args=(message,))
    sender.start()
    assert there.receive(60.0) == message
    sender.join()


def test_nothing_in_time_is_a_timeout(ends):
    with pytest.raises(TimeoutError):
        ends[0].receive(0.01)


def test_a_message_that_is_announced_and_does_not_come_is_a_timeout_too():
    here, there = channel()
    if there._other_bell is None:
        pytest.skip("this system has no eventfd")
    os.eventfd_write(there._other_bell, _LETTER)
    end = threading.Timer(5.0, there.close)  # or this test would wait for ever if it failed
    end.start()
    with pytest.raises(TimeoutError):
        here.receive(0.01)
    end.cancel()
    here.close()
    there.close()


def test_what_was_said_before_the_end_is_heard_and_then_the_end(ends):
    here, there = ends
    there.send(b"goodbye")
    there.close()
    assert here.receive() == b"goodbye"
    with pytest.raises(EOFError):
        here.receive(5.0)


def test_file_descriptors_are_given_back():
    before = len(os.listdir("/dev/fd"))
    for end in channel():
        end.close()
        end.close()
    assert len(os.listdir("/dev/fd")) == before


def test_ordinary_steps_do_not_use_the_connection(monkeypatch):
    here, there = channel()
    if here._own_bell is None:
        pytest.skip("this system has no eventfd")
    monkeypatch.setattr(here, "_connection", None)
    here.send(b"step")
    monkeypatch.undo()
    assert there.receive(1.0) == b"step"
    here.close()
    there.close()
