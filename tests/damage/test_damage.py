"""Damage to any file gives the same result or an error that names the file; never another result, never a raw error.

The default part tries every operation once on files in turn; the slow part generates more than a thousand cases with
hypothesis. No case may take more than a gigabyte beyond what the process has (RLIMIT_AS), nor more than a minute.
"""

import contextlib
import resource
import shutil
import signal
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.damage import artefacts, operations

HEADROOM = 2**30
PATIENCE = 60
CASES = {"run": 600, "continued": 200, "store": 800, "model": 1000, "dataset": 600, "growing": 600}
counted = dict.fromkeys(CASES, 0)


class HangError(BaseException):
    """A case took too long."""


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Each artefact with what reading it gives, made when first asked for."""
    known = {}

    def make(name):
        if name not in known:
            root = tmp_path_factory.mktemp("damage") / name
            root.mkdir()
            artefacts.ALL[name].make(root)
            known[name] = root, read(name, duplicate(root, tmp_path_factory.mktemp("whole") / name))
        return known[name]

    return make


def duplicate(root, to):
    shutil.rmtree(to, ignore_errors=True)
    return shutil.copytree(root, to, symlinks=True)


def read(name, root):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an older checkpoint may be used, with a warning
        return artefacts.ALL[name].read(root)


@contextlib.contextmanager
def limited():
    """At most a gigabyte more, and at most a minute."""

    def hangs(*_):
        raise HangError

    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    former = signal.signal(signal.SIGALRM, hangs)
    resource.setrlimit(resource.RLIMIT_AS, (now + HEADROOM, hard))
    signal.alarm(PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGALRM, former)


def files_of(root):
    return sorted(path for path in root.rglob("*") if path.is_file() and path.name != ".ridgewalk")


def names(error, touched, root):
    """Whether an error names one of the files that were touched, or the folder of the array that they belong to."""
    text = str(error)
    for file in touched:
        if str(file) in text or (file.name in text and str(root) in text):
            return True
        inner = [folder for folder in file.parents if root in folder.parents and folder.parent != root]
        if any(str(folder) in text for folder in inner):
            return True
    return False


def same(found, wanted):
    return len(found) == len(wanted) and all(
        np.asarray(a).dtype == np.asarray(b).dtype and np.array_equal(a, b) for a, b in zip(found, wanted, strict=True)
    )


def check(name, made, work, at, other, operation, share):
    root, wanted = made(name)
    copy = duplicate(root, work / name)
    files = files_of(copy)
    file, second = files[int(at * len(files))], files[int(other * len(files))]
    if operation in (operations.swap, operations.copy) and file == second:
        return
    case = f"{name}: {operation.__name__}({file.relative_to(copy)}, {second.relative_to(copy)}, {share})"
    operation(file, second, share)
    counted[name] += 1
    touched = [file, second] if operation is operations.swap else [file]
    try:
        with limited():
            found = read(name, copy)
    except (ValueError, OSError) as error:
        if not names(error, touched, copy):
            raise AssertionError(f"{case}: {error!r} names no file") from error
    except HangError:
        raise AssertionError(f"{case}: it hangs") from None
    except Exception as error:
        raise AssertionError(f"{case}: raw {error!r}") from error
    else:
        assert same(found, wanted), f"{case}: silent"


@pytest.mark.parametrize("operation", operations.ALL, ids=lambda operation: operation.__name__)
@pytest.mark.parametrize("name", [name for name in CASES if name not in ("run", "continued")])
def test_every_operation(name, operation, made, tmp_path):
    number = operations.ALL.index(operation)
    for at in (number / len(operations.ALL), (0.381966 * number) % 1):
        check(name, made, tmp_path, at, (at + 0.5) % 1, operation, 0.6)


@pytest.mark.parametrize("operation", operations.ALL, ids=lambda operation: operation.__name__)
def test_every_operation_on_a_run(operation, made, tmp_path):
    number = operations.ALL.index(operation)
    check("run", made, tmp_path, number / len(operations.ALL), 0.3, operation, 0.6)


SHARES = st.floats(0, 1, exclude_max=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CASES))
def test_generated_damage(name, made, tmp_path):
    @settings(
        max_examples=CASES[name],
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(SHARES, SHARES, st.sampled_from(operations.ALL), SHARES)
    def damage(at, other, operation, share):
        check(name, made, tmp_path, at, other, operation, share)

    damage()


@pytest.mark.slow
def test_enough_cases_were_generated():
    """Counts what ran before it in the same session."""
    print(f"damage cases: {counted}, {sum(counted.values())} in all")
    if all(counted.values()):
        assert sum(counted.values()) >= 1000
