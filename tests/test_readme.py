"""The README and the pages in docs/ say what is true: their code runs, their tables and links are right."""

from __future__ import annotations

import argparse
import builtins
import re
import shlex
import symtable
import warnings
from pathlib import Path
from runpy import run_path
from typing import NamedTuple

import pytest

import marl_connectors
from helpers.runs.fake_ray import use_fake_ray
from marl_connectors import DefaultModelConfig, PPOConfig
from marl_connectors.callbacks import CALLBACK_NAMES
from marl_connectors.cli.known_algorithms import ALGORITHMS
from marl_connectors.cli.parser import build_parser, words_of
from marl_connectors.errors import OfflineDataError
from marl_connectors.validators import declared
from marl_connectors.zoo import find_task

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
SETUP = "python3 -m venv .venv && .venv/bin/pip install -q -c constraints.txt -e "
COMMANDS = {
    "train": SETUP + '".[cli,mpe]" && .venv/bin/marl-connectors train simple_speaker_listener_v4',
    "test": SETUP + '".[dev]" && .venv/bin/python -m pytest -n auto',
}
SMALLER = (
    (r"range\(40\)", "range(1)"),
    (r"num_agent_steps=[\d_]+", "num_agent_steps=300"),
    (r"num_episodes=100", "num_episodes=2"),
    (r"train_batch_size_per_learner=\d+", "train_batch_size_per_learner=100"),
    (r"minibatch_size=\d+", "minibatch_size=50"),
    (r"num_epochs=8", "num_epochs=2"),
)
"""What to replace in the pages' code so that it runs in seconds."""

BUILD_ON_ONE_ANOTHER = "The code blocks of this page build on one another, from top to bottom."
"""What a page says before its first code block, unless each block runs alone or says that it follows the one above."""
FOLLOWS = "the code block above"
"""What the paragraph before a block says, if the block needs the block above and the page does not say it of all."""

ROW = re.compile(r"^\| `([^`]+)` \| `([^`]*)` \| (.+) \|$", re.MULTILINE)


def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


class Block(NamedTuple):
    """A block of Python code in a page."""

    number: int
    code: str
    follows: bool


def python_blocks(page: Path) -> list[Block]:
    found = re.finditer(r"^```python\n(.*?)^```$", text(page), re.MULTILINE | re.DOTALL)
    paragraphs = ((match[1], text(page)[: match.start()].rstrip().rpartition("\n\n")[2]) for match in found)
    return [
        Block(number, code, FOLLOWS in " ".join(paragraph.split()))
        for number, (code, paragraph) in enumerate(paragraphs, 1)
    ]


def builds_on_one_another(page: Path) -> bool:
    return BUILD_ON_ONE_ANOTHER in text(page).partition("```python")[0]


def programs(page: Path) -> list[list[Block]]:
    """The code of a page as what a reader runs: all blocks in one program, or each alone with those that follow it."""
    found: list[list[Block]] = []
    for block in python_blocks(page):
        if found and (block.follows or builds_on_one_another(page)):
            found[-1].append(block)
        else:
            found.append([block])
    return found


