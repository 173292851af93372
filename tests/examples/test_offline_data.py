import pytest


@pytest.mark.slow
def test_the_second_run_learns_the_same_from_the_files(example, tmp_path, capsys):
    pytest.importorskip("mpe2")
    example("offline_data").main(str(tmp_path))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "The same parameters from the files: True"
    assert lines[1].endswith("with 1800 agent steps") and len(lines) == 5
