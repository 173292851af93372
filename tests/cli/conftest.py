"""The command line with a fake ``Algorithm``, in an empty folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.fake_algorithm import FakeAlgorithm
from marl_connectors.algorithms.config.settings import RunSettings
from marl_connectors.algorithms.fitting import pictures
from marl_connectors.algorithms.fitting.run_files import read_config
from marl_connectors.cli import evaluate, training_run
from marl_connectors.cli.made_config import new_config
from marl_connectors.cli.main import main
from marl_connectors.cli.restored_runs import tree_of_run
from marl_connectors.validators import settings_of

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(autouse=True)
def _pictures_are_not_painted(monkeypatch):
    """Curves are plotted, but their file has the first bytes of a PNG only, because to paint it takes most of the time.

    Test files that look at pictures have a fixture of this name that does nothing.
    """

    def write(figure, file):
        Path(file).write_bytes(PNG) if isinstance(file, Path) else file.write(PNG)

    monkeypatch.setattr(pictures, "_paint", write)


class CommandLine:
    """Runs commands; what they build next is in ``algo``, and what they built with in ``tree``."""

    def __init__(self, capsys):
        self._capsys = capsys
        self.fake = FakeAlgorithm
        self.algo = FakeAlgorithm()
        self.tree = None
        self.trusted = None
        self.out = self.err = ""

    def build(self, config, tree):
        self.tree = tree
        self.algo.config.env, self.algo.seed = config.env, config.seed
        vars(self.algo.config).update({name: getattr(config, name) for name in settings_of(RunSettings)})
        return self.algo

    def load(
        self, checkpoint, changed=None, *, trusted=True, new_episodes=False, chosen=None, local=False, source=None
    ):
        self.changed, self.trusted, self.new_episodes, self.local = changed, trusted, new_episodes, local
        self.source = source
        self.algo = FakeAlgorithm.from_checkpoint(checkpoint)
        folder = Path(checkpoint).parent.parent
        tree = (
            {**tree_of_run(folder, read_config(folder)), **(changed or {})} if (folder / "config.json").exists() else {}
        )
        run = {place.removeprefix("run."): own for place, own in tree.items()}
        vars(self.algo.config).update({name: own for name, own in run.items() if name in settings_of(RunSettings)})
        return self.algo

    def __call__(self, *words):
        self._capsys.readouterr()
        status = main(list(words))
        self.out, self.err = self._capsys.readouterr()
        return status


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    line = CommandLine(capsys)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training_run, "make_config", new_config)
    monkeypatch.setattr(training_run, "built", lambda config, tree: line.build(config, tree))
    monkeypatch.setattr(training_run, "load_algorithm", line.load)
    monkeypatch.setattr(evaluate, "load_algorithm", line.load)
    return line
