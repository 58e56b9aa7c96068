"""What a resumed run is compared by: code, constants, closures and data, and nothing that changes by itself."""

import dataclasses
import functools
import json
import math
import subprocess
import sys
import textwrap
import time

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from tests.sampling.problems import REGRESSION, assert_same_run, run

import ridgewalk as rw
from ridgewalk.sampling import checkpoint as fingerprint
from ridgewalk.sampling.checkpoint import config_snapshot, differences, environment

SCALE = 2.0
WEIGHTS = np.arange(3.0)


def described(source, name="f"):
    """The description of a function of a source text."""
    space = {"__name__": "made_up", "np": np, "jnp": jnp, "functools": functools, "dataclass": dataclasses.dataclass}
    exec(compile(textwrap.dedent(source), "nowhere.py", "exec"), space)
    return config_snapshot(space[name])


BASE = """
    scale = 2.0
    shift = np.arange(3.0)
    def helper(x): return x + 1
    def build(constant):
        def f(x, power=2):
            return helper(x) ** power * constant + scale * shift.sum() + sum([3 for _ in range(2)])
        return f
    f = build(1.5)
"""


@pytest.mark.parametrize(
    ("before", "after", "where"),
    [
        ("f = build(1.5)", "f = build(1.6)", "closure.constant: 1.5 then, 1.6 now"),
        ("scale = 2.0", "scale = 2.5", "globals.scale: 2.0 then, 2.5 now"),
        ("np.arange(3.0)", "np.array([0.0, 1.0, 2.5])", "globals.shift"),
        ("return x + 1", "return x + 2", "globals.helper.code"),
        ("power=2", "power=3", r"defaults\[0\]\[0\]: 2 then, 3 now"),
        ("[3 for", "[4 for", "code"),
        (" + scale", " - scale", "code"),
        ("sum([3", "max([3", "code"),
    ],
)
def test_another_function_is_told_apart(before, after, where):
    assert before in BASE
    (line,) = differences(described(BASE), described(BASE.replace(before, after)))
    assert __import__("re").match(where, line), line


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("    scale = 2.0", "\n\n    # further down\n    scale = 2.0"),
        ("def helper(x): return", 'def helper(x):\n        "It helps."\n        return'),
        ("scale = 2.0", "scale = 2.0\n    unused = 7"),
    ],
)
def test_the_same_function_elsewhere_is_the_same(before, after):
    assert before in BASE
    assert differences(described(BASE), described(BASE.replace(before, after))) == []


CALLABLE = """
    class f:
        def __init__(self, scale): self.scale = scale
        def __call__(self, x): return self.scale * x
    g = f(2.0)
"""


def test_objects_count_by_their_class_and_attributes():
    same = described(CALLABLE, "g")
    assert differences(same, described(CALLABLE, "g")) == []
    assert differences(same, described(CALLABLE.replace("f(2.0)", "f(3.0)"), "g")) == [
        "attributes.scale: 2.0 then, 3.0 now"
    ]
    (line,) = differences(same, described(CALLABLE.replace("scale * x", "scale + x"), "g"))
    assert line.startswith("methods.__call__")


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.custom_jvp, functools.lru_cache, jax.vmap])
def test_wrapped_functions_count_by_what_they_wrap(wrap):
    def make(constant):
        return wrap(lambda x: x * constant)

    assert config_snapshot(make(1.0)) == config_snapshot(make(1.0))
    assert config_snapshot(make(1.0)) != config_snapshot(make(2.0))


def test_functions_that_refer_to_themselves_end():
    def one(x):
        return other(x) if x else 0

    def other(x):
        return one(x - 1)

    held = [1, 2]
    held.append(held)
    assert config_snapshot(one) == config_snapshot(one)
    assert config_snapshot(held) == [1, 2, "itself, 1 levels up"]


def test_not_a_number_equals_itself():
    partial = functools.partial(test_not_a_number_equals_itself, missing=math.nan)
    then = json.loads(json.dumps(config_snapshot(partial), allow_nan=False))
    assert differences(then, config_snapshot(partial)) == []
    assert differences({"a": math.nan}, {"a": math.nan}) == []
    assert config_snapshot(partial) != config_snapshot(functools.partial(test_not_a_number_equals_itself, missing=0.0))


@pytest.mark.parametrize(
    "array",
    [
        np.arange(5000.0),
        np.arange(15000.0).reshape(5000, 3)[:, ::2],
        jnp.arange(5000.0, dtype=jnp.float32),
        np.arange(5000).astype(ml_dtypes.bfloat16),
        np.array(["a", "bc"] * 2500),
        np.array([None, "a"] * 2500, dtype=object),
    ],
)
def test_every_row_counts(array, monkeypatch):
    whole = config_snapshot(array)
    monkeypatch.setattr(fingerprint, "BYTES_AT_ONCE", 999)
    assert config_snapshot(array) == whole
    for row in (1, 2_345, 4_999):
        other = np.array(array)
        other[row] = other[0]
        assert config_snapshot(other) != whole


