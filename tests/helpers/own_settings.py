"""A config with settings of its own."""

from __future__ import annotations

from typing import Annotated

from marl_connectors import PPOConfig
from marl_connectors.validators import number


class Curious(PPOConfig):
    """One setting with a range, one without, one that is not declared, and another default."""

    lr = 0.5
    gamma: float = 0.9
    bonus: Annotated[float, number(min=0)] = 0.0
    note: str = ""

    def __init__(self):
        super().__init__()
        self.anything = None