def undefined_names(code: str) -> set[str]:
    """The names that some code uses, does not define itself, and Python does not have."""
    module = symtable.symtable(code, "a block", "exec")
    defined = {symbol.get_name() for symbol in module.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    used, scopes = set(), [module]
    for scope in scopes:
        names = (symbol for symbol in scope.get_symbols() if scope is module or symbol.is_global())
        used |= {symbol.get_name() for symbol in names if symbol.is_referenced()}
        scopes += scope.get_children()
    return used - defined - vars(builtins).keys()


def run(blocks: list[Block], page: Path) -> None:
    namespace = {"__name__": "a_page"}
    for block in blocks:
        code = block.code
        for pattern, smaller in SMALLER:
            code = re.sub(pattern, smaller, code)
        exec(compile(code, f"{page.name}, block {block.number}", "exec", dont_inherit=True), namespace)


@pytest.fixture
def ready_for_pages():
    """One thread, as the pages recommend, and no warning of PettingZoo 1.27, which announces a registry of its own."""
    pytest.importorskip("mpe2")
    import torch

    threads = torch.get_num_threads()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The old environment creation API", DeprecationWarning)
        torch.set_num_threads(1)
        yield
    torch.set_num_threads(threads)


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_readme_has_the_command_in_one_bash_block(name):
    found = re.findall(
        rf"^<!-- {name} command -->\n```bash\n(.*?)\n```$", text(ROOT / "README.md"), re.MULTILINE | re.DOTALL
    )
    assert found == [COMMANDS[name]]


def test_the_other_commands_of_the_readme_train_tasks_of_the_zoo():
    parser, _ = build_parser()
    block = text(ROOT / "README.md").partition("\n. .venv/bin/activate\n")[2].partition("```")[0]
    lines = [line.partition(" ")[2] for line in block.splitlines()]
    commands = [parser.parse_args(shlex.split(line, comments=True)) for line in lines]
    assert [args.command for args in commands] == ["zoo", "train", "train", "train"]
    assert all(find_task(words_of(args).last("environment.env")[1]) for args in commands if args.command == "train")


def test_the_readme_is_read_in_a_minute():
    assert len(text(ROOT / "README.md").splitlines()) <= 120


def test_the_diagrams_are_those_that_their_script_draws():
    drawings = run_path(str(ROOT / "docs/diagrams.py"))["DRAWINGS"]
    kept = {path.stem: text(path) for path in (ROOT / "docs" / "images").glob("*.svg")}
    assert {name: draw().written() for name, draw in drawings.items()} == kept


@pytest.mark.few(1)
@pytest.mark.parametrize("page", [page for page in PAGES if python_blocks(page)], ids=page_id)
def test_the_python_code_of_a_page_runs_as_the_page_says(page, tmp_path, monkeypatch, capsys, ready_for_pages):
    if page.stem == "offline_data":
        pytest.importorskip("pyarrow")
    if page.stem == "deployment":
        for name in ("onnx", "onnxscript", "onnxruntime"):
            pytest.importorskip(name)
    if page.stem == "cluster":
        use_fake_ray(monkeypatch)  # starting processes would take ten seconds
    for number, program in enumerate(programs(page)):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        run(program, page)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_a_page_says_that_its_code_blocks_build_on_one_another_where_they_do(page):
    need_others = {
        block.number: undefined_names(block.code)
        for block in python_blocks(page)
        if not block.follows and undefined_names(block.code)
    }
    assert builds_on_one_another(page) == bool(need_others), need_others


@pytest.mark.parametrize(
    ("page", "block"),
    [(page, block) for page in PAGES for block in python_blocks(page) if block.follows],
    ids=lambda of: page_id(of) if isinstance(of, Path) else str(of.number),
)
def test_a_block_that_says_it_follows_another_one_fails_alone(page, block, tmp_path, monkeypatch, ready_for_pages):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((NameError, OfflineDataError, ValueError)):  # of a name, of recorded episodes, of an export
        run([block], page)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_relative_links_of_a_page_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text(page))
    relative = [target for target in targets if "://" not in target]
    assert [target for target in relative if not (page.parent / target).exists()] == []


def test_decisions_are_numbered_one_after_another():
    pages = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert [page.stem[:4] for page in pages] == [f"{number:04}" for number in range(1, len(pages) + 1)]
    assert [text(page).partition(".")[0] for page in pages] == [f"# {number}" for number in range(1, len(pages) + 1)]


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_a_page_names_no_path_of_a_machine(page):
    assert re.findall(r"(?<![\w.:/-])/(?:home|work|tmp|opt|root|usr)\b", text(page)) == []


def test_the_tables_of_settings_are_those_that_follow_from_the_declarations():
    page, tables = text(ROOT / "docs/configuration.md"), run_path(str(ROOT / "docs/settings_tables.py"))
    assert tables["written"](page) == page, "run python docs/settings_tables.py"
    before, _, rest = page.partition("<!-- model config -->")
    model, _, after = rest.partition("## `.training(...)`")
    for cls, rows in ((PPOConfig, rows_of(before + after)), (DefaultModelConfig, rows_of(model))):
        for name, validator in declared(cls).items():
            default = getattr(cls, name)
            shown = default.__name__ if isinstance(default, type) else repr(default)
            assert rows[name.removeprefix("callbacks_") if "_on_" in name else name] == (shown, validator.expected)
    assert rows_of(model).keys() == declared(DefaultModelConfig).keys()


def rows_of(page):
    """The default and the range of each setting in a table."""
    return {name: (default, *about.split(" | ")[:-1]) for name, default, about in ROW.findall(page)}


def keys_of(result, *path):
    """The paths of all figures, with ``<module>`` and ``<agent>`` for ids."""
    for key, value in result.items():
        key = {"left": "<module>", "right": "<module>", "agent_0": "<agent>", "agent_1": "<agent>"}.get(key, key)
        if isinstance(value, dict):
            yield from keys_of(value, *path, key)
        else:
            yield "/".join((*path, key))


def keys_in_table(mark):
    _, _, rest = text(ROOT / "docs/results.md").partition(f"<!-- {mark} -->")
    rows = [row.split(" | ")[0] for row in rest.partition("\n\n")[0].splitlines() if row.startswith("| `")]
    return [key for row in rows for key in re.findall(r"`([^`]+)`", row)]


