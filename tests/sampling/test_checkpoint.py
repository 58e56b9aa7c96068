"""Checkpoints: continued bit for bit, checked when read, and refused when they are not this run's."""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from safetensors.numpy import load, save
from tests.sampling.problems import REGRESSION, assert_same_run, run

import ridgewalk as rw
from ridgewalk.sampling import checkpoint
from ridgewalk.sampling.checkpoint import config_snapshot, differences
from ridgewalk.schedules import parse_interval

SAMPLERS = {
    "sgld": rw.sgld(),
    "psgld": rw.psgld(),
    "sgrld": rw.sgrld(lambda position: jnp.ones(3)),
    "hamcmc": rw.hamcmc(),
    "dense": rw.hasgld_sa(memory=2),
    "limited": rw.hasgld_sa(form="snapshot_lbfgs", memory=2),
    "low_rank": rw.Sampler(rw.Langevin(), rw.LowRank(rank=1, spare=1)),
    "sghmc": rw.sghmc(),
    "sgnht": rw.sgnht(),
}


def forget_after(folder: Path, step: int) -> None:
    """What a crash after `step` leaves: no later checkpoint, and draws that may be anything from there on."""
    for path in checkpoint.files(folder):
        if int(path.stem.split("-")[1]) > step:
            path.unlink()


EVERY_TIME = {"dense"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in EVERY_TIME else [pytest.mark.slow]) for name in SAMPLERS]
)
def test_resume_is_bit_identical(tmp_path, name):
    sampler = SAMPLERS[name]
    options = {"chains": 2, "burn_in": 7, "thin": 3}
    whole = run(sampler, **options)
    begun = run(sampler, **options, checkpoint=tmp_path, checkpoint_every=20)
    assert_same_run(whole, begun)
    forget_after(tmp_path, 40)
    assert [path.name for path in checkpoint.files(tmp_path)] == ["step-000000000040.safetensors"]
    assert_same_run(whole, run(sampler, **options, checkpoint=tmp_path, checkpoint_every=20, resume=True))


@pytest.mark.parametrize(
    "options",
    [
        {"chain_method": "sequential", "chains": 2},
        {"replacement": False, "chains": 2},
        pytest.param({"step_size": optax.polynomial_schedule(1e-3, 1e-4, 0.5, 60)}, marks=pytest.mark.slow),
        {"target": rw.svrg(REGRESSION.target, every=7)},
        {"keep": "moments", "chains": 2},
        pytest.param({"collect": jnp.sum, "chains": 2}, marks=pytest.mark.slow),
    ],
    ids=["sequential", "epochs", "schedule", "svrg", "moments", "collect"],
)
def test_resume_of_every_kind_of_run(tmp_path, options):
    whole = run(**options)
    run(**options, checkpoint=tmp_path, checkpoint_every=15)
    forget_after(tmp_path, 45)
    again = run(**options, checkpoint=tmp_path, checkpoint_every=15, resume=True)
    assert_same_run(whole, again)
    for a, b in zip(
        jax.tree.leaves((whole.moments, whole.collected)),
        jax.tree.leaves((again.moments, again.collected)),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)


def test_a_store_is_continued_without_gaps_or_duplicates(tmp_path):
    whole = run(chains=2, thin=2)
    options = {
        "chains": 2,
        "thin": 2,
        "store": tmp_path / "draws.zarr",
        "checkpoint": tmp_path / "c",
        "checkpoint_every": 20,
    }
    run(**options)
    forget_after(tmp_path / "c", 40)
    again = run(**options, resume=True)
    assert again.store == tmp_path / "draws.zarr"
    assert_same_run(whole, again)


def test_a_run_can_be_made_longer(tmp_path):
    run(checkpoint=tmp_path, checkpoint_every=20)
    assert_same_run(run(steps=90), run(steps=90, checkpoint=tmp_path, checkpoint_every=20, resume=True))


def test_a_finished_run_is_read_back(tmp_path):
    whole = run(checkpoint=tmp_path)
    assert [path.name for path in checkpoint.files(tmp_path)] == ["step-000000000060.safetensors"]
    assert_same_run(whole, run(checkpoint=tmp_path, resume=True))


