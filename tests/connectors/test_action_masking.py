"""ActionMasking: forbidden actions have probability 0 when acting and when learning, whatever module decides."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from helpers.episodes.observation_histories import AGENTS, HISTORIES, MAPPINGS, MODULES, acting, assert_same
from helpers.examples import examples
from marl_connectors import Columns, RLModule
from marl_connectors.array_namespace import ARRAYS
from marl_connectors.connectors.common.flatten_observations import FlattenObservations
from marl_connectors.connectors.connector_v2 import item_key
from marl_connectors.connectors.env_to_module.action_masking import ActionMasking
from marl_connectors.connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
from marl_connectors.connectors.learner.learner_connector_pipeline import LearnerConnectorPipeline
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.packing import rows_of_episodes
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import ConfigError, ConnectorError, ModuleError
from marl_connectors.rl_module.distributions import TorchCategorical, apply_action_mask

MASK, INPUTS = Columns.ACTION_MASK, Columns.ACTION_DIST_INPUTS


# Distributions without forbidden actions.


def masked(logits, mask):
    return TorchCategorical.from_logits(apply_action_mask(torch.as_tensor(logits), torch.as_tensor(mask)))


@pytest.mark.parametrize("favourite", [0.0, 1e4, 1e30])
def test_a_forbidden_action_is_never_drawn_and_never_the_most_likely(favourite):
    logits = torch.tensor([[favourite, 0.0, 1.0, favourite]]).expand(5000, 4)
    distribution = masked(logits, torch.tensor([[0, 1, 1, 0]]).expand(5000, 4))
    rng = np.random.default_rng(0)
    noise = torch.from_numpy(TorchCategorical.noise(rng, (5000,), 4))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for drawn in (distribution.sample(noise), distribution.sample()):
            assert set(drawn.tolist()) == {1, 2}
            assert abs((drawn == 2).float().mean() - np.e / (1 + np.e)) < 0.03
    assert (distribution.to_deterministic() == 2).all()
    assert (distribution.log_probs.exp()[:, [0, 3]] == 0).all()


@examples(60)
@given(st.lists(st.tuples(st.floats(-20, 20), st.floats(-20, 20), st.booleans()), min_size=1, max_size=80))
def test_the_rest_is_the_distribution_over_the_allowed_actions_alone(numbers):
    """Log-probabilities, entropy, KL divergence and their gradients, against those of fewer logits."""
    one, other, mask = (list(column) for column in zip(*numbers, strict=True))
    allowed = np.flatnonzero(mask) if any(mask) else np.arange(len(mask))

    def values(keep, mask):
        logits = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (one, other)]
        given = [x[keep] if mask is None else apply_action_mask(x, torch.tensor(mask)) for x in logits]
        p, q = map(TorchCategorical.from_logits, given)
        action = torch.tensor(0 if mask is None else int(allowed[0]))
        found = torch.stack([p.logp(action), p.entropy(), p.kl(q)])
        found.sum().backward()
        return found.detach(), *(x.grad for x in logits)

    for found, expected in zip(values(None, mask), values(torch.from_numpy(allowed), None), strict=True):
        assert torch.isfinite(found).all()
        torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9)


def test_one_allowed_action_leaves_no_choice_and_no_gradient():
    logits = torch.randn(3, 4, generator=torch.Generator().manual_seed(1)).requires_grad_()
    distribution = TorchCategorical.from_logits(apply_action_mask(logits, torch.eye(4, dtype=torch.int8)[:3]))
    assert distribution.entropy().tolist() == [0, 0, 0]
    assert distribution.logp(torch.arange(3)).tolist() == [0, 0, 0]
    (distribution.entropy() + distribution.logp(torch.arange(3)) + distribution.kl(distribution)).sum().backward()
    assert (logits.grad == 0).all()


# Modules.


class Fixed(RLModule):
    """Likes action 0 best; put ``kind`` of outputs out, of the observation's leading axes."""

    def _forward(self, batch, **kwargs):
        logits = torch.tensor([9.0, 1.0, 2.0]).expand(*batch["obs"].shape[:-1], 3)
        return {"actions": logits.argmax(-1)} if self.model_config else {INPUTS: logits, "extra": batch["obs"] + 1}


