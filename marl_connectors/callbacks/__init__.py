"""Callbacks: functions of the user's that a run calls at certain points."""

from marl_connectors.callbacks.callback_calls import CALLBACK_NAMES, CallbackCalls, Functions
from marl_connectors.callbacks.callbacks import Callbacks, RLlibCallback
from marl_connectors.callbacks.success import Success
from marl_connectors.callbacks.trackers import (
    TRACKERS,
    MLflowTracker,
    TensorBoardTracker,
    Tracker,
    TrackioTracker,
    WandbTracker,
)

__all__ = [
    "CALLBACK_NAMES",
    "TRACKERS",
    "CallbackCalls",
    "Callbacks",
    "Functions",
    "MLflowTracker",
    "RLlibCallback",
    "Success",
    "TensorBoardTracker",
    "Tracker",
    "TrackioTracker",
    "WandbTracker",
]
