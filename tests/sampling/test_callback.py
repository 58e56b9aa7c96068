"""`sample(callback=…)`: what it is told, and what happens when it raises."""

import itertools

import numpy as np
import pytest
from tests.sampling.problems import assert_same_run, run

from ridgewalk.sampling import checkpoint


def test_it_is_called_after_every_device_call():
    seen = []
    result = run(steps=300, chains=3, callback=seen.append)
    assert_same_run(result, run(steps=300, chains=3))
    steps = [each.step for each in seen]
    assert steps == sorted(set(steps))
    assert steps[-1] == seen[-1].steps == 300
    assert all(0 <= one.seconds <= other.seconds for one, other in itertools.pairwise(seen))
    assert seen[0].alive.tolist() == [True] * 3
    np.testing.assert_array_equal(seen[-1].potentials, result.info.potential[:, -1])


def test_an_exception_leaves_a_checkpoint(tmp_path):
    def stop(progress):
        if progress.step >= 20:
            raise RuntimeError("enough")

    where = {"checkpoint": tmp_path / "c", "checkpoint_every": 10, "store": tmp_path / "s"}
    with pytest.raises(RuntimeError, match="enough") as caught:
        run(**where, callback=stop)
    assert "raised in callback after step 20. A checkpoint of that step was written" in caught.value.__notes__[0]
    assert checkpoint.latest(tmp_path / "c").step == 20
    assert_same_run(run(**where, resume=True), run())  # another callback is no other run


def test_without_a_folder_the_exception_is_the_users_own():
    def stop(progress):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough") as caught:
        run(callback=stop)
    assert not hasattr(caught.value, "__notes__")


def test_it_must_be_a_function():
    with pytest.raises(ValueError, match="callback: 'log' is not a function"):
        run(callback="log")
