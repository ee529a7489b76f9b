"""What tests of the sandbox share."""

import pytest


@pytest.fixture
def data_dir(tmp_path):
    folder = tmp_path / "competition/public"
    folder.mkdir(parents=True)
    (folder / "train.csv").write_text("id,target\n0,1\n")
    return folder
