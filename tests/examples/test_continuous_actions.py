import re

import pytest


@pytest.mark.slow
def test_both_algorithms_are_trained(example, capsys):
    pytest.importorskip("mpe2")
    example("continuous_actions").main(num_iterations=2, num_env_steps=600)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["SAC", "MATD3"]
    assert all(re.fullmatch(r"\w+: -\d+\.\d at first, -\d+\.\d at last", line) for line in lines)
