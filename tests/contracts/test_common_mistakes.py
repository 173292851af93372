"""The mistakes that users make most: each gives one clear message and a status, and loses nothing.

A message names what is wrong and how to correct it, in one line without a traceback. No file that existed before is
changed, and no new one is left behind.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marl_connectors import MAPPOConfig, PPOConfig, load_policy
from marl_connectors.cli.main import main
from marl_connectors.errors import MarlConnectorsError

ENVS = """
import gymnasium
import numpy as np
from gymnasium import spaces


class Plain(gymnasium.Env):
    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)
    reward = 1.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(2, np.float32), self.reward, False, self.t >= 5, {}


class Unmade(Plain):
    def __init__(self):
        raise RuntimeError("no licence for the simulator")


class NotANumber(Plain):
    reward = float("nan")


class Speaking(Plain):
    action_space = spaces.Text(5)


class Breaking(Plain):
    def step(self, action):
        raise ZeroDivisionError("division by zero")


class Sized(Plain):
    def __init__(self, size=2):
        pass


def nothing():
    pass


def to_blue(agent_id, episode, **kwargs):
    return "blue"


def to_nobody(agent_id, episode):
    raise KeyError(agent_id)
"""
TINY = "--steps 40 --num-envs 1 --num-env-workers 0 --hidden 4 --eval-episodes 1 --baseline-seconds 1 --no-video"
TINY += " --set train_batch_size_per_learner=20 --set minibatch_size=10 --set num_epochs=1"


@dataclass(frozen=True)
class Mistake:
    """A command line that is wrong.

    Attributes:
        words: The command, without the program's name.
        message: Parts of the message: the culprit, and how to correct it.
        prepare: What comes before, with ``monkeypatch``.
    """

    words: str
    message: tuple[str, ...]
    prepare: Callable[[pytest.MonkeyPatch], None] = lambda patch: None

    def __str__(self) -> str:
        return self.words[:60]


def written(name: str, text: str) -> Callable[[pytest.MonkeyPatch], None]:
    def prepare(patch: pytest.MonkeyPatch) -> None:
        Path(name).write_text(text)

    return prepare


def a_folder(name: str) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: Path(name).mkdir()


def both(*steps: Callable[[pytest.MonkeyPatch], None]) -> Callable[[pytest.MonkeyPatch], None]:
    def prepare(patch: pytest.MonkeyPatch) -> None:
        for step in steps:
            step(patch)

    return prepare


def without(*packages: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Simulates that packages are not installed."""

    def prepare(patch: pytest.MonkeyPatch) -> None:
        from importlib import util

        real = util.find_spec
        patch.setattr(util, "find_spec", lambda name, *args: None if name in packages else real(name, *args))
        for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
            patch.delitem(sys.modules, name)
        for name in packages:
            patch.setitem(sys.modules, name, None)

    return prepare


def only_a_folder(name: str) -> Callable[[pytest.MonkeyPatch], None]:
    """A folder that Python would import in place of a package that is not installed."""

    def prepare(patch: pytest.MonkeyPatch) -> None:
        Path(name, "run-1").mkdir(parents=True)
        patch.syspath_prepend(os.getcwd())
        for path in [path for path in sys.path if (Path(path) / name / "__init__.py").exists()]:
            pytest.skip(f"{name} is installed in {path}")

    return prepare


def read_only(patch: pytest.MonkeyPatch) -> None:
    def refused(*args, **kwargs):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    patch.setattr("tempfile.TemporaryDirectory", refused)