def test_arrays_on_disk_count_whole(tmp_path, monkeypatch):
    zarr, h5py = pytest.importorskip("zarr"), pytest.importorskip("h5py")
    values = np.random.default_rng(0).normal(size=(1000, 3))
    np.save(tmp_path / "x.npy", values)
    zarr.create_array(tmp_path / "x.zarr", data=values, chunks=(64, 3))
    monkeypatch.setattr(fingerprint, "BYTES_AT_ONCE", 2_000)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = values
        found = [
            np.load(tmp_path / "x.npy", mmap_mode="r"),
            zarr.open_array(tmp_path / "x.zarr", mode="r"),
            file["x"],
        ]
        assert {config_snapshot(array) for array in found} == {config_snapshot(values)}


def with_noise(noise):
    def log_likelihood(w, batch):
        return -0.5 * ((batch["y"] - batch["x"] @ w) / noise) ** 2

    return rw.Posterior(REGRESSION.target.log_prior, log_likelihood, REGRESSION.target.data)


def test_a_closure_with_another_constant_is_refused(tmp_path):
    whole = run(target=with_noise(1.0), checkpoint=tmp_path, checkpoint_every=20)
    with pytest.raises(ValueError, match=r"log_likelihood.closure.noise: 1.0 then, 2.0 now"):
        run(target=with_noise(2.0), checkpoint=tmp_path, resume=True)
    assert_same_run(whole, run(target=with_noise(1.0), checkpoint=tmp_path, resume=True))


def test_one_changed_row_is_refused(tmp_path):
    rng = np.random.default_rng(0)
    data = {"x": rng.normal(size=(5000, 3)), "y": rng.normal(size=5000)}
    target = dataclasses.replace(REGRESSION.target, data=data)
    run(target=target, checkpoint=tmp_path, step_size=1e-5)
    changed = data | {"y": data["y"].copy()}
    changed["y"][1_234] += 1e-9
    with pytest.raises(ValueError, match=r"estimator.target.data.y"):
        run(target=dataclasses.replace(target, data=changed), checkpoint=tmp_path, step_size=1e-5, resume=True)


def test_other_flags_and_versions_give_a_warning(tmp_path, monkeypatch):
    whole = run(checkpoint=tmp_path, checkpoint_every=20)
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    with pytest.warns(RuntimeWarning, match=r"environment.XLA_FLAGS.*\n?.*fast_math"):
        assert_same_run(whole, run(checkpoint=tmp_path, resume=True))
    monkeypatch.undo()
    original = fingerprint._version
    monkeypatch.setattr(fingerprint, "_version", lambda name: "0.0" if name == "jaxlib" else original(name))
    with pytest.warns(RuntimeWarning, match=r"environment.versions.jaxlib: '.*' then, '0.0' now"):
        run(checkpoint=tmp_path, resume=True)
    monkeypatch.undo()
    run(checkpoint=tmp_path, resume=True)


def test_flags_count_in_any_order(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", " --b=1  --a=2")
    then = environment()
    monkeypatch.setenv("XLA_FLAGS", "--a=2 --b=1 --b=1")
    assert environment() == then


def test_bytecode_of_another_python_is_not_compared():
    here = config_snapshot(with_noise)
    there = here | {"code": "cpython-399 0123456789abcdef"}
    assert differences(there, here) == []
    assert differences(here | {"code": f"{sys.implementation.cache_tag} 0123456789abcdef"}, here) != []


PROGRAM = """
import json, sys
sys.path[:0] = {path!r}
import jax
jax.config.update("jax_enable_x64", True)
from tests.sampling import test_fingerprint as tests
print(json.dumps(tests.everything()))
"""


def everything():
    """Descriptions of what a run may be given."""
    samplers = [rw.hasgld_sa(), rw.sghmc(), rw.pruned(rw.psgld(), 0.5, stop=40, every=2)]
    functions = [with_noise(1.0), lambda w: (w * SCALE * WEIGHTS).sum() in {1, 2, "three", None}]
    return config_snapshot([samplers, functions, {"words", "in", "a", "set"}, {3: np.float32(1.5)}])


def test_a_new_process_gives_the_same(tmp_path):
    here = json.loads(json.dumps(everything()))
    for seed in ("1", "2"):
        ran = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(path=sys.path)],
            capture_output=True,
            text=True,
            check=True,
            env={**__import__("os").environ, "PYTHONHASHSEED": seed},
        )
        assert differences(here, json.loads(ran.stdout)) == []


def test_a_digest_is_cheap():
    data = np.zeros((2**22, 8))  # 268 MB
    begun = time.process_time()
    config_snapshot(data)
    assert time.process_time() - begun < 3