def test_resume_begins_where_there_is_nothing(tmp_path):
    assert_same_run(run(), run(checkpoint=tmp_path / "new", checkpoint_every=20, resume=True))


def test_two_checkpoints_are_kept(tmp_path):
    run(checkpoint=tmp_path, checkpoint_every=10)
    assert [path.stem[-3:] for path in checkpoint.files(tmp_path)] == ["050", "060"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"batch_size": 30}, "batch_size: 40 then, 30 now"),
        ({"step_size": 2e-3}, "step_sizes"),
        ({"seed": 1}, "key"),
        ({"thin": 2}, "thin: 1 then, 2 now"),
        ({"sampler": rw.sgld(temperature=0.5)}, r"sampler.dynamics.temperature: 1.0 then, 0.5 now"),
        ({"sampler": rw.psgld()}, r"sampler.preconditioner.type: 'Identity' then, 'RMSProp' now"),
        ({"start": jnp.ones(3)}, "position"),
        ({"target": rw.control_variates(REGRESSION.target, jnp.zeros(3))}, "estimator.type: 'Minibatch' then"),
        ({"steps": 30}, "steps: the checkpoint has made 60"),
    ],
)
def test_other_settings_are_refused_with_the_difference(tmp_path, changed, message):
    run(checkpoint=tmp_path, checkpoint_every=20)
    with pytest.raises(ValueError, match=message):
        run(**changed, checkpoint=tmp_path, checkpoint_every=20, resume=True)
    assert_same_run(run(), run(checkpoint=tmp_path, checkpoint_every=20, resume=True))


def test_other_data_are_refused(tmp_path):
    run(checkpoint=tmp_path)
    data = REGRESSION.target.data | {"y": REGRESSION.target.data["y"] + 1}
    other = rw.Posterior(REGRESSION.target.log_prior, REGRESSION.target.log_likelihood, data)
    with pytest.raises(ValueError, match=r"estimator.target.data.y"):
        run(target=other, checkpoint=tmp_path, resume=True)


def test_a_folder_with_a_run_is_not_overwritten(tmp_path):
    run(checkpoint=tmp_path)
    with pytest.raises(ValueError, match="already holds a run; pass resume=True"):
        run(checkpoint=tmp_path)


def test_two_runs_cannot_share_a_folder(tmp_path):
    started = threading.Event()

    def first():
        with pytest.MonkeyPatch.context() as patch:
            original = checkpoint.write

            def slow(*arguments):
                started.set()
                time.sleep(0.5)
                return original(*arguments)

            patch.setattr(checkpoint, "write", slow)
            run(checkpoint=tmp_path, checkpoint_every=20)

    thread = threading.Thread(target=first)
    thread.start()
    started.wait()
    with pytest.raises(ValueError, match="checkpoint: another run is writing"):
        run(checkpoint=tmp_path, resume=True)
    thread.join()


# Damage: every kind gives a clear error or the older checkpoint.


