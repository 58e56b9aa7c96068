"""What devices tell each other in a step, read in the compiled program."""

import re

import pytest
from tests.distributed.children import run

COLLECTIVE = re.compile(
    r"= (?P<shapes>[^=]*?) (?:all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
)
CHAINS, PARAMETERS = 3, 5


def compiled(folder, case, devices):
    """The number of elements of every collective operation of the loop; XLA may join several arrays."""
    run([case], devices=devices, flags=f"--xla_dump_to={folder} --xla_dump_hlo_module_re=.*run_steps.*")
    programs = list(folder.glob("*run_steps*after_optimizations.txt"))
    assert programs, "one for each device that runs chains of its own"
    found = []
    for line in "\n".join(program.read_text() for program in programs).splitlines():
        match = COLLECTIVE.search(line)
        if match:
            sizes = re.findall(r"[a-z]\w*\[([\d,]*)\]", match["shapes"])
            found.append(sum(int_product(size) for size in sizes))
    return found


def int_product(text):
    total = 1
    for number in text.split(","):
        total *= int(number or 1)
    return total


def case(**options):
    return {"sampler": "dense", "options": {"steps": 5, "batch_size": 8, "chains": CHAINS, **options}}


def test_gradients_are_the_only_thing_that_devices_exchange(tmp_path):
    found = compiled(tmp_path, {"shards": 2, **case()}, devices=2)
    assert found
    assert max(found) <= CHAINS * (PARAMETERS + 1)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["sgld", "dense"])
def test_chains_on_different_devices_exchange_nothing(tmp_path, sampler):
    assert compiled(tmp_path, {**case(chain_method="parallel", chains=2), "sampler": sampler}, devices=2) == []


WARM = {"step_size": "auto", "options": {"steps": 120, "batch_size": 16, "chains": CHAINS, "warmup": 100}}


LARGEST = {
    "minibatch": CHAINS * (PARAMETERS + 1),
    "control_variates": CHAINS * (PARAMETERS + 1),
    "svrg": CHAINS * (PARAMETERS + 1),
    "spike": CHAINS * (PARAMETERS + 2),
}
"""Numbers in one operation. Control variates and SVRG send the difference of the two gradients that they take on a
batch; this adaptive prior needs a statistic of the residuals beside the gradient."""


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [name for name in LARGEST if name != "minibatch"])
def test_every_estimator_exchanges_its_gradients_only(tmp_path, estimator):
    found = compiled(tmp_path, {"shards": 2, "estimator": estimator, **case()}, devices=2)
    assert found
    assert max(found) <= LARGEST[estimator]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampler", "estimator"),
    [
        *((sampler, "minibatch") for sampler in ("auto", "dense", "sghmc", "low_rank", "limited")),
        *(("auto", estimator) for estimator in ("control_variates", "svrg")),
        ("dense", "spike"),
    ],
)
def test_warm_up_exchanges_gradients_only(tmp_path, sampler, estimator):
    """The default: step sizes are found. The programs of all phases of warm-up, and of the steps after it."""
    found = compiled(tmp_path, {"shards": 2, "sampler": sampler, "estimator": estimator, **WARM}, devices=2)
    assert found
    assert max(found) <= LARGEST[estimator]


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["auto", "dense"])
def test_chains_on_different_devices_exchange_nothing_in_warm_up(tmp_path, sampler):
    options = {**WARM["options"], "chains": 2, "chain_method": "parallel"}
    assert compiled(tmp_path, {"sampler": sampler, **WARM, "options": options}, devices=2) == []


@pytest.mark.slow
@pytest.mark.parametrize("devices", [4])
def test_more_devices_gather_no_more_than_one_gradient_of_each(tmp_path, devices):
    found = compiled(tmp_path, {"shards": devices, **case()}, devices=devices)
    assert max(found) <= devices * CHAINS * (PARAMETERS + 1)