def unreadable(*parts: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Reading a file is refused, as for another user's. The permissions of files do not bind every user."""
    place = Path(*parts)

    def prepare(patch: pytest.MonkeyPatch) -> None:
        for name in ("read_bytes", "read_text"):
            patch.setattr(Path, name, refusing(getattr(Path, name)))

    def refusing(real):
        def read(path, *args, **kwargs):
            if path == place:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return real(path, *args, **kwargs)

        return read

    return prepare


def moved(name: str) -> Callable[[pytest.MonkeyPatch], None]:
    def prepare(patch: pytest.MonkeyPatch) -> None:
        Path(name).rename(Path(name).with_name("elsewhere"))

    return prepare


def a_sweep(patch: pytest.MonkeyPatch) -> None:
    """The folder of a sweep with two trials."""
    for each in ("trial0000", "trial0001"):
        Path("swept", each).mkdir(parents=True)
        Path("swept", each, "config.json").write_text("{}")
    Path("swept/sweep.json").write_text("{}")


GAME = "train marl_envs.last_stone_v0 "
RUN = f"{TINY} --out new"
MISTAKES = [
    # Typing.
    Mistake("trian CartPole-v1", ("invalid choice: 'trian'. Did you mean 'train'?",)),
    Mistake("train", ("expected an environment, --config FILE or --resume RUN. Try: marl-connectors train ",)),
    Mistake("train CartPole-v1 --stepps 5", ("unknown argument '--stepps'. Did you mean '--steps'?",)),
    Mistake("train CartPole-v1 extra", ("unknown argument 'extra'. An environment or checkpoint is one word",)),
    Mistake("train CartPole-v1 --steps many", ("--steps: expected a whole number", "'many'")),
    Mistake("train CartPole-v1 --steps 1k", ("--steps: expected a whole number", "'1k'. Did you mean '1e3'?")),
    Mistake("train CartPole-v1 --algo pppo", ("--algo: expected 'ppo', ", "got 'pppo'. Did you mean 'ppo'?",)),
    Mistake("train CartPole-v1 --steps 0", ("--steps: expected a whole number from 1, or None, got 0.",)),
    Mistake("train CartPole-v1 --hidden 64,x", ("--hidden: expected a list of whole numbers from 1", "'x'")),
    Mistake("train CartPole-v1 --set env_config={size:3}", ("""expected a dict such as "env_config={'name': 1}", in """,
            "but got 'env_config={size:3}'")),
    Mistake("train CartPole-v1 --env-config N", ("--env-config: expected KEY=VALUE, but got 'N'",)),
    Mistake("train CartPole-v1 --lr 3", ("unknown argument '--lr'", "--set training.lr=3")),
    Mistake("train CartPole-v1 --num-epochs=3", ("unknown argument '--num-epochs=3'", "--set training.num_epochs=3")),
    Mistake("train CartPole-v1 --set lrr=1e-3", ("--set: unknown setting 'lrr'. Did you mean 'lr'?",)),
    Mistake("train CartPole-v1 --set .lr=1", ("--set: expected NAME=VALUE or SECTION.NAME=VALUE", "'.lr'")),
    Mistake("train CartPole-v1 --set training=3", ("'training' is a section", "--set training.lr=3e-4")),
    Mistake("train CartPole-v1 --set trainin.lr=1", ("there is no section 'trainin'. Did you mean 'training'?",)),
    Mistake("train CartPole-v1 --set training.lrr=1", ("--set: training: unknown setting 'lrr'. Did you mean 'lr'?",)),
    Mistake("train CartPole-v1 --set training.batch_mode=x", ("'batch_mode'. It is a setting of env_runners",)),
    Mistake("train CartPole-v1 --set zzz=3", ("unknown setting 'zzz'. All settings are listed by: marl-connectors",)),
    Mistake("train CartPole-v1 --set debugging.seed=1 --seed 2", ("--seed: it is the same setting as --set debugg",)),
    Mistake("train CartPole-v1 --set num_learners=x", ("--set num_learners: expected a whole number from 0", "'x'")),
    Mistake("train CartPole-v1 --set learner_class=math:no", ("learner_class: module 'math' has no 'no'",)),
    Mistake("train CartPole-v1 --set learner_class=math:sqrt", ("learner_class: expected a subclass of Learner",)),
    Mistake("train CartPole-v1 --set num_envs_per_env_runner=2 --num-envs 4",
            ("--num-envs: it cannot be given with --set num_envs_per_env_runner. Use one of them.",)),
    Mistake("train CartPole-v1 --set lr=fast", ("lr: expected a number from 0", "'fast'")),
    Mistake("train CartPole-v1 --track tensorbord", ("'tensorbord']. Did you mean 'tensorboard'?",)),
    Mistake("train CartPole-v1 --video-every 5 --video none", ("--video-every 5 has no effect", "--video gif")),
    Mistake("train CartPole-v1 --seed 1 --seeds 0-4", ("--seeds: it cannot be given with --seed. Use one of them.",)),
    Mistake("sweep CartPole-v1 --search lr=1..2 --search lr=3..4", ("--search: 'lr' is searched twice.",)),
    Mistake("sweep CartPole-v1 --search lr=1..2 --search training.lr=3..4", ("'training.lr' is searched twice.",)),
    Mistake("sweep CartPole-v1 --search lrr=1..2", ("--search: unknown setting 'lrr'. Did you mean 'lr'?",)),
    Mistake("sweep CartPole-v1 --search num_sgd_iter=1..2", ("Use --search training.num_epochs=VALUE.",)),
    Mistake("sweep CartPole-v1 --search algo=ppo,pppo", ("--search algo: expected 'ppo'", "Did you mean 'ppo'?")),
    Mistake("sweep CartPole-v1 --search lr=1..2 --metric foo", ("--metric: no result is called 'foo'. Some results "
            "are: env_runners/episode_len_mean, ",)),
    Mistake("sweep CartPole-v1 --search lr=1..2 --metric episode_return_mean",
            ("Did you mean 'env_runners/episode_return_mean'?",)),
    Mistake("sweep CartPole-v1 --search lr=2", ("lr: expected a range or several choices",)),
    # Words of RLlib and of other libraries.
    Mistake("train CartPole-v1 --set training.num_sgd_iter=3", ("unknown setting 'num_sgd_iter'. "
            "Use --set training.num_epochs=VALUE.",)),
    Mistake("train CartPole-v1 --set num_sgd_iter=3", ("'num_sgd_iter'. Use --set training.num_epochs=VALUE.",)),
    Mistake("train CartPole-v1 --set resources.num_gpus=1", ("Use --set learners.num_gpus_per_learner=VALUE.",)),
    Mistake("train CartPole-v1 --set rollouts.num_rollout_workers=1", ("there is no section 'rollouts'. Use --set "
            "env_runners.num_env_runners=VALUE.",)),
    Mistake("train CartPole-v1 --set training.lr_schedule=1", ('Use --set "training.lr=[[env_step, value], ...]".',)),
    Mistake("train CartPole-v1 --set training.use_lstm=true", ("a setting of the modules: --model use_lstm=VALUE",)),
    Mistake("train CartPole-v1 --set num_epochs=1.5", ("num_epochs: expected a whole number from 1, got 1.5.",)),
    Mistake("train CartPole-v1 --learning-rate 1e-3", ("'--learning-rate'. Use --set training.lr=1e-3.",)),
    Mistake("train CartPole-v1 --batch-size=64", ("Use --set training.train_batch_size_per_learner=64",)),
    Mistake("train CartPole-v1 --total-timesteps 1e6", ("'--total-timesteps'. Use --steps N",)),
    Mistake("train CartPole-v1 --device cuda", ("'--device'. --num-gpus-per-learner 1 puts modules on the GPU",)),
    Mistake("train CartPole-v1 --gpu", ("'--gpu'. --num-gpus-per-learner 1 puts modules on the GPU",)),
    Mistake("train CartPole-v1 --wandb", ("'--wandb'. Use --track wandb.",)),
    Mistake("train --env CartPole-v1", ("'--env'. Write the environment without it",)),
    Mistake("train CartPole-v1 --algo IPPO", ("'IPPO'. Independent PPO is algo 'ppo' with policies 'independent'.",)),
    Mistake("train CartPole-v1 --algo ddpg", ("'ddpg'. The most like it is algo 'sac'.",)),
    Mistake("train CartPole-v1 --algo a2c", ("'a2c'. The most like it is algo 'ppo'.",)),
    Mistake("train --config x.yaml", ("algo: expected 'ppo'", "Independent Q-learning is algo 'dqn' with policies "
            "'independent'."), written("x.yaml", "env: CartPole-v1\nalgo: iql")),
    Mistake("train --config x.yaml", ("activation: expected 'tanh'", "got 'Reluu'. Did you mean 'relu'?"),
            written("x.yaml", "env: CartPole-v1\nactivation: Reluu")),
    Mistake("train --config x.yaml", ("training: unknown setting 'num_sgd_iter'. Use training: {num_epochs: VALUE}.",),
            written("x.yaml", "env: CartPole-v1\ntraining: {num_sgd_iter: 3}")),
    Mistake("train --config x.yaml", ("resources: unknown setting 'num_gpus'. Use learners: {num_gpus_per_learner: ",),
            written("x.yaml", "env: CartPole-v1\nresources: {num_gpus: 1}")),
    Mistake("train --config x.yaml", ("unknown key 'rollouts'. Its name is env_runners: num_rollout_workers is",),
            written("x.yaml", "env: CartPole-v1\nrollouts: {num_rollout_workers: 1}")),
    Mistake("train --config x.yaml", ("training: unknown setting 'steps'. It is a key at the top of the file.",),
            written("x.yaml", "env: CartPole-v1\ntraining: {steps: 3}")),
    # Numbers.
    Mistake("train CartPole-v1 --seed 100000000000000000000000", ("--seed: expected a whole number", "is 2**63 - 1")),
    Mistake("train CartPole-v1 --set seed=1e30", ("seed: expected a whole number", "The largest one is 2**63 - 1.")),
    Mistake("train --config x.yaml", ("x.yaml: seeds: expected seeds such as 0-4", "got '4-0'"),
            written("x.yaml", "env: CartPole-v1\nseeds: 4-0")),
    Mistake("train --config x.yaml", ("--parallel is for several seeds. Add --seeds",),
            written("x.yaml", "env: CartPole-v1\nparallel: 2")),
    Mistake("train CartPole-v1 --seeds 0-100000000000", ("--seeds: expected at most 1000 seeds, each a run",)),
    # Environments.
    Mistake("train CartPol-v1", ("environment 'CartPol-v1'", "Did you mean 'CartPole-v1'?")),
    Mistake("train CartPole-v2", ("environment 'CartPole-v2'", "Did you mean 'CartPole-v1'?")),
    Mistake("train simple_spred_v3", ("environment 'simple_spred_v3'", "Did you mean 'simple_spread_v3'?")),
    Mistake("train no_such_file.py:make", ("there is no file 'no_such_file.py'. Check its path.",)),
    Mistake("train mistaken.py:Plan", ("'mistaken.py:Plan': module 'mistaken' has no 'Plan'. Did you mean 'Plain'?",)),
    Mistake("train mistaken.py", ("'mistaken.py'", 'Name the class or function that makes it', '"mistaken.py:make"')),
    Mistake("train x.py", ("It has the config 'config', which --config names",),
            written("x.py", "from marl_connectors import PPOConfig\nconfig = PPOConfig()")),
    Mistake("train my-env.py:make", ("Python cannot import 'my-env.py'. Rename it",), written("my-env.py", "")),
    Mistake("train inner/x.py:make", ("needs the module 'y', which is in", "inner. Run from there"),
            both(a_folder("inner"), written("inner/x.py", "import y"), written("inner/y.py", ""))),
    Mistake("train no_such_file:make", ("no_such_file", "Check the spelling, run from the folder that")),
    Mistake("train mistaken:Plan", ("mistaken", "Did you mean 'Plain'?")),
    Mistake(f"train mistaken:nothing {RUN}", ("mistaken:nothing", "None")),
    Mistake(f"train mistaken:Unmade {RUN}", ("mistaken:Unmade", "RuntimeError: no licence for the simulator")),
    Mistake(f"train mistaken:Sized {RUN} --env-config sise=3", ("mistaken:Sized", "sise")),
    Mistake(f"train mistaken:NotANumber {RUN}", ("mistaken-NotANumber", "is nan, not a finite number")),
    Mistake(f"train mistaken:Breaking {RUN}", ("ZeroDivisionError: division by zero (mistaken.py:", "in step)")),
    Mistake(f"train mistaken:Speaking {RUN}", ("Text",)),
    # Policies.
    Mistake("train CartPole-v1 --policies sharde", ("'sharde'", "Did you mean 'shared'?")),
    Mistake(f"{GAME} --policies red*=a {RUN}", ("red*", "player_0")),
    Mistake(f"{GAME} --policies player*=a,player_0=b {RUN}", ("'player_0' (for module 'b') is never used, because "
            "'player*' (for module 'a') comes first", "Put 'player_0' first")),
    Mistake("train --config x.yaml", ("x.yaml: policies: ", "'a_0' (for module 'y') is never used, because 'a*'"),
            written("x.yaml", "env: CartPole-v1\npolicies: a*=x,a_0=y")),
    Mistake(f"{GAME} --policies player_0=a {RUN}", ("player_1", "pattern")),
    Mistake(f"{GAME} --policies shared --mapping mistaken:to_blue", ("--mapping: it is the same setting as",)),
    Mistake(f"{GAME} --mapping no_such_module:fn", ("--mapping: there is no module 'no_such_module'",)),
    Mistake(f"{GAME} --mapping math:pi", ("--mapping: expected", "a function of (agent_id, ", "got 3.14")),
    Mistake(f"{GAME} --mapping mistaken:to_blue --modules red {RUN}", ("'blue'", "red")),
    Mistake(f"{GAME} --mapping mistaken:to_nobody {RUN}", ("KeyError", "mistaken.py:")),
    Mistake(f"{GAME} --eval-opponent random:player_1 {RUN}", ("--eval-opponent", "'player_0' is in no team")),
    Mistake(f"{GAME} --eval-opponent random:player* {RUN}", ("--eval-opponent", "so it has no opponent")),
    # Files.
    Mistake("train --config nowhere.yaml", ("there is no file 'nowhere.yaml'. Check its path.",)),
    Mistake("train --config x.toml", ("'x.toml'", ".yaml, .yml, .json or .py")),
    Mistake("train --config x.yaml", ("x.yaml: unknown key 'lr'. It is a setting of training: training: {lr: 0.001}",),
            written("x.yaml", "env: CartPole-v1\nlr: 1e-3")),
    Mistake("train --config x.yaml", ("unknown key 'training.lr'. Write it as training: {lr: 0.1}.",),
            written("x.yaml", "env: CartPole-v1\ntraining.lr: 0.1")),
    Mistake("train --config x.yaml", ("unknown key 'set'. Settings are in their sections: training: {lr: 3e-4}.",),
            written("x.yaml", "env: CartPole-v1\nset: {lr: 0.1}")),
    Mistake("train --config x.yaml", ("unknown key 'resume'. It is no setting, but an option: --resume",),
            written("x.yaml", "resume: done")),
    Mistake("train --config x.yaml", ("x.yaml: training: unknown setting 'lrr'. Did you mean 'lr'?",),
            written("x.yaml", "env: CartPole-v1\ntraining: {lrr: 1e-3}")),
    Mistake("train --config x.yaml", ("x.yaml: config: it names a Python file", "training: {lr: 3e-4}"),
            written("x.yaml", "env: CartPole-v1\nconfig: {lr: 1e-3}")),
    Mistake("train --config x.yaml", ("x.yaml: unknown key 'train'. What is under it belongs to the top",),
            written("x.yaml", "train:\n  env: CartPole-v1")),
    Mistake("train --config x.yaml", ("x.yaml: config: there is no file 'c.py' beside it.",),
            written("x.yaml", "config: c.py")),
    Mistake("train --config x.yaml", ("x.yaml: it cannot be read as YAML", "in line 2"),
            written("x.yaml", "env: CartPole-v1\n training: 3")),
    Mistake("train --config x.py", ("x.py", "SyntaxError", "x.py:1"), written("x.py", "config = PPOConfig(")),
    # Packages.
    Mistake("train CartPole-v1 --track wandb --video mp4",
            ("wandb and imageio-ffmpeg, which are not installed. Install them with: pip install wandb imageio-ffmpeg",),
            without("wandb", "imageio_ffmpeg")),
    Mistake("train CartPole-v1 --track wandb", ("Install it with: pip install wandb",), only_a_folder("wandb")),
    Mistake("train CartPole-v1 --track trackio", ("Install it with: pip install trackio",), only_a_folder("trackio")),
    Mistake("sweep CartPole-v1 --search lr=1..2", ("pip install optuna",), without("optuna")),
    Mistake("train CartPole-v1", ("needs tensorboard, which is not installed", "pip install tensorboard"),
            without("tensorboard")),
    Mistake("train --config x.yaml", ("pip install pyyaml",),
            both(written("x.yaml", "env: x"), without("yaml"))),
    Mistake("export done", ("pip install onnx onnxscript onnxruntime",), without("onnx", "onnxscript", "onnxruntime")),
    Mistake("train simple_spread_v3", ("mpe2", "pip install mpe2"), without("mpe2")),
    Mistake(f"train CartPole-v1 --wrap frame_skip_v0:4 {RUN}", ("pip install supersuit",), without("supersuit")),
    Mistake(f"train CartPole-v1 --num-env-runners 1 {RUN}", ("num_env_runners=1", "pip install ray"), without("ray")),
    # Folders of runs.
    Mistake("train CartPole-v1 --out done", ("done exists", "marl-connectors train --resume done")),
    Mistake("train CartPole-v1 --out mistaken.py/run", ("--out: expected a place that can be written",)),
    Mistake("train CartPole-v1 --out new", ("new cannot: Read-only file system. Choose another folder.",), read_only),
    Mistake("train --resume nowhere", ("run folder: expected one at nowhere", "Check the path.")),
    Mistake("train --resume .", (". is not the folder of a run, because it has no config.json",)),
    Mistake("train --resume done", ("the run done has its 40 agent steps of 40 done", "--steps 80")),
    Mistake("train --resume done --out other", ("--out cannot be given", "in its own folder")),
    Mistake("train --resume done --hidden 8", ("--hidden cannot be changed",)),
    Mistake("train --resume done --steps 80", ("done had checkpoints", "--config done/config.json"),
            moved("done/checkpoints")),
    Mistake("train --resume done --steps 80", ("done/config.json cannot be read: Permission denied",),
            unreadable("done", "config.json")),
    Mistake("train --resume done --steps 80 --keep-best env_runners/episode_return_men",
            ("--keep-best: no result is called", "Did you mean 'env_runners/episode_return_mean'?")),
    Mistake("evaluate nowhere", ("expected a checkpoint at nowhere, but nothing is there",)),
    Mistake("evaluate done", ("the run done has no folder 'checkpoints' any more",), moved("done/checkpoints")),
    Mistake("evaluate done --video film.mov", ("--video: expected a file that ends in .gif or .mp4", "film.mov")),
    Mistake("evaluate done --config x.yaml", ("--config: expected the Python file of the run's config",)),
    Mistake("export done --opset 999", ("expected an opset from 13 to", "999")),
    Mistake("export done --opset 3", ("expected an opset from 13 to", "3")),
    Mistake("sweep --resume .", ("expected the folder of a sweep, but . has no sweep.json",)),
    Mistake("sweep --resume done", ("expected the folder of a sweep, but done is a run", "train --resume done")),
    Mistake("train --resume swept", ("expected the folder of a run, but swept is that of a sweep",
            "marl-connectors sweep --resume swept"), a_sweep),
    Mistake("evaluate swept", ("swept has several runs. Choose one: swept/trial0000, swept/trial0001",), a_sweep),
    Mistake("export swept", ("swept has several runs. Choose one: swept/trial0000, swept/trial0001",), a_sweep),
    Mistake("evaluate done/config.json", ("done/config.json is a part of the run done. Use the run: done",)),
    Mistake("train --resume done/config.json", ("done/config.json is in the run done", "train --resume done")),
    Mistake("train --resume done/checkpoints/000002", ("done/checkpoints/000002 is in the run done",
            "marl-connectors train --resume done")),
    Mistake("train --resume done --no-preset", ("--preset cannot be changed",)),
    Mistake("train done", ("environment 'done': it is the folder of a run", "--config done/config.json")),
    Mistake("train run.yaml", ("environment 'run.yaml': it is a file with settings. Name it with --config run.yaml",)),
    Mistake("zoo tag", ("there is no task 'tag'. Did you mean 'simple_tag_v3'?",)),
    Mistake("zoo CartPol-v1", ("there is no task 'CartPol-v1'. Did you mean 'CartPole-v1'?",)),
    Mistake(f"train mistaken:Plain --keep-best env_runners/episode_return_men {RUN}",
            ("no result is called 'env_runners/episode_return_men'", "'env_runners/episode_return_mean'?")),
    Mistake(f"train CartPole-v1 --keep-best evaluation/env_runners/success {RUN}",
            ("nothing is evaluated during training", "--set evaluation_interval=5")),
]  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with a finished run ``done``."""
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "mistaken.py").write_text(ENVS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "CartPole-v1", *TINY.split(), "--no-preset", "--out", "done"]) == 0
    return folder


@pytest.fixture
def folder(finished, tmp_path, monkeypatch):
    """The current folder, with a copy of the finished run, and environments that have something wrong."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield tmp_path
    sys.modules.pop("mistaken", None)


def files(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if "__pycache__" not in path.parts)
    return {str(path): b"" if path.is_dir() else np.fromfile(path, np.uint8).tobytes() for path in sorted(found)}


@pytest.mark.few(16)
@pytest.mark.parametrize("mistake", MISTAKES, ids=str)
def test_a_mistake_gives_one_message_and_loses_nothing(mistake, folder, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        mistake.prepare(patch)
        before = files(folder)
        capsys.readouterr()
        status = main(mistake.words.split())
    said = capsys.readouterr()
    assert status == 2, said
    assert said.err.startswith("marl-connectors: error: ") and said.err.count("\n") == 1, said.err
    assert "Traceback" not in said.out + said.err and "marl-connectors[" not in said.out + said.err
    assert [part for part in mistake.message if part not in said.err] == [], said.err
    assert files(folder) == before


def test_there_are_enough_mistakes():
    assert len(MISTAKES) >= 25 and len({(mistake.words, mistake.message) for mistake in MISTAKES}) == len(MISTAKES)


PYTHON = {
    "a misspelt setting": (lambda: PPOConfig().training(lrr=1), "Did you mean 'lr'?"),
    "a wrong value": (lambda: PPOConfig().training(lr="fast"), "expected a number from 0"),
    "no environment": (lambda: PPOConfig().build_algo(), "environment"),
    "an unknown environment": (
        lambda: PPOConfig().environment("CartPol-v1").build_algo(),
        "Did you mean 'CartPole-v1'?",
    ),
    "an unsuitable critic": (lambda: MAPPOConfig().training(critic_obs="states"), "Did you mean 'state'?"),
    "no checkpoint": (lambda: load_policy("nowhere"), "nothing is there"),
    "a module that is not there": (lambda: load_policy("done", "red"), "default_policy"),
    "a checkpoint of a run without checkpoints": (lambda: load_policy("."), "is not a checkpoint"),
}


@pytest.mark.parametrize("name", PYTHON)
def test_a_mistake_in_python_is_named_in_one_line(name, folder):
    act, message = PYTHON[name]
    with pytest.raises(MarlConnectorsError) as raised:
        act()
    assert message in str(raised.value) and "\n" not in str(raised.value).strip()


# Processes ------------------------------------------------------------------------------------------------------------

LONG = [*TINY.replace("--steps 40", "--steps 100000").split(), "--no-preset", "--out", "new"]


def started(*words: str, env: Mapping[str, str] | None = None, **options: Any) -> subprocess.Popen:
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.Popen(
        [sys.executable, "-m", "marl_connectors", *words],
        env={**os.environ, "PYTHONPATH": path, **(env or {})},
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
    )


POSIX = pytest.mark.skipif(sys.platform == "win32", reason="signals and pipes")


@pytest.mark.slow
@POSIX
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["SIGTERM", "Ctrl-C"])
def test_a_run_that_is_stopped_leaves_a_checkpoint_and_the_command_to_resume_it(folder, number, status):
    with started("train", "CartPole-v1", *LONG) as process:
        assert process.stdout is not None
        while " agent steps  " not in (line := process.stdout.readline()):
            assert line, process.communicate()
        process.send_signal(number)
        said, errors = process.communicate()
    assert process.returncode == status and "Traceback" not in said + errors, errors
    assert (folder / "new/checkpoints/latest").is_file()
    resume = said.partition("Resume with: ")[2].splitlines()[0]
    assert resume == "marl-connectors train --resume new"
    steps = (folder / "new/metrics.jsonl").read_text().count("\n") * 20
    assert main([*resume.split()[1:], "--steps", str(steps + 20)]) == 0


@pytest.mark.slow
@POSIX
@pytest.mark.parametrize("words", ["zoo", "schema", "train --help", "evaluate done --episodes 1 --json"])
def test_a_reader_that_leaves_early_is_no_error_and_gets_no_traceback(folder, words):
    with started(*words.split()) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read()
    assert process.returncode in (0, 141) and errors == ""


@pytest.mark.slow
@POSIX
@pytest.mark.parametrize("columns", ["20", "1", "nonsense"])
def test_a_narrow_terminal_shortens_nothing_that_matters(folder, columns):
    """Also in a pseudo-terminal, where the progress is drawn in place."""
    import pty

    writer, terminal = pty.openpty()
    words = ["train", "CartPole-v1", *TINY.split(), "--no-preset", "--out", "new"]
    with started(*words, stdout=terminal, env={"COLUMNS": columns, "TERM": "xterm"}) as process:
        os.close(terminal)
        said = b""
        with contextlib.suppress(OSError):  # the end of a pseudo-terminal
            while data := os.read(writer, 4096):
                said += data
        os.close(writer)
        errors = process.stderr.read() if process.stderr is not None else ""
    waits = [line for line in errors.splitlines() if "so far)" in line]  # said if the machine is busy
    assert process.returncode == 0 and errors.splitlines() == waits
    assert b"marl-connectors evaluate new --episodes 100" in said and b"Traceback" not in said


def test_a_full_disk_in_the_middle_of_a_run_gives_one_message_and_keeps_the_last_checkpoint(
    folder, monkeypatch, capsys
):
    from marl_connectors.algorithms.fitting import run_folder

    replace, left = run_folder.replace_file, [3]

    def full(path, data):
        if path.name == "latest":
            left[0] -= 1
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(path, data)

    words = [*TINY.replace("--steps 40", "--steps 100").split(), "--checkpoint-every", "1", "--out", "new"]
    with monkeypatch.context() as patch:
        patch.setattr(run_folder, "replace_file", full)
        assert main(["train", "mistaken:Plain", *words]) == 2
    said = capsys.readouterr()
    assert said.err.count("\n") == 1 and "No space left on device" in said.err and "Traceback" not in said.out
    resume = said.err.partition("continue with: ")[2].strip()
    assert resume == "marl-connectors train --resume new"
    assert (folder / "new/checkpoints/latest").read_text() == "000002\n"
    assert main(resume.split()[1:]) == 0