@pytest.mark.parametrize("lead", [(4,), (2, 4), (4, 1), (2, 3, 5)])
def test_a_module_that_knows_nothing_of_masks_obeys_them_on_any_leading_axes(lead):
    obs = torch.zeros(*lead, 2)
    mask = torch.zeros(*lead, 3, dtype=torch.bool)
    mask[..., 1:] = True
    mask.view(-1, 3)[0] = False  # forbids everything, so nothing
    module = Fixed()
    for forward in (module.forward_inference, module.forward_exploration, module.forward_train):
        plain, found = forward({"obs": obs}), forward({"obs": obs, MASK: mask})
        lowest = torch.finfo(torch.float32).min
        expected = torch.tensor([lowest, 1.0, 2.0]).expand(*lead, 3).clone()
        expected.view(-1, 3)[0, 0] = 9.0
        assert torch.equal(found.pop(INPUTS), expected)
        assert torch.equal(found.pop("extra"), plain["extra"])
        if forward != module.forward_train:
            assert found.pop(MASK) is mask
        assert not found and set(plain) == {INPUTS, "extra"}


def test_a_module_may_see_to_its_masks_itself_or_choose_actions_itself():
    class Own(Fixed):
        handles_action_masks = True

    batch = {"obs": torch.zeros(4, 2), MASK: torch.tensor([[False, True, True]] * 4)}
    assert Own().forward_exploration(batch)[INPUTS][:, 0].tolist() == [9.0] * 4
    assert Own().forward_train(batch)[INPUTS][:, 0].tolist() == [9.0] * 4
    assert Own().forward_exploration(batch)[MASK] is batch[MASK]  # kept for training
    assert set(Fixed(model_config={"acts": True}).forward_inference(batch)) == {"actions", MASK}
    with pytest.raises(ModuleError, match=r"(?s)\(4, 2\).*\(4, 3\)"):
        Fixed().forward_train({**batch, MASK: batch[MASK][:, :2]})


# The piece by hand.

BOX = spaces.Box(-99.0, 99.0, (2,), np.float32)
FLAGS = spaces.Box(0, 1, (4,), np.int8)
WITH_MASK = spaces.Dict({"observation": BOX, "action_mask": FLAGS})
WITH_MORE = spaces.Dict({"see": BOX, "hear": spaces.Discrete(3), "action_mask": spaces.MultiBinary(4)})
ACTIONS = spaces.Discrete(4, start=5)
KINDS = {"observation": WITH_MASK, "more": WITH_MORE, "info": BOX, "none": BOX}


def play(histories, mapping, kinds):
    """Episodes in which agents pause, die and come back, each with masks where ``kinds`` says."""
    seen = {agent: copy.deepcopy(KINDS[kind]) for agent, kind in kinds.items()}
    for i, space in enumerate(seen.values()):
        space.seed(i)
    rng = np.random.default_rng(7)

    def infos(agents):
        masks = {agent: rng.integers(0, 2, 4) for agent in agents if kinds[agent] == "info" and rng.integers(4)}
        return {agent: {"action_mask": mask.tolist() if mask[0] else mask} for agent, mask in masks.items()}

    episodes = []
    for number, history in enumerate(histories):
        episode = MultiAgentEpisode(
            id_=f"e{number}",
            observation_space=seen,
            action_space=dict.fromkeys(AGENTS, ACTIONS),
            agent_to_module_mapping_fn=lambda agent, episode: mapping[agent],
        )
        episode.add_env_reset(observations={a: seen[a].sample() for a in AGENTS[:3]}, infos=infos(AGENTS[:3]))
        for step in history:
            present = [agent for agent in AGENTS if agent not in step["absent"]]
            taken = dict.fromkeys(sorted(episode.get_agents_to_act()), 0)
            episode.add_env_step(
                {agent: seen[agent].sample() for agent in present},
                taken,
                dict.fromkeys(taken, 0.0),
                infos(present),
                terminateds={agent: True for agent, terminated in step["ends"].items() if terminated},
                truncateds={agent: True for agent, terminated in step["ends"].items() if not terminated},
            )
        episodes.append(episode)
    return episodes, spaces.Dict(seen), spaces.Dict(dict.fromkeys(AGENTS, ACTIONS))


