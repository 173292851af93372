import pytest
import torch
from torch import nn

from marl_connectors import ModuleError
from marl_connectors.core.learner.utils import make_target_network, update_target_network


def test_a_target_network_moves_by_tau_towards_its_network():
    network = nn.Linear(1, 1)
    target = make_target_network(network)
    with torch.no_grad():
        for parameter, value in zip(network.parameters(), (2.0, 4.0), strict=True):
            parameter.fill_(value)
        for parameter in target.parameters():
            parameter.fill_(0.0)
    update_target_network(main_net=network, target_net=target, tau=0.25)
    assert [parameter.item() for parameter in target.parameters()] == [0.5, 1.0]
    assert [parameter.item() for parameter in network.parameters()] == [2.0, 4.0]


def test_a_target_network_with_other_parameters_is_an_error():
    with pytest.raises(ModuleError, match=r"(?s)Linear.*GRU"):
        update_target_network(main_net=nn.GRU(1, 1), target_net=nn.Linear(1, 1), tau=1.0)