def match_config():
    return (
        PPOConfig()
        .environment("marl_envs.match_v0", env_config={"n_agents": 2, "ep_len": 5})
        .multi_agent(
            policies={"left", "right"},
            policy_mapping_fn=lambda agent, *_, **__: "left" if agent[-1] == "0" else "right",
        )
        .training(train_batch_size_per_learner=20, minibatch_size=10, num_epochs=1)
        .evaluation(evaluation_interval=1, evaluation_duration=1)
    )


def test_the_table_of_results_has_every_key():
    listed = keys_in_table("results")
    result = match_config().build_algo().train()
    own = result.pop("evaluation")
    assert list(own) == ["env_runners"]
    evaluation = set(keys_of(own))
    found = set(keys_of(result))
    assert found == {key for key in listed if not key.endswith("...")}
    lifetime = {key for key in found if key.endswith("_lifetime")}
    assert evaluation == {key for key in found - lifetime if key.startswith("env_runners/")}
    assert len(listed) == len(set(listed))


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["DQN", "VDN", "QMIX", "SAC", "MADDPG", "MATD3", "BC", "MARWIL"])
def test_the_table_of_loss_statistics_has_those_of_each_algorithm(name, tmp_path):
    rows = text(ROOT / "docs/results.md").partition("<!-- loss statistics -->")[2].partition("\n\n")[0].splitlines()[3:]
    cells = [row.split(" | ") for row in rows]
    listed = {
        key for keys, algorithms, _ in cells if name in algorithms.split(", ") for key in re.findall("`(.+?)`", keys)
    }
    config = getattr(marl_connectors, f"{name}Config")().environment("marl_envs.match_v0", env_config={"n_agents": 2})
    config.multi_agent(policies="independent").rl_module(model_config={"fcnet_hiddens": [4]})
    if hasattr(config, "replay_buffer_config"):
        config.training(num_steps_sampled_before_learning_starts=20).reporting(min_sample_timesteps_per_iteration=200)
    else:
        match_config().build_algo().record(tmp_path / "data", num_episodes=4)
        config.offline_data(input_=str(tmp_path / "data")).training(train_batch_size_per_learner=20)
    found = set(config.build_algo().train()["learners"]["agent_0"])
    assert found - {key.rpartition("/")[2] for key in keys_in_table("results")} == listed


def test_the_table_of_results_with_remote_env_runners_has_every_key(monkeypatch):
    use_fake_ray(monkeypatch)
    algo = match_config().env_runners(num_env_runners=2).evaluation(evaluation_num_env_runners=1).build_algo()
    result = algo.train()
    algo.stop()
    of_evaluation = {"env_runners", "num_healthy_workers", "num_remote_worker_restarts"}
    assert of_evaluation == result.pop("evaluation").keys()
    rates = result["timers"].pop("env_runner_env_steps_per_second")
    assert list(rates) == [0, 1] and all(rate > 0 for rate in rates.values())
    result["timers"]["env_runner_env_steps_per_second"] = {"<env runner>": rates[0]}
    found = set(keys_of(result)) - {key for key in keys_in_table("results") if not key.startswith("evaluation")}
    of_learners = {"fault_tolerance/num_remote_learner_restarts"}
    assert found | of_learners == set(keys_in_table("remote results"))


def test_the_table_of_callbacks_has_all_of_them():
    table = text(ROOT / "docs/callbacks.md").partition("| callback |")[2].partition("\n\n")[0]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    assert sorted(re.findall("`(.+?)`", " ".join(cells))) == sorted(CALLBACK_NAMES)


def test_the_table_of_the_command_lines_own_defaults_is_right():
    _, _, rest = text(ROOT / "docs/command_line.md").partition("<!-- training defaults -->")
    listed = {name: (ours, default.strip("`")) for name, ours, default in ROW.findall(rest.partition("\n\n")[0])}
    settings = PPOConfig().to_dict()
    assert listed == {name: (repr(value), repr(settings[name])) for name, value in ALGORITHMS["ppo"].training.items()}


@pytest.mark.parametrize("command", ["train", "evaluate", "export", "explain"])
def test_the_table_of_options_has_every_option_of_the_command(command):
    _, parsers = build_parser()
    options = set()
    for action in parsers[command]._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        names = [name for name in action.option_strings if name.startswith("--")]
        options.add(names[0] if names else action.metavar)
    section = re.search(rf"^## {command}\n(.*?)^## ", text(ROOT / "docs/command_line.md"), re.MULTILINE | re.DOTALL)
    assert section is not None
    table = section[1].partition("| option |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\S+?)[ `]", table, re.MULTILINE)) == options
