"""Positions that are sharded over devices: the same steps as on one, and nothing of the size of a row is sent."""

import numpy as np
import pytest
from tests.distributed.children import arrays, run
from tests.distributed.test_collectives import compiled
from tests.harness import complaints

import ridgewalk as rw
from ridgewalk._pytree import Placement, using
from ridgewalk.sampling.chain_group import check_placement

OPTIONS = {"steps": 60, "batch_size": 8, "chains": 2, "thin": 10}
AUTO = {"steps": 150, "batch_size": 16, "chains": 2, "warmup": 100, "burn_in": 100}
COLD = ("cold_sgld", "cold_sghmc", "cold_limited")


def case(sampler, **settings):
    return {"sampler": sampler, "hidden": 6, "sharded": True, "step_size": 2e-3, "options": OPTIONS, **settings}


def largest_collective(folder, sampler, **settings):
    """Of the loop of a network with 1,201 parameters, 600 of them on each of two devices."""
    return max(compiled(folder, case(sampler, hidden=200, **settings), devices=2))


@pytest.mark.slow
def test_no_row_of_a_low_rank_preconditioner_is_sent(tmp_path):
    """Two chains with 5 rows each: what is sent are Gram matrices and sums over the batch."""
    assert largest_collective(tmp_path, "cold_low_rank", step_size=1e-4) <= 2 * 2 * 5 * 5


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["sgld", "sghmc", "psgld", "diagonal", "cold_limited"])
def test_no_row_is_sent(tmp_path, sampler):
    assert largest_collective(tmp_path, sampler, step_size=1e-4) <= 2 * 8 * 8


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["sghmc", "low_rank"])
def test_no_row_is_sent_in_warm_up(tmp_path, sampler):
    assert largest_collective(tmp_path, sampler, step_size="auto", options=AUTO) <= 2 * 8 * 16


@pytest.mark.slow
def test_steps_are_those_of_one_device():
    """Without noise, to rounding; the position keeps its sharding."""
    kinds = [case(name, last=True) for name in COLD]
    found = run(kinds, devices=2)
    for name, two, one in zip(COLD, found, run([{**kind, "sharded": False} for kind in kinds]), strict=True):
        for a, b in zip(two["last"], one["last"], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-11, err_msg=name)
        assert two["sharding"] == [[], [None, "devices"], ["devices"], ["devices"]]


@pytest.mark.slow
def test_a_low_rank_preconditioner_is_that_of_one_device():
    """On a Gaussian target G converges, whatever the directions it starts from; its rows come back in order."""
    options = {"steps": 400, "thin": 100}
    kind = case("low_rank_5", estimator="gaussian", options=options, step_size=1e-2, G=True)
    (two,), (one,) = run([kind], devices=2), run([{**kind, "sharded": False}])
    np.testing.assert_allclose(two["G"], one["G"], rtol=0.02, atol=0.02)
    assert np.ptp(np.linalg.eigvalsh(one["G"])) > 0.5


@pytest.mark.slow
def test_posterior_of_sharded_parameters(tmp_path):
    """The shared harness, against the exact moments of a linear regression whose five parameters two devices share."""
    step_sizes = {"low_rank": 0.05, "limited": 0.05, "sghmc": 4e-4}
    options = {"steps": 24_000, "burn_in": 4_000, "chains": 4, "thin": 5}
    cases = [
        {"sampler": name, "sharded": True, "step_size": size, "options": {**options, "store": str(tmp_path / name)}}
        for name, size in step_sizes.items()
    ]
    run(cases, devices=2)
    rows = arrays()
    x = np.column_stack([np.ones(len(rows["y"])), rows["x"]])
    precision = np.eye(5) + x.T @ x
    for name in step_sizes:
        draws = rw.open_result(tmp_path / name).positions
        flat = np.concatenate([np.asarray(draws["b"])[..., None], np.asarray(draws["w"])], axis=-1)
        assert complaints(flat, np.linalg.solve(precision, x.T @ rows["y"]), np.linalg.inv(precision), bias=0.05) == []


@pytest.mark.slow
def test_two_processes_equal_one_and_are_resumed_on_any_devices(tmp_path):
    """Bit for bit on as many devices; on another number, from the same state."""

    def cases(folder, steps, **settings):
        options = {**OPTIONS, "checkpoint_every": 20, "thin": 5, "steps": steps}
        names = ("low_rank", "sghmc", "limited")
        return [
            case(name, options={**options, "checkpoint": str(tmp_path / folder / name), **settings}) for name in names
        ]

    expected = run(cases("whole", 60), devices=2)
    assert run(cases("two", 40), processes=2) == run(cases("one", 40), devices=2)
    assert run(cases("one", 60, resume=True), processes=2) == expected
    assert run(cases("two", 60, resume=True), devices=2) == expected
    alone = [{**one, "sharded": False} for one in cases("two", 80, resume=True)]
    assert [found["shape"][1] for found in run(alone)] == [16] * 3


@pytest.mark.parametrize(
    ("sampler", "method", "message"),
    [
        (
            rw.hasgld_sa(form="dense"),
            "vectorized",
            "it is sharded over devices, which Dense does not support",
        ),
        (rw.sgld(), "parallel", "chain_method: 'parallel' puts each chain on one device"),
        (rw.pruned(rw.sgld(), 0.5, stop=30), "vectorized", r"which pruned\(…\) does not support"),
    ],
)
def test_what_cannot_be_sharded_says_so(sampler, method, message):
    with using(Placement(None, (), ())), pytest.raises(ValueError, match=message):
        check_placement(sampler, None, method)
