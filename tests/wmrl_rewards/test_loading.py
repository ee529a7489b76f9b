"""What is common to the engines that load a model's folder."""

import pytest

from wmrl_envs.errors import WMRLError
from wmrl_rewards.language_models.loading import check_exists, files_digest, in_one_line, too_long


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "weights").write_bytes(b"\x00\x01")
    return tmp_path


def test_a_folder_is_named_by_the_content_of_all_its_files(folder, tmp_path_factory):
    name = files_digest(folder)
    copy = tmp_path_factory.mktemp("copy")
    (copy / "more").mkdir()
    (copy / "more" / "weights").write_bytes(b"\x00\x01")
    (copy / "config.json").write_text("{}")
    assert files_digest(copy) == name
    (copy / "more" / "weights").write_bytes(b"\x00\x02")
    changed = files_digest(copy)
    (copy / "more" / "weights").write_bytes(b"\x00\x01")
    (copy / "more" / "weights").rename(copy / "weights")
    assert len({name, changed, files_digest(copy)}) == 3


def test_a_folder_that_holds_no_model_is_told_from_a_name(folder):
    check_exists(folder)
    check_exists("owner/model")
    check_exists("model")
    for wrong in (folder / "more", folder / "none", "a/b/c", "../model", "~/model"):
        with pytest.raises(WMRLError, match=r"no config\.json|no model directory"):
            check_exists(wrong)


@pytest.mark.parametrize(("prompt", "new", "context", "fits"), [(6, 4, 10, True), (7, 4, 10, False)])
def test_what_a_context_holds(prompt, new, context, fits):
    sentence = too_long(prompt, new, context)
    assert (sentence is None) == fits
    if not fits:
        assert (
            sentence == "The prompt has 7 tokens, and 4 new ones are asked for: the model's context holds 10."
        )
    assert too_long(prompt, new, None) is None


def test_an_error_in_one_line():
    assert in_one_line(ValueError("a\n  b")) == "a b"
    assert in_one_line(ValueError()) == "ValueError"
