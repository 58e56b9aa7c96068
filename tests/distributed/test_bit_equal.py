"""Draws do not depend on how many processes share the devices."""

import shutil
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from tests.distributed.children import digest, run, summands

import ridgewalk as rw
from ridgewalk.distributed import processes
from ridgewalk.kernel import Tuned
from ridgewalk.sampling.runner import Runner

BASE = {"steps": 30, "batch_size": 8, "chains": 2}
SHARDED = [
    {"shards": 4, "sampler": name, "options": BASE} for name in ("sgld", "low_rank", "limited", "sghmc", "sgnht")
]
SHARDED += [{"shards": 4, "sampler": name, "options": BASE} for name in ("psgld", "dense", "pruned")]
SHARDED += [{"shards": 4, "estimator": name, "options": BASE} for name in ("control_variates", "svrg", "spike")]
SHARDED += [{"shards": 4, "options": {"steps": 30, "chains": 2}}]
ON_HOST = [
    {"shards": 4, "on_disk": True, "options": BASE},
    {"shards": 4, "on_disk": True, "options": {**BASE, "replacement": False}},
    {"shards": 4, "on_disk": True, "estimator": "control_variates", "options": BASE},
    {"shards": 4, "loader": True, "options": {"steps": 30, "chains": 2}},
]
IN_MEMORY = [{**case, "on_disk": False} for case in ON_HOST[:3]]
LARGE = [{"shards": 4, "hidden": 3000, "options": {**BASE, "thin": 10}}]
"""18,001 parameters: gradients of four devices are summed in slices."""
AUTO = {"steps": 150, "batch_size": 16, "chains": 2, "warmup": 100, "burn_in": 100}
WARM = [{"shards": 4, "sampler": name, "step_size": "auto", "options": AUTO} for name in ("dense", "sghmc")]


def stored(folder, steps=30, **options):
    """Runs that write to disk: chains over devices, with and without a store, and sharded data by epochs."""
    common = {**BASE, "steps": steps, "chains": 4, "checkpoint_every": 10, **options}
    parallel = {**common, "chain_method": "parallel"}
    return [
        {"sampler": "dense", "options": {**parallel, "checkpoint": f"{folder}/memory"}},
        {"options": {**parallel, "checkpoint": f"{folder}/store", "store": f"{folder}/draws.zarr", "thin": 3}},
        {"shards": 2, "options": {**common, "checkpoint": f"{folder}/epochs", "replacement": False}},
    ]


def assert_same_on_disk(two, one):
    """What readers of a store or of a checkpoint folder find."""
    two, one = rw.open_result(two), rw.open_result(one)
    assert two.status == one.status
    np.testing.assert_array_equal(two.step_sizes, one.step_sizes)
    np.testing.assert_array_equal(two.draw_steps, one.draw_steps)
    for name, draws in one.posterior.items():
        np.testing.assert_array_equal(two.posterior[name], draws)
        assert draws.shape[:2] == (one.chains, one.draws)
        assert np.isfinite(draws).all()


@pytest.mark.parametrize(
    ("names", "which"),
    [(["epochs"], slice(2, 3)), pytest.param(["draws.zarr"], slice(1, 2), marks=pytest.mark.slow)],
)
def test_two_processes_equal_one(tmp_path, names, which):
    """Draws, diagnostics and final states, and what `open_result` finds on disk."""
    cases = [stored(tmp_path / name)[which] for name in ("two", "one")]
    assert run(cases[0], processes=2) == run(cases[1], devices=2)
    for name in names:
        assert_same_on_disk(tmp_path / "two" / name, tmp_path / "one" / name)


