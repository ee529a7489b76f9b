import tarfile
import zipfile
from io import BytesIO

import pytest

from wmrl_envs.autoresearch.sources.downloads import Downloads
from wmrl_envs.errors import CompetitionError


def test_a_file_of_a_wheel(tmp_path):
    with zipfile.ZipFile(tmp_path / "some_data-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("some_data/table.csv", "a,b\n")
    assert Downloads(tmp_path).wheel("some_data", "some_data/table.csv").read() == b"a,b\n"


def test_a_file_of_an_npm_package(tmp_path):
    with tarfile.open(tmp_path / "texts-6.0.0.tgz", "w:gz") as archive:
        info = tarfile.TarInfo("package/one.html")
        info.size = 4
        archive.addfile(info, BytesIO(b"<p/>"))
        folder = tarfile.TarInfo("package/folder")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
    assert Downloads(tmp_path).npm("texts", "one.html").read() == b"<p/>"
    with pytest.raises(CompetitionError, match="package/folder is no file"):
        Downloads(tmp_path).npm("texts", "folder")


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(CompetitionError, match=r"There is no wordnet-base_\*\.deb in .*: download it first"):
        Downloads(tmp_path).deb("wordnet-base", "usr/share/wordnet/data.noun")
