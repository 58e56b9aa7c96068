"""How far a reader has to go: the files of the package that a run enters."""

import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgewalk as rw

MOST_FILES = 25


def entered(call):
    """The files of ridgewalk in which `call` enters a function; importing a module does not count."""
    root = Path(rw.__file__).parent
    found = set()

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(str(root)):
            found.add(Path(code.co_filename).relative_to(root).as_posix())

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return found


GIVEN = {"steps": 50, "step_size": 1e-3}
AUTO = {"steps": 520, "step_size": "auto"}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("sgld", GIVEN),
        pytest.param("hasgld_sa", GIVEN, marks=pytest.mark.slow),
        *(pytest.param(name, AUTO, marks=pytest.mark.slow) for name in ("sgld", "hasgld_sa", "auto")),
    ],
)
def test_a_stored_draw_is_few_files_away(tmp_path, name, settings):
    pytest.importorskip("zarr")
    rng = np.random.default_rng(0)
    data = {"x": rng.normal(size=(100, 3)), "y": rng.normal(size=100)}
    target = rw.Posterior(
        lambda w: -0.5 * jnp.sum(w**2), lambda w, batch: -0.5 * (batch["y"] - batch["x"] @ w) ** 2, data
    )
    sampler = getattr(rw, name)()

    def run(folder):
        return rw.sample(
            jax.random.key(0),
            sampler,
            target,
            jnp.zeros(3),
            batch_size=10,
            chains=2,
            store=folder / "draws.zarr",
            checkpoint=folder / "checkpoint",
            progress=False,
            **settings,
        )

    run(tmp_path / "first")  # imports what is imported when it is needed
    jax.clear_caches()  # so that functions are traced again
    files = entered(lambda: run(tmp_path / "second"))
    assert len(files) <= MOST_FILES, sorted(files)
    assert {"kernel.py", "sampling/loop.py", "sampling/zarr_store.py", "dynamics.py"} <= files