def damaged(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "truncated":
        content = content[: len(content) // 2]
    elif how == "empty":
        content = bytearray()
    elif how == "flipped in the data":
        content[-5] ^= 1
    elif how == "flipped in the header":
        content[content.index(b"step") + 8] ^= 1
    elif how == "foreign":
        content = bytearray(save({"x": np.ones(3)}))
    elif how == "text":
        content = bytearray(b"not a checkpoint at all")
    path.write_bytes(content)


@pytest.mark.parametrize(
    "how", ["truncated", "empty", "flipped in the data", "flipped in the header", "foreign", "text"]
)
def test_a_damaged_checkpoint_gives_way_to_the_older_one(tmp_path, how):
    whole = run(checkpoint=tmp_path, checkpoint_every=20)
    damaged(checkpoint.files(tmp_path)[-1], how)
    with pytest.warns(RuntimeWarning, match="an older one is used"):
        again = run(checkpoint=tmp_path, checkpoint_every=20, resume=True)
    assert_same_run(whole, again)


def test_no_readable_checkpoint_is_an_error_and_nothing_is_lost(tmp_path):
    run(checkpoint=tmp_path, checkpoint_every=20)
    files = checkpoint.files(tmp_path)
    for path in files:
        damaged(path, "truncated")
    with (
        pytest.warns(RuntimeWarning, match="damaged"),
        pytest.raises(rw.CheckpointError, match="none of the 2 checkpoints"),
    ):
        run(checkpoint=tmp_path, checkpoint_every=20, resume=True)
    assert checkpoint.files(tmp_path) == files


def test_every_flipped_bit_is_noticed(tmp_path):
    path = checkpoint.write(tmp_path, checkpoint.Checkpoint(3, [np.arange(4.0), np.zeros((), np.int32)], {"a": 1}))
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    for position in rng.choice(len(content), 300):
        flipped = bytearray(content)
        flipped[position] ^= 1 << int(rng.integers(8))
        path.write_bytes(flipped)
        try:
            found = checkpoint.read(path)
        except checkpoint.CheckpointError:
            continue
        # What is not noticed may only be white space that pads the header.
        assert (found.step, found.settings) == (3, {"a": 1})
        np.testing.assert_array_equal(found.arrays[0], np.arange(4.0))


def test_unreadable_files_of_later_steps_do_not_remove_good_checkpoints(tmp_path):
    """Only checkpoints of earlier steps are removed, and never the one just written."""
    whole = run(checkpoint=tmp_path, checkpoint_every=20)
    strangers = [tmp_path / f"step-{step:012d}.safetensors" for step in (7, 900, 901)]
    for path in strangers:
        path.write_bytes(b"not a checkpoint")
    folder = tmp_path / "step-000000000008.safetensors"
    folder.mkdir()
    with pytest.warns(RuntimeWarning, match="an older one is used"):
        assert_same_run(run(steps=120), run(steps=120, checkpoint=tmp_path, checkpoint_every=20, resume=True))
    good = [path for path in checkpoint.files(tmp_path) if path not in (*strangers, folder)]
    assert [path.stem[-3:] for path in good] == ["100", "120"]
    assert all(path.read_bytes() == b"not a checkpoint" for path in strangers)
    assert folder.is_dir()
    with pytest.warns(RuntimeWarning, match="an older one is used"):
        run(steps=120, checkpoint=tmp_path, checkpoint_every=20, resume=True)
    assert whole.steps == 60


def header_only(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header


@pytest.mark.parametrize(
    "content",
    [
        header_only(b"[" * 200_000),
        header_only(b'{"__metadata__": {"format": "ridgewalk-checkpoint", "about": "' + b"[" * 200_000 + b'"}}'),
        (2**62).to_bytes(8, "little") + b"{}",
        header_only(b'{"x": {"dtype": "F64", "shape": [1000000000, 1000], "data_offsets": [0, 8000000000000]}}'),
        header_only(b"3"),
        header_only(b'{"__metadata__": 3}'),
    ],
    ids=["deep header", "deep description", "long header", "large array", "number", "no description"],
)
def test_crafted_headers_fall_back_like_other_damage(tmp_path, content):
    whole = run(checkpoint=tmp_path, checkpoint_every=20)
    checkpoint.files(tmp_path)[-1].write_bytes(content)
    with pytest.warns(RuntimeWarning, match="an older one is used"):
        assert_same_run(whole, run(checkpoint=tmp_path, checkpoint_every=20, resume=True))


@pytest.mark.parametrize("kind", ["fifo", "link", "folder"])
def test_only_regular_files_are_read(tmp_path, kind):
    whole = run(checkpoint=tmp_path, checkpoint_every=20)
    path = checkpoint.files(tmp_path)[-1]
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    if kind == "folder":
        named = rf"could not be written to {path} \(Is a directory\)"
        with (
            pytest.warns(RuntimeWarning, match="an older one is used"),
            pytest.raises(rw.CheckpointError, match=named),
        ):
            run(checkpoint=tmp_path, checkpoint_every=20, resume=True)
    else:
        with pytest.warns(RuntimeWarning, match="an older one is used"):
            again = run(checkpoint=tmp_path, checkpoint_every=20, resume=True)
        assert_same_run(whole, again)


def test_a_checkpoint_of_a_later_version_is_refused(tmp_path):
    run(checkpoint=tmp_path, checkpoint_every=20)
    path = checkpoint.files(tmp_path)[-1]
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])["__metadata__"] | {"format_version": "9"}
    path.write_bytes(save(load(content), metadata=header))
    with pytest.raises(rw.CheckpointError, match=r"format version 9.*upgrade ridgewalk"):
        run(checkpoint=tmp_path, checkpoint_every=20, resume=True)


def mount(folder: Path, options: str) -> bool:
    folder.mkdir(exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, check=False)
    return done.returncode == 0


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "small"
    if not mount(folder, "size=400k"):
        pytest.skip("mounting a tmpfs is not allowed here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_is_an_error_and_nothing_is_lost(small_disk):
    options = {"checkpoint": small_disk / "run", "checkpoint_every": 20, "keep": "moments"}
    run(**options)
    before = [path.read_bytes() for path in checkpoint.files(small_disk / "run")]
    filler = small_disk / "filler"
    filler.write_bytes(b"0" * (os.statvfs(small_disk).f_bavail * 4096))
    with pytest.raises((rw.CheckpointError, OSError), match=r"could not be written.*(No space|resume=True)"):
        run(**options, resume=True, steps=120)
    left = [path.read_bytes() for path in checkpoint.files(small_disk / "run")]
    assert left[-1] == before[-1]
    filler.unlink()
    assert_same_run(run(keep="moments", steps=120), run(**options, resume=True, steps=120))


def test_a_quota_is_an_error_and_the_run_goes_on_after_it(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises((rw.CheckpointError, OSError), match="could not be written"):
            run(checkpoint=tmp_path / "run", checkpoint_every=20, keep="moments")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    again = run(checkpoint=tmp_path / "run", checkpoint_every=20, keep="moments", resume=True)
    assert_same_run(run(keep="moments"), again)


def test_a_read_only_folder_is_refused_before_the_run(small_disk):
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(ValueError, match=r"checkpoint: .*read-only|cannot be made"):
        run(checkpoint=small_disk / "run")
    with pytest.raises(ValueError, match=r"checkpoint: .* is read-only"):
        run(checkpoint=small_disk)
    with pytest.raises((OSError, ValueError), match=r"(?i)read-only|could not be written"):
        run(store=small_disk / "draws.zarr")


# Signals: the chunk is finished, a checkpoint written, and what there is comes back.

INTERRUPTED = """
import sys, os, signal, threading, time, jax
sys.path.insert(0, sys.argv[2])
from tests.sampling.problems import run
def kill():
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.1)
    time.sleep(2.0)
    os.kill(os.getpid(), getattr(signal, sys.argv[3]))
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
threading.Thread(target=kill).start()
result = run(steps=3_000_000, thin=3000, checkpoint=sys.argv[1], checkpoint_every="1 h")
print(result.steps, result.draws, result.positions.shape[1], result.status[0], flush=True)
if len(sys.argv) > 4:
    run(steps=3_000_000, thin=3000)
"""


def interrupted(folder, name, *more):
    code = [sys.executable, "-c", INTERRUPTED, folder, Path(__file__).parents[2], name, *more]
    return subprocess.run(code, capture_output=True, text=True, check=False, timeout=120)


def test_sigterm_ends_the_process_after_a_checkpoint(tmp_path):
    done = interrupted(tmp_path / "run", "SIGTERM", "and another run")
    assert (done.returncode, done.stdout) == (143, ""), done.stderr
    assert 0 < checkpoint.read(checkpoint.files(tmp_path / "run")[-1]).step < 3_000_000


def send(monkeypatch, *numbers):
    """Signals that come one after the other while the first checkpoint is written."""
    original, left = checkpoint.write, list(numbers)

    def write(*arguments):
        while left:
            os.kill(os.getpid(), left.pop(0))
            time.sleep(0.3)
        return original(*arguments)

    monkeypatch.setattr(checkpoint, "write", write)


@pytest.mark.slow
def test_a_second_ctrl_c_raises(tmp_path, monkeypatch):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        send(monkeypatch, signal.SIGINT, signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            run(steps=1_000, thin=100, checkpoint=tmp_path, checkpoint_every=50)
    finally:
        signal.signal(signal.SIGINT, before)
    monkeypatch.undo()
    assert_same_run(run(steps=200, thin=100), run(steps=200, thin=100, checkpoint=tmp_path, resume=True))


def test_a_handler_of_the_program_is_called_after_the_checkpoint(tmp_path, monkeypatch):
    seen = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(len(checkpoint.files(tmp_path))))
    try:
        send(monkeypatch, signal.SIGTERM, signal.SIGTERM)
        result = run(steps=1_000, thin=100, checkpoint=tmp_path, checkpoint_every=10)
        assert len(seen) == 1
        assert result.status[0].outcome == "interrupted"
        assert checkpoint.read(checkpoint.files(tmp_path)[-1]).step == result.steps
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_signal_that_the_program_ignores_stays_ignored(monkeypatch, tmp_path):
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        send(monkeypatch, signal.SIGTERM)
        assert run(checkpoint=tmp_path, checkpoint_every=20).status[0].outcome == "finished"
    finally:
        signal.signal(signal.SIGTERM, before)


class Failing:
    """Batches of the regression, of which one is missing at first."""

    def __init__(self, missing):
        self.missing = missing

    def __iter__(self):
        for i in range(30):
            if i == self.missing:
                raise RuntimeError("the network drive is gone")
            yield jax.tree.map(lambda x, i=i: np.asarray(x[10 * i % 90 : 10 * i % 90 + 10]), REGRESSION.target.data)


def test_an_error_in_the_data_leaves_a_checkpoint(tmp_path):
    def options(missing):
        target = rw.Posterior(
            REGRESSION.target.log_prior, REGRESSION.target.log_likelihood, rw.Batches(Failing(missing), size=100)
        )
        return {"target": target, "batch_size": None, "steps": 80, "step_size": 1e-4}

    with pytest.raises(RuntimeError, match="the network drive is gone") as raised:
        run(**options(23), checkpoint=tmp_path)
    assert "the same call with resume=True continues" in raised.value.__notes__[0]
    assert 0 < checkpoint.read(checkpoint.files(tmp_path)[-1]).step <= 23
    assert_same_run(run(**options(None)), run(**options(None), checkpoint=tmp_path, resume=True))


def test_ctrl_c_returns_what_there_is(tmp_path):
    done = interrupted(tmp_path / "run", "SIGINT")
    assert done.returncode == 0, done.stderr
    steps, draws, stored, *status = done.stdout.split()
    assert 0 < int(steps) < 3_000_000
    assert int(draws) == int(stored) == int(steps) // 3000
    assert status[0] == "interrupted"
    newest = checkpoint.read(checkpoint.files(tmp_path / "run")[-1])
    assert newest.step == int(steps)


def test_signal_handlers_are_put_back():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    run()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


# Small things.


@pytest.mark.parametrize(
    ("every", "parsed"),
    [
        (500, (500, None)),
        ("30 s", (None, 30)),
        ("1.5 min", (None, 90)),
        ("2h", (None, 7200)),
        (timedelta(0, 5), (None, 5)),
    ],
)
def test_every_is_steps_or_time(every, parsed):
    assert parse_interval(every) == parsed


@pytest.mark.parametrize("every", [0, -3, 2.5, True, "5", "five minutes", "0 s", timedelta(0)])
def test_bad_every(every):
    with pytest.raises(ValueError, match="every: "):
        parse_interval(every)


def test_resume_needs_a_folder():
    with pytest.raises(ValueError, match="resume: True needs a folder"):
        run(resume=True)


def test_descriptions_tell_functions_numbers_and_arrays_apart():
    def f(x):
        return x

    assert config_snapshot(rw.sgld()) == config_snapshot(rw.sgld())
    assert differences(config_snapshot(rw.sgld()), config_snapshot(rw.sgld(temperature=0.5))) == [
        "dynamics.temperature: 1.0 then, 0.5 now"
    ]
    assert config_snapshot(np.arange(3)) != config_snapshot(np.arange(3) + 1)
    assert config_snapshot(np.arange(3)) != config_snapshot(np.arange(3.0))
    assert config_snapshot(f) != config_snapshot(config_snapshot)
    assert differences({"a": 1}, {"a": 1, "b": 2}) == ["b: None then, 2 now"]


def test_a_function_may_import_its_modules_where_it_is_made():
    """Then a closure holds them; `jax.numpy` has a shape and a dtype, but is no array."""

    def made(module):
        return config_snapshot(lambda theta: -module.sum(theta))

    assert made(jnp)["closure"] == {"module": "module jax.numpy"}
    assert made(jnp) != made(np)
