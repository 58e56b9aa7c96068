"""Calls as text: samplers and arguments that evaluate to what the run was given."""

import jax
import jax.numpy as jnp
import pytest
from tests.diagnostics.runs import GAUSSIAN, run

import ridgewalk as rw
from ridgewalk.diagnostics.next_call import next_call, rounded_up, sampler_text

SAMPLERS = [
    rw.sgld(),
    rw.sgld(temperature=0.5, noise="two_point"),
    rw.psgld(decay=0.9),
    rw.hamcmc(memory=4),
    rw.hasgld_sa(),
    rw.auto(),
    rw.hasgld_sa(memory=3, adaptation=rw.PowerDecay(2.0, 5.0, 0.7)),
    rw.hasgld_sa(form="low_rank", rank=5),
    rw.hasgld_sa(form="snapshot_lbfgs", snapshots=3),
    rw.hasgld_sa(form="as_printed", memory=1),
    rw.sghmc(friction=0.3),
    rw.sgnht(diffusion=0.2),
    rw.pruned(rw.hasgld_sa(memory=3), 0.5, stop=100),
]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=sampler_text)
def test_samplers_as_text(sampler):
    text = sampler_text(sampler)
    assert text.startswith("rw.")
    assert eval(text) == sampler


def test_settings_that_are_defaults_are_left_out():
    assert [sampler_text(one) for one in (rw.sgld(), rw.hasgld_sa(), rw.sghmc())] == [
        "rw.sgld()",
        "rw.hasgld_sa()",
        "rw.sghmc()",
    ]


@pytest.mark.parametrize(
    "sampler",
    [
        rw.hasgld_sa(adaptation=lambda k: 0.5),
        rw.sghmc(preconditioner=rw.fixed(jnp.eye(2))),
        rw.pruned(rw.sgld(), 0.5, stop=10, leaves=lambda name, shape: True),
    ],
)
def test_samplers_that_cannot_be_written_are_the_users_variable(sampler):
    assert sampler_text(sampler) == "sampler"


def test_the_runs_own_arguments(tmp_path):
    options = {"steps": 1_200, "thin": 2, "burn_in": 100, "chains": 2, "step_size": 0.01, "progress": False}
    result = run(rw.sgld(), GAUSSIAN.target, 2, **options, checkpoint=tmp_path / "a", store=tmp_path / "b")
    folders = {"checkpoint": tmp_path / "a", "store": tmp_path / "b"}
    assert result.arguments == {**options, **folders, "sampler": rw.sgld()}
    call = next_call(result)
    assert call.startswith("rw.sample(key, rw.sgld(), target, position, steps=1_200, step_size=0.01, chains=2, ")
    assert f"store='{tmp_path / 'b'}-next'" in call
    assert f"checkpoint='{tmp_path / 'a'}-next'" in call
    names = {"rw": rw, "key": jax.random.key(0), "target": GAUSSIAN.target, "position": jnp.zeros(2)}
    again = eval(call, names)
    assert again.store == tmp_path / "b-next"
    onwards = next_call(result, resume=True, steps=2_000)
    assert f"checkpoint='{tmp_path / 'a'}', " in onwards
    assert eval(onwards, names).steps == 2_000


def test_schedules_and_functions_are_the_users_variables():
    result = run(rw.sgld(), GAUSSIAN.target, 2, step_size=lambda k: 0.01, collect=jnp.sum, steps=100, burn_in=0)
    assert "step_size=step_size" in next_call(result)
    assert "collect=collect" in next_call(result)


@pytest.mark.parametrize(("number", "rounded"), [(1, 1), (99, 99), (101, 110), (40_000, 40_000), (12_345.6, 13_000)])
def test_rounding_up(number, rounded):
    assert rounded_up(number) == rounded
