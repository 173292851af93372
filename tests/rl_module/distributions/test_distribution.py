import numpy as np
import pytest
import torch
from gymnasium import spaces

from marl_connectors.errors import ModuleError
from marl_connectors.rl_module.distributions import TorchCategorical, TorchDiagGaussian, default_distribution

LOGITS = torch.tensor([[[0.0, 1.0, -2.0], [3.0, 0.0, 0.5]], [[-1.0, -1.0, -1.0], [9.0, -9.0, 0.0]]])
OTHER = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]], [[2.0, -1.0, 1.0], [8.0, 0.0, 1.0]]])


def test_categorical_agrees_with_torch_on_any_leading_axes():
    ours, theirs = TorchCategorical.from_logits(LOGITS), torch.distributions.Categorical(logits=LOGITS)
    actions = torch.tensor([[1, 0], [2, 0]])
    torch.testing.assert_close(ours.logp(actions), theirs.log_prob(actions))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    other = torch.distributions.Categorical(logits=OTHER)
    expected = torch.distributions.kl_divergence(theirs, other)
    torch.testing.assert_close(ours.kl(TorchCategorical.from_logits(OTHER)), expected)
    assert ours.to_deterministic().tolist() == [[1, 0], [0, 0]]


def test_categorical_numbers_worked_out_by_hand():
    """Probabilities 1/4 and 3/4 against 1/2 and 1/2."""
    uneven = TorchCategorical.from_logits(torch.log(torch.tensor([[1.0, 3.0]])))
    even = TorchCategorical.from_logits(torch.zeros(1, 2))
    assert uneven.logp(torch.tensor([1])).item() == pytest.approx(np.log(0.75))
    assert uneven.entropy().item() == pytest.approx(-(0.25 * np.log(0.25) + 0.75 * np.log(0.75)))
    assert uneven.kl(even).item() == pytest.approx(0.25 * np.log(0.5) + 0.75 * np.log(1.5))


def test_an_impossible_action_adds_nothing_to_entropy_and_kl():
    logits = torch.tensor([[0.0, 0.0, -torch.inf]], requires_grad=True)
    distribution = TorchCategorical.from_logits(logits)
    assert distribution.entropy().item() == pytest.approx(np.log(2))
    kl = distribution.kl(TorchCategorical.from_logits(torch.zeros(1, 3)))
    assert kl.item() == pytest.approx(np.log(1.5))
    (kl + distribution.entropy()).sum().backward()
    assert torch.isfinite(logits.grad).all()


def test_categorical_samples_follow_the_probabilities():
    probabilities = np.array([0.1, 0.6, 0.3])
    logits = torch.log(torch.tensor(probabilities, dtype=torch.float32)).expand(20_000, 3)
    noise = torch.from_numpy(TorchCategorical.noise(np.random.default_rng(0), (20_000,), 3))
    counts = np.bincount(TorchCategorical.from_logits(logits).sample(noise).numpy(), minlength=3)
    # Four standard errors of a frequency: 4 * sqrt(0.25 / 20000) = 0.014.
    np.testing.assert_allclose(counts / 20_000, probabilities, atol=0.014)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        counts = np.bincount(TorchCategorical.from_logits(logits).sample().numpy(), minlength=3)
    np.testing.assert_allclose(counts / 20_000, probabilities, atol=0.014)


def test_gaussian_agrees_with_torch():
    logits, other = torch.tensor([[0.5, -1.0, 0.0, 1.0]]), torch.tensor([[0.0, 1.0, -0.5, 0.5]])

    def torchs(x):
        return torch.distributions.Independent(torch.distributions.Normal(x[:, :2], x[:, 2:].exp()), 1)

    ours, actions = TorchDiagGaussian.from_logits(logits), torch.tensor([[2.0, -3.0]])
    torch.testing.assert_close(ours.logp(actions), torchs(logits).log_prob(actions))
    torch.testing.assert_close(ours.entropy(), torchs(logits).entropy())
    expected = torch.distributions.kl_divergence(torchs(logits), torchs(other))
    torch.testing.assert_close(ours.kl(TorchDiagGaussian.from_logits(other)), expected)
    assert ours.to_deterministic().tolist() == [[0.5, -1.0]]


def test_gaussian_takes_flat_and_shaped_actions():
    distribution = TorchDiagGaussian.from_logits(torch.zeros(3, 8))
    actions = torch.arange(12.0).reshape(3, 2, 2)
    torch.testing.assert_close(distribution.logp(actions), distribution.logp(actions.reshape(3, 4)))


def test_gaussian_samples_have_its_mean_and_deviation():
    logits = torch.tensor([2.0, np.log(3.0)], dtype=torch.float32).expand(20_000, 2)
    noise = torch.from_numpy(TorchDiagGaussian.noise(np.random.default_rng(0), (20_000,), 2))
    samples = TorchDiagGaussian.from_logits(logits).sample(noise)
    assert samples.shape == (20_000, 1)
    assert samples.mean().item() == pytest.approx(2.0, abs=4 * 3 / np.sqrt(20_000))
    assert samples.std().item() == pytest.approx(3.0, abs=4 * 3 / np.sqrt(40_000))


def test_each_space_has_its_distribution_or_a_clear_error():
    assert default_distribution(spaces.Discrete(3)) is TorchCategorical
    assert default_distribution(spaces.Box(-1.0, 1.0, (2,))) is TorchDiagGaussian
    assert TorchCategorical.required_input_dim(spaces.Discrete(3, start=5)) == 3
    assert TorchDiagGaussian.required_input_dim(spaces.Box(-1.0, 1.0, (2, 3))) == 12
    for space in (spaces.Text(3), spaces.Box(0, 9, (1,), np.int64), spaces.Dict()):
        with pytest.raises(ModuleError, match="distribution"):
            default_distribution(space)