@examples(60)
@given(HISTORIES, MAPPINGS, st.fixed_dictionaries(dict.fromkeys(AGENTS, st.sampled_from(list(KINDS)))), st.data())
def test_items_and_columns_are_the_same(histories, mapping, kinds, data):
    source = data.draw(
        st.sampled_from(["auto", "infos"] + ["observations"] * bool({"observation", "more"} & {*kinds.values()}))
    )
    episodes, observation_space, action_space = play(histories, mapping, kinds)
    piece = ActionMasking(observation_space, action_space, source=source)
    on_items = acting(episodes)
    own = copy.deepcopy(on_items)
    batch = piece(rl_module=None, batch={}, episodes=own)
    twins = {item_key(episode): episode for episode in own}
    for kind in KINDS:
        of_kind = [episode for episode in on_items if kinds[episode.agent_id] == kind]
        if not of_kind:
            continue
        before = [copy.deepcopy((e.get_observations(-1), e.get_infos(-1))) for e in of_kind]
        rows = rows_of_episodes(of_kind, MODULES, last_only=True)
        rows.acted = None
        group = ColumnGroup(rows)
        piece.columns(group, ARRAYS)
        assert set(group) == {MASK} and group[MASK].dtype == bool
        given_to = {id(e): pair for e, pair in zip(of_kind, before, strict=True)}
        for episode, mask in zip(rows.episodes, group[MASK], strict=True):
            (item,) = batch[MASK][item_key(episode)]
            assert_same(item, mask)
            observation, info = given_to[id(episode)]
            in_observation = kind in ("observation", "more") and source != "infos"
            wanted = observation["action_mask"] if in_observation else info.get("action_mask", [1] * 4)
            if (source == "observations" and not in_observation) or not np.any(wanted):
                wanted = [1] * 4
            assert mask.tolist() == [bool(x) for x in wanted]
            if in_observation:
                rest = {key: part for key, part in observation.items() if key != "action_mask"}
                observation = rest["observation"] if kind == "observation" else rest
            assert_same(episode.get_observations(-1), observation)
            assert_same(twins[item_key(episode)].get_observations(-1), observation)
            assert piece.observation_space[episode.agent_id].contains(episode.get_observations(-1))


def test_one_agent_with_masks_in_its_observations_or_infos():
    seen = {"observation": np.ones(2, np.float32), "action_mask": np.array([0, 1, 0, 0], np.int8)}
    episode = SingleAgentEpisode(observations=[seen])
    piece = ActionMasking(WITH_MASK, ACTIONS)
    batch = piece(rl_module=None, batch={}, episodes=[episode])
    assert batch[MASK][(episode.id_,)][0].tolist() == [False, True, False, False]
    assert episode.get_observations(-1).tolist() == [1, 1]
    assert piece.observation_space == BOX and piece.action_space == ACTIONS
    episode = SingleAgentEpisode(observations=[np.ones(2)], infos=[{"legal": [0, 0, 2, 0]}])
    batch = ActionMasking(BOX, ACTIONS, action_mask_key="legal")(rl_module=None, batch={}, episodes=[episode])
    assert batch[MASK][(episode.id_,)][0].tolist() == [False, False, True, False]


def test_other_parts_stay_a_dict_unless_one_of_them_is_named():
    rest = spaces.Dict({key: WITH_MORE[key] for key in ("see", "hear")})
    assert ActionMasking(WITH_MORE, ACTIONS).observation_space == rest
    assert ActionMasking(WITH_MORE, ACTIONS, observation_key="see").observation_space == BOX
    kept = ActionMasking(WITH_MASK, ACTIONS, observation_key=None).observation_space
    assert kept == spaces.Dict({"observation": BOX})


def test_a_mask_that_the_batch_has_already_stays():
    episode = SingleAgentEpisode(observations=[WITH_MASK.sample()])
    given_mask = {(episode.id_,): ["mine"]}
    batch = ActionMasking(WITH_MASK, ACTIONS)(rl_module=None, batch={MASK: given_mask}, episodes=[episode])
    assert batch[MASK] is given_mask and episode.get_observations(-1).shape == (2,)


def dict_with(mask_space, **parts):
    return spaces.Dict({"action_mask": mask_space, **parts})


@pytest.mark.parametrize(
    ("observation_space", "action_space", "options", "message"),
    [
        (
            WITH_MASK,
            spaces.MultiDiscrete([2, 3]),
            {},
            r"have 5\b",
        ),
        (
            BOX,
            BOX,
            {},
            r"(?s)Discrete.*MultiDiscrete.*MultiBinary.*Box\(2,\)",
        ),
        (WITH_MASK, spaces.Discrete(3), {}, r"(?s)\b3\b.*Box\(4,\).*int8"),
        (dict_with(spaces.Discrete(4), o=BOX), ACTIONS, {}, r"(?s)\b4\b.*Discrete\(4\)"),
        (dict_with(BOX), spaces.Discrete(2), {}, "part"),
        (BOX, ACTIONS, {"source": "observations"}, "'action_mask'"),
        (
            BOX,
            ACTIONS,
            {"source": "info"},
            r"(?s)\bsource\b.*'auto'.*'observations'.*'infos'.*'info'",
        ),
        (BOX, ACTIONS, {"observation_key": "action_mask"}, "'action_mask'"),
    ],
)
def test_what_cannot_be_masked_is_an_error_when_the_piece_is_built(observation_space, action_space, options, message):
    with pytest.raises(ConfigError, match=message):
        ActionMasking(observation_space, action_space, **options)


