"""What is installed is what setup.cfg promises: light imports, typed packages, both packages in wheel and sdist."""

from __future__ import annotations

import configparser
import importlib.metadata
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import pytest

from marl_connectors.import_paths import PATHS

ROOT = Path(__file__).resolve().parents[1]
OPTIONAL = ["matplotlib", "tensorboard", "rich", "ray", "PIL", "mpe2", "supersuit", "pygame", "onnx", "onnxruntime"]


@pytest.fixture(scope="module")
def options():
    parser = configparser.ConfigParser()
    assert parser.read(ROOT / "setup.cfg")
    return parser


def requirement_names(text):
    return [re.split(r"[<>=;\[ ]", line)[0].lower() for line in text.split("\n") if line.strip()]


def loaded_after(statement, modules):
    """Those of ``modules`` that a fresh interpreter has loaded once it has run ``statement``."""
    code = f"import sys\n{statement}\nprint(*[name for name in {modules!r} if name in sys.modules])"
    # Elsewhere than in the repository, whose source tree would hide an installed wheel.
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env=child_env(),
        cwd=tempfile.gettempdir(),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def child_env():
    """This process's environment, with the same import path."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}


def test_importing_the_library_imports_no_optional_package():
    assert loaded_after("import marl_connectors", OPTIONAL) == []


def test_importing_the_library_is_lazy():
    assert loaded_after("import marl_connectors", ["torch", "gymnasium", "pettingzoo"]) == []


@pytest.mark.slow
def test_the_whole_default_path_imports_no_optional_package():
    statement = "from marl_connectors.algorithms.ppo import PPOConfig\nPPOConfig()"
    assert loaded_after(statement, OPTIONAL) == []


@pytest.mark.slow
def test_training_in_one_process_imports_no_ray():
    statement = (
        "from marl_connectors import PPOConfig\n"
        "config = PPOConfig().environment('CartPole-v1').training(train_batch_size_per_learner=8)\n"
        "algo = config.build_algo()\n"
        "algo.train()\n"
        "algo.stop()"
    )
    assert loaded_after(statement, ["ray"]) == []


@pytest.mark.parametrize("module", ["marl_connectors.episodes", "marl_envs.null_v0", "marl_envs.match_v0"])
def test_episodes_and_environments_do_without_torch(module):
    assert loaded_after(f"import {module}", ["torch"]) == []


def test_environments_do_without_the_library():
    assert loaded_after("import marl_envs.null_v0, marl_envs.match_v0", ["marl_connectors"]) == []


def test_a_default_install_is_light(options):
    names = requirement_names(options["options"]["install_requires"])
    light = {
        "gymnasium",
        "lazy-loader",
        "msgspec",
        "numpy",
        "optree",
        "pettingzoo",
        "safetensors",
        "threadpoolctl",
        "torch",
    }
    assert set(names) == light


def test_every_requirement_has_a_lower_bound_and_none_has_an_upper_one(options):
    lines = options["options"]["install_requires"].split("\n")
    lines += [line for extra in options["options.extras_require"].values() for line in extra.split("\n")]
    lines = [line for line in lines if line.strip() and not line.startswith("marl-connectors[")]
    assert [line for line in lines if ">=" not in line or "<" in line or "==" in line] == []


def test_the_lowest_tested_versions_are_the_lower_bounds(options):
    """``tox -e lowest`` would otherwise test something else than what is promised."""
    promised = {}
    lines = options["options"]["install_requires"].split("\n")
    extras = options["options.extras_require"]
    lines += [
        line
        for extra in ("cli", "minari", "mpe", "onnx", "parquet", "ray", "supersuit")
        for line in extras[extra].split()
    ]
    for line in filter(None, map(str.strip, lines)):
        name, bound = line.split(">=")
        promised[name.lower()] = bound
    tested = {}
    for line in (ROOT / ".ci" / "lowest.txt").read_text().splitlines():
        if "==" in line:
            name, version = line.split(";")[0].strip().split("==")
            tested[name.lower()] = version
    assert tested.keys() == promised.keys()
    assert {n: v for n, v in tested.items() if not f"{v}.".startswith(f"{promised[n]}.")} == {}


def test_the_installed_metadata_is_that_of_setup_cfg(options):
    try:
        installed = importlib.metadata.distribution("marl-connectors")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("marl-connectors runs from the source tree here, without being installed")
    assert options["metadata"]["version"] == "attr: marl_connectors.__version__"
    assert installed.metadata["Requires-Python"] == ">=3.10"
    scripts = {e.name: e.value for e in installed.entry_points if e.group == "console_scripts"}
    assert scripts == {"marl-connectors": "marl_connectors.__main__:main"}


@pytest.mark.parametrize("package", ["marl_connectors", "marl_envs"])
def test_both_packages_say_that_they_are_typed(package):
    module = __import__(package)
    assert (Path(module.__file__).parent / "py.typed").is_file()


@pytest.mark.slow
def test_wheel_and_sdist_hold_both_packages_and_nothing_else(tmp_path):
    pytest.importorskip("build")
    command = [sys.executable, "-m", "build", "--outdir", str(tmp_path), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr

    (wheel,), (sdist,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    sources = {str(p.relative_to(ROOT)) for p in (ROOT / "marl_connectors").rglob("*.py")}
    sources |= {f"marl_connectors/{path.replace('.', '/')}/__init__.py" for path in PATHS}
    sources |= {str(p.relative_to(ROOT / "envs")) for p in (ROOT / "envs" / "marl_envs").rglob("*.py")}
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    code = {name for name in names if name.endswith(".py")}
    assert code == sources
    assert {
        "marl_connectors/py.typed",
        "marl_connectors/__init__.pyi",
        "marl_connectors/callbacks/__init__.pyi",
        "marl_envs/py.typed",
        "marl_connectors/zoo/tasks.yaml",
        "marl_connectors/algorithms/config/other_names.ini",
        "marl_connectors/cli/algorithms.ini",
    } <= names
    assert {name.split("/")[0] for name in names} == {
        "marl_connectors",
        "marl_envs",
        f"marl_connectors-{version_of(wheel)}.dist-info",
    }
    with tarfile.open(sdist) as archive:
        packed = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"setup.cfg", "setup.py", "LICENSE", "envs/marl_envs/py.typed", "marl_connectors/py.typed"} <= packed


def version_of(wheel):
    return wheel.name.split("-")[1]


def test_the_package_knows_the_version_that_is_installed():
    import marl_connectors

    (declared,) = re.findall(r'^__version__ = "(.+)"$', (ROOT / "marl_connectors" / "__init__.py").read_text(), re.M)
    assert marl_connectors.__version__ == declared
    try:
        assert importlib.metadata.version("marl-connectors") == declared
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("marl-connectors runs from the source tree here, without being installed")


def test_the_repository_has_no_outputs_of_runs():
    if not (ROOT / ".git").exists():
        pytest.skip("this is not a git checkout")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [Path(name) for name in listed.splitlines()]
    assert len(files) > 500
    outputs = [file for file in files if file.suffix == ".safetensors" or file.name == "metrics.jsonl"]
    assert [str(file) for file in outputs if "golden_checkpoints" not in file.parts] == []
