"""The state of env runners does not depend on how the sub-environments are divided among them.

Runners with shares of the sub-environments play. At any time, their states can be merged and divided in another way, and
the runners that continue play what one runner with all sub-environments plays.
"""

from __future__ import annotations

import copy
import secrets
from itertools import accumulate
from typing import Any

import numpy as np
import pytest

from contracts.test_env_runner_shares import depends_on_others, runner_of
from helpers.custom_pieces import Doubles
from helpers.runs.random_runs import described, differences, plain, random_config, rows_of
from marl_connectors import EnvRunner, PPOConfig
from marl_connectors.checkpoints import load_state, save_state
from marl_connectors.env_runners.done_episodes import merged_order
from marl_connectors.env_runners.state_shares import divided_runner_state, merged_runner_state