class FreeFlattening(FlattenObservations):
    belongs_in = ()  # may stand anywhere, on its user's responsibility


def test_errors_name_the_agent_and_the_sizes():
    both = spaces.Dict({"a": WITH_MASK, "b": BOX}), spaces.Dict({"a": spaces.Discrete(4), "b": BOX})
    with pytest.raises(ConfigError, match=r"(?s)'a'.*'action_mask'.*\b3\b"):
        ActionMasking(both[0], spaces.Dict({"a": spaces.Discrete(3), "b": BOX}))

    def of(agent, observation, info):
        ids = {"agent_id": agent, "multi_agent_episode_id": "e"}
        return SingleAgentEpisode("x", observations=[observation], infos=[{"action_mask": info}], **ids)

    piece, seen = ActionMasking(*both), np.zeros(2, np.float32)
    with pytest.raises(ConnectorError, match=r"(?s)MultiBinary.*'b'.*Box"):
        piece(rl_module=None, batch={}, episodes=[of("b", seen, [1, 1])])
    piece = ActionMasking(spaces.Dict({"a": BOX}), spaces.Dict({"a": ACTIONS}))
    for wrong, shape in (([1, 1], r"\(2,\)"), ([[1] * 4], r"\(1, 4\)"), ("1111", r"\(\)")):
        with pytest.raises(ConnectorError, match=rf"(?s)'a'.*{shape}.*\b4\b"):
            piece(rl_module=None, batch={}, episodes=[of("a", seen, wrong)])
    with pytest.raises(ConnectorError, match="space"):
        ActionMasking()(
            rl_module=None,
            batch={},
            episodes=[SingleAgentEpisode(observations=[seen], observation_space=BOX, infos=[{"action_mask": [1]}])],
        )
    episode = SingleAgentEpisode(observations=[WITH_MASK.sample()])
    piece = ActionMasking(WITH_MASK, ACTIONS)
    piece(rl_module=None, batch={}, episodes=[episode])
    with pytest.raises(ConnectorError, match=r"float32\[2\]"):
        piece(rl_module=None, batch={}, episodes=[episode])
    episode = SingleAgentEpisode(observations=[WITH_MASK.sample()], observation_space=WITH_MASK, action_space=ACTIONS)
    late = EnvToModulePipeline(WITH_MASK, ACTIONS, connectors=[FreeFlattening(), ActionMasking()])
    with pytest.raises(ConnectorError, match=r"(?s)Box\(6,\).*ActionMasking"):
        late(rl_module=None, batch={}, episodes=[episode])
    with pytest.raises(ConfigError, match="env-to-module"):
        LearnerConnectorPipeline(WITH_MASK, ACTIONS, connectors=[ActionMasking()])


def test_observations_can_keep_their_masks():
    piece = ActionMasking(WITH_MASK, ACTIONS, keep_in_observations=True)
    assert piece.observation_space == WITH_MASK
    seen = {"observation": np.ones(2, np.float32), "action_mask": np.array([0, 1, 0, 0], np.int8)}
    episode = SingleAgentEpisode(observations=[seen], observation_space=WITH_MASK, action_space=ACTIONS)
    batch = piece(rl_module=None, batch={}, episodes=[episode])
    assert batch[MASK][(episode.id_,)][0].tolist() == [False, True, False, False]
    assert_same(episode.get_observations(-1), seen)


def test_a_single_other_part_goes_on_alone_only_if_it_is_the_observation():
    auto = {"observation_key": "auto"}
    assert ActionMasking(WITH_MASK, ACTIONS, **auto).observation_space == BOX
    rest = spaces.Dict({key: WITH_MORE[key] for key in ("see", "hear")})
    assert ActionMasking(WITH_MORE, ACTIONS, **auto).observation_space == rest
    both = spaces.Dict({**WITH_MASK.spaces, "hear": BOX})
    assert set(ActionMasking(both, ACTIONS, **auto).observation_space) == {"observation", "hear"}
    assert ActionMasking(both, ACTIONS).observation_space == BOX