def test_stored_step_sizes_are_of_the_chains_of_all_processes(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(processes, "exchange_json", lambda _, own: [own, [[1, 3.0], [2, 9.0]]])
    tuned = Tuned(np.array([1.0]), *[None] * (len(Tuned._fields) - 1))
    group = SimpleNamespace(carry=SimpleNamespace(states=SimpleNamespace(tuning=tuned)))
    assert Runner._tuned_step_size.func(SimpleNamespace(groups=[group], chains=[0])) == 3.0


@pytest.mark.slow
def test_warm_up_with_a_store(tmp_path):
    def cases(folder):
        options = {**AUTO, "chains": 4, "chain_method": "parallel", "store": str(tmp_path / folder)}
        return [{"sampler": "sghmc", "step_size": "auto", "options": options}]

    assert run(cases("two"), processes=2) == run(cases("one"), devices=2)
    assert_same_on_disk(tmp_path / "two", tmp_path / "one")


@pytest.mark.slow
@pytest.mark.parametrize("cases", [SHARDED, WARM], ids=["samplers", "warmup"])
def test_every_sampler_and_estimator(cases):
    one = run(cases, devices=2)
    assert run(cases, processes=2) == one


@pytest.mark.slow
def test_rows_on_the_host():
    """Each process reads its own: from disk the draws are those of rows in memory."""
    one = run(ON_HOST + IN_MEMORY, devices=2)
    assert run(ON_HOST, processes=2) == one[:4]
    assert one[4:] == one[:3]


def sum_in_pairs(parts):
    """The stated order of a sum of 2ᵏ vectors: neighbours first."""
    while len(parts) > 1:
        parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


GATHERED, SLICED = 1_001, 30_011
"""Numbers of a vector that eight devices gather, and of one that they add in slices of unequal length."""


@pytest.mark.parametrize(
    ("processes", "devices"),
    [
        (1, 4),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [(1, 1), (1, 2), (1, 8), (2, 1), (2, 2), (2, 4)]),
    ],
)
def test_sums_have_the_same_bits_on_any_devices_of_any_processes(processes, devices):
    """Those of a direct sum in the stated order, which is not the order of the rows."""
    rows = {size: summands(8, size) for size in (GATHERED, SLICED)}
    found = run([{"shards": 8, "sum": size} for size in rows], processes=processes, devices=devices)
    assert [one["sum"] for one in found] == [digest(sum_in_pairs(parts)) for parts in rows.values()]
    assert digest(sum_in_pairs(rows[SLICED])) != digest(sum(rows[SLICED]))


@pytest.mark.slow
def test_large_gradients_are_summed_in_slices(tmp_path):
    """By an all-to-all and an all-gather, in the same order as on one device, also between processes."""
    dump = f"--xla_dump_to={tmp_path} --xla_dump_hlo_module_re=.*run_steps.*"
    four = run(LARGE, devices=4, flags=dump)
    (program,) = tmp_path.glob("*run_steps*after_optimizations.txt")
    assert "all-to-all" in program.read_text()
    assert run(LARGE, processes=2, devices=2) == four
    assert run(LARGE, devices=1) == four


@pytest.mark.slow
def test_the_number_of_devices_changes_nothing_where_each_has_two_to_the_k_shards():
    """Promised up to rounding only; on CPU these runs agree in every bit."""
    cases = [{"shards": 8, "sampler": name, "options": BASE} for name in ("sgld", "dense")]
    four = run(cases, devices=4)
    assert run(cases, devices=2) == four
    assert run(cases, devices=1) == four


@pytest.mark.slow
def test_groups_of_chains_with_their_own_copy_of_the_data(tmp_path):
    def cases(folder):
        options = {**BASE, "chains": 4, "chain_method": "parallel", "checkpoint": str(tmp_path / folder)}
        return [{"shards": 2, "chain_groups": 2, "sampler": "dense", "options": options}]

    expected = run(cases("one"), devices=4)
    assert run(cases("two"), processes=2, devices=2) == expected
    assert run(cases("each"), processes=2, devices=1) == expected


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (2, 2)])
def test_resumed_with_another_number_of_processes(tmp_path, before, after):
    def go(folder, processes, **options):
        return run(stored(tmp_path / folder, **options), processes=processes, devices=2 // processes)

    expected = go("whole", 2, steps=60)
    go("parts", before)
    shutil.copytree(tmp_path / "parts", tmp_path / "copy")
    assert go("copy", after, steps=60, resume=True) == expected
