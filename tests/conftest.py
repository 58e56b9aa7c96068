import gc
import os
import signal
from pathlib import Path

import jax
import pytest
from tests.short_runs import share_programs

MOST_MAPS = 20_000

os.environ["RIDGEWALK_COMPILATION_CACHE"] = "off"  # commands leave the user's cache folder alone
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background of a shell
    signal.signal(signal.SIGINT, signal.default_int_handler)
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")


def pytest_configure(config):
    if "not slow" in config.option.markexpr:
        share_programs()


def pytest_collection_modifyitems(items):
    """Those of half a minute first: at the end one core would wait for the other."""
    long = ("test_readme.py", "test_kill.py", "_cli.py")
    items.sort(key=lambda item: not item.nodeid.split("::")[0].endswith(long))


@pytest.fixture(autouse=True, scope="module")
def compiled_code_does_not_pile_up():
    """Every compiled function keeps memory maps, of which Linux gives a process 65,530: near that XLA crashes."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()
        gc.collect()
