import subprocess

import pytest

from wmrl_envs.errors import SimulatorError
from wmrl_envs.libero import rendering
from wmrl_envs.libero.rendering import choose_backend

from .installed import needs_libero


@pytest.fixture
def probes(monkeypatch):
    """Replaces the process that tries a library out; returns what was tried."""
    tried = []
    for name in ("MUJOCO_GL", "PYOPENGL_PLATFORM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(rendering, "_opengl_is_loaded", lambda: False)

    def replace(**answers):
        def run(command, **kwargs):
            backend = command[-1]
            tried.append(backend)
            answer = answers[backend]
            if isinstance(answer, Exception):
                raise answer
            return answer

        rendering._probe.cache_clear()
        monkeypatch.setattr(subprocess, "run", run)
        return tried

    yield replace
    rendering._probe.cache_clear()


def done(stdout="", stderr="", code=0):
    return subprocess.CompletedProcess([], code, stdout, stderr)


def test_the_first_that_draws_is_taken_and_tried_once(probes):
    tried = probes(egl=done(stderr="ImportError: no EGL", code=1), osmesa=done("drawn\n"))
    assert choose_backend() == "osmesa"
    assert choose_backend() == "osmesa"
    assert tried == ["egl", "osmesa"]


@pytest.mark.parametrize("variable", ["MUJOCO_GL", None])
def test_the_one_that_is_named_is_the_only_one_tried(probes, monkeypatch, variable):
    tried = probes(egl=done("drawn"), osmesa=done("drawn"))
    if variable:
        monkeypatch.setenv(variable, "osmesa")
    assert choose_backend(None if variable else "osmesa") == "osmesa"
    assert tried == ["osmesa"]


def test_where_nothing_draws_one_sentence_says_why_and_what_to_install(probes):
    hangs = subprocess.TimeoutExpired("python", 60)
    probes(egl=hangs, osmesa=done(stderr="Traceback\nImportError: no OSMesa\n", code=1))
    with pytest.raises(SimulatorError) as raised:
        choose_backend()
    assert str(raised.value) == (
        "Nothing draws pictures without a screen here (egl: nothing was drawn within 60 seconds; "
        "osmesa: ImportError: no OSMesa): install the libraries with  "
        "apt-get install -y libosmesa6 libegl1 libegl-mesa0 libgl1 libgl1-mesa-dri."
    )


@pytest.mark.parametrize(
    ("answer", "why"),
    [(done("black"), "what it draws is black"), (done(code=-11), "it ended with code -11")],
    ids=["a black picture", "a crash"],
)
def test_a_library_that_does_not_draw_says_why(probes, answer, why):
    probes(egl=answer, osmesa=answer)
    with pytest.raises(SimulatorError, match=f"egl: {why}; osmesa: {why}"):
        choose_backend()


@needs_libero
def test_a_library_draws_here():
    assert choose_backend() in ("egl", "osmesa")
