"""The project's structure: layers of imports, lazy imports, and the size of files."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ridgewalk as rw

PACKAGE = Path(rw.__file__).parent

LAYERS = [
    {
        "_cli_errors",
        "_compilation",
        "_io",
        "_pytree",
        "_random",
        "_types",
        "_validation",
        "_zarr",
    },
    {"distributed"},
    {"data", "gradients", "priors", "pruning", "schedules", "target"},
    {"preconditioners"},
    {"dynamics"},
    {"kernel", "samplers"},
    {"result"},
    {"sampling"},
    {"diagnostics"},
    {"tuning"},
    {"models", "neural"},
    {"studies"},
    {"cli"},
]
"""A module imports only from layers before its own in this list, and from its own layer."""

UPWARDS = {("result", "diagnostics")}
"""Imports against the order, allowed within functions and for type checkers: methods of `Result` call diagnostics."""

DARCY = {"_cli_errors", "_io", "_validation", "_zarr", "darcy"}
"""What the flow solver imports. Only `studies` and `cli` import it."""

MOST_FILES = 130

LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def part_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(tree):
    """The parts of the package that a module imports, each with whether loading the module does not run the import."""
    inner = {id(node) for block in ast.walk(tree) if is_deferred(block) for node in ast.walk(block)}
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            whole = node.module == "ridgewalk"
            names = [f"ridgewalk.{alias.name}" for alias in node.names] if whole else [node.module]
        for name in names:
            if name.startswith("ridgewalk."):
                yield name.split(".")[1], id(node) in inner


def is_deferred(node):
    """Functions, and what only type checkers read."""
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def wrong_imports(source, part):
    for other, deferred in imported(ast.parse(source)):
        if part == "darcy":
            allowed = other in DARCY
        elif other == "darcy":
            allowed = part in {"studies", "cli"}
        else:
            assert {part, other} <= set(LEVEL), f"put {part} and {other} into LAYERS"
            allowed = LEVEL[other] <= LEVEL[part] or ((part, other) in UPWARDS and deferred)
        if not allowed:
            yield other


def test_imports_follow_the_layers():
    modules = [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"]
    found = {path: list(wrong_imports(path.read_text(), part_of(path))) for path in modules}
    assert {path.as_posix(): wrong for path, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize(
    ("part", "code", "wrong"),
    [
        ("dynamics", "from ridgewalk.kernel import State", True),
        ("dynamics", "def f():\n from ridgewalk.kernel import State", True),
        ("dynamics", "from ridgewalk import samplers", True),
        ("dynamics", "import ridgewalk.target", False),
        ("result", "from ridgewalk.diagnostics.summary import summary", True),
        ("result", "def f():\n from ridgewalk.diagnostics.summary import summary", False),
        ("result", "if TYPE_CHECKING:\n from ridgewalk.diagnostics.summary import SummaryTable", False),
        ("darcy", "from ridgewalk.target import Posterior", True),
        ("neural", "from ridgewalk.darcy import solve", True),
        ("studies", "from ridgewalk.darcy import solve", False),
    ],
)
def test_the_layer_test_finds_wrong_imports(part, code, wrong):
    assert bool(list(wrong_imports(code, part))) is wrong


def test_few_files_of_30_to_600_lines():
    """Only an `__init__.py` may be shorter."""
    lines = {path: path.read_text().count("\n") for path in PACKAGE.rglob("*.py")}
    short = [path.as_posix() for path, count in lines.items() if count < 30 and path.name != "__init__.py"]
    long = [path.as_posix() for path, count in lines.items() if count > 600]
    assert (short, long) == ([], [])
    assert len(lines) <= MOST_FILES, "merge files that hold one concept"


def run_python(code, *options):
    return subprocess.run([sys.executable, *options, "-c", code], check=True, capture_output=True, text=True).stdout


def test_importing_is_silent_and_changes_no_configuration():
    code = (
        "import jax; before = dict(jax.config.values); import ridgewalk, ridgewalk.cli; "
        "names = [getattr(ridgewalk, name) for name in ridgewalk.__all__]; "
        "assert dict(jax.config.values) == before; assert 'matplotlib.pyplot' not in __import__('sys').modules"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize("module", ["ridgewalk", "ridgewalk.darcy", "ridgewalk.darcy.datasets", "ridgewalk.cli"])
def test_importing_does_not_load_jax(module):
    heavy = {"jax", "matplotlib", "numba", "pandas", "sklearn"}
    loaded = run_python(f"import {module}, sys; print(*sys.modules)").split()
    assert heavy & set(loaded) == set()
    assert module in loaded


def test_public_names_are_imported_on_first_use():
    code = "import ridgewalk as rw, sys; print('ridgewalk.samplers' in sys.modules, rw.sgld, rw.samplers.sgld)"
    before, *functions = run_python(code).split(" ", 1)
    assert before == "False"
    assert functions[0].count("<function sgld") == 2


def test_public_names():
    assert all(hasattr(rw, name) for name in rw.__all__)
    assert len(set(rw.__all__)) == len(rw.__all__)
    assert set(rw.__all__) <= set(dir(rw))
    parts = {part_of(path) for path in PACKAGE.rglob("*.py")}
    assert set(rw.__all__) & parts == set(), "importing the module would replace the public name"
    for name in ("nothing", "_nothing"):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'"):
            getattr(rw, name)


def subcommands():
    import typer

    from ridgewalk.cli import app

    def walk(command, words):
        yield words
        for name, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, (*words, name))

    return list(walk(typer.main.get_command(app), ()))


def test_help_loads_no_jax():
    """Of every command and subcommand, in one process; `ridgewalk --help` alone within 0.6 s of CPU time.

    On a slower or busy machine that is 1.3 times the time of `import jax`, 0.46 s where the limit was set.
    """
    code = (
        "import sys; from ridgewalk.cli import app\n"
        f"for words in {subcommands()!r}:\n"
        "    app([*words, '--help'], standalone_mode=False)\n"
        "    assert not {'jax', 'matplotlib', 'pandas', 'zarr'} & set(sys.modules), words"
    )
    assert "Usage" in run_python(code)
    seconds = best_cpu_seconds("from ridgewalk.cli import main; sys.argv = ['ridgewalk', '--help']; main()")
    assert seconds < 0.6 or seconds < 1.3 * best_cpu_seconds("import jax")


def best_cpu_seconds(code, runs=3):
    """CPU time of a fresh interpreter, the least of a few runs: others use the machine as well."""
    return min(cpu_seconds(code) for _ in range(runs))


def cpu_seconds(code):
    import resource

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run_python(f"import sys; {code}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
