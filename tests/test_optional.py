"""Optional dependencies: declared as extras, imported through one helper, and not needed by the core."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import ridgewalk as rw
from ridgewalk._validation import requires_extra

PACKAGE = Path(rw.__file__).parent
PROJECT = tomllib.loads((PACKAGE.parents[1] / "pyproject.toml").read_text())["project"]

CORE = {"jax", "numpy", "optax", "rich", "safetensors", "scipy"}

MODULES = {
    "scikit-learn": "sklearn",
    "arviz-base": "arviz_base",
    "arviz-stats": "arviz_stats",
    "arviz-plots": "arviz_plots",
    "google-crc32c": "google_crc32c",
}
"""Distributions whose module has another name."""

BROUGHT_ALONG = {
    "matplotlib": {"PIL"},
    "zarr": {"google_crc32c"},
    "numba": {"llvmlite"},
    "jax": {"jaxlib", "ml_dtypes"},
    "arviz-base": {"pandas", "xarray"},
    "pymc": {"pytensor", "xarray"},
}
"""Modules of a distribution's own requirements that the package imports too."""

FROM_THE_USER = {"flax"}
"""Imported only where an object of the user's is made of it."""


def name_of(requirement):
    return requirement.split(">")[0].split("[")[0]


def modules_of(extra):
    """The modules that an extra brings."""
    names = {name_of(requirement) for requirement in PROJECT["optional-dependencies"][extra]}
    return {MODULES.get(name, name) for name in names} | {
        module for name in names for module in BROUGHT_ALONG.get(name, ())
    }


def extra_of(node):
    """The extra of a `with requires_extra(…)`, or None for other statements."""
    for item in node.items if isinstance(node, ast.With) else ():
        call = item.context_expr
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "requires_extra":
            return ast.literal_eval(call.args[0])
    return None


def imports(node, extra=None):
    """Every imported module below a node with the extra that guards it; those for type checkers alone are left out."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.Import):
            yield from ((alias.name.split(".")[0], extra) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield str(child.module).split(".")[0], extra
        else:
            yield from imports(child, extra_of(child) or extra)


def unguarded(source):
    always = CORE | BROUGHT_ALONG["jax"] | FROM_THE_USER | {"ridgewalk"} | set(sys.stdlib_module_names)
    for module, extra in imports(ast.parse(source)):
        if module not in always and (extra is None or module not in modules_of(extra)):
            yield module, extra


def test_every_optional_import_names_its_extra():
    paths = list(PACKAGE.rglob("*.py"))
    assert {path.as_posix(): found for path in paths if (found := list(unguarded(path.read_text())))} == {}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import zarr", [("zarr", None)]),
        ("def f():\n    from zarr.core import group", [("zarr", None)]),
        ("with requires_extra('plots'):\n    import zarr", [("zarr", "plots")]),
        ("with requires_extra('store'):\n    import zarr", []),
        ("if TYPE_CHECKING:\n    import zarr", []),
        ("import jax, json, ridgewalk", []),
    ],
)
def test_the_import_test_finds_unguarded_imports(source, found):
    assert list(unguarded(source)) == found


def test_the_core_has_six_dependencies():
    assert {name_of(requirement) for requirement in PROJECT["dependencies"]} == CORE


def test_all_is_every_extra_for_users():
    extras = PROJECT["optional-dependencies"]
    for_developers = {"cuda", "dev", "docs", "peers"}
    listed = extras["all"][0].removeprefix("ridgewalk[").removesuffix("]").split(",")
    assert listed == sorted(set(extras) - for_developers - {"all"})


def test_the_error_names_the_module_and_the_extra():
    message = r"no_such_module is not installed.*pip install 'ridgewalk\[store\]'"
    with pytest.raises(ImportError, match=message) as caught, requires_extra("store"):
        import no_such_module.inner  # noqa: F401
    assert caught.value.name == "no_such_module"
    assert not isinstance(caught.value, ModuleNotFoundError)


def test_other_errors_pass_unchanged():
    with pytest.raises(ImportError, match="cannot import name 'absent'"), requires_extra("store"):
        from json import absent  # noqa: F401
    with pytest.raises(ModuleNotFoundError, match=r"ridgewalk\.absent"), requires_extra("store"):
        import ridgewalk.absent  # noqa: F401


BLOCKER = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
"""


def without_optional_modules(code, folder):
    """Run code in a process in which no module of any extra can be imported."""
    users = [extra for extra in PROJECT["optional-dependencies"] if extra not in {"all", "cuda"}]
    blocked = {module for extra in users for module in modules_of(extra)} - CORE - {"ridgewalk"}
    command = [sys.executable, "-W", "error", "-c", BLOCKER.format(blocked=blocked) + code]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


def test_the_command_line_without_typer_names_the_extra(tmp_path):
    done = without_optional_modules("from ridgewalk.cli import main; main()", tmp_path)
    assert done.returncode == 1
    assert "pip install 'ridgewalk[cli]'" in done.stderr


def test_a_regressor_without_scikit_learn_names_the_extra(tmp_path):
    done = without_optional_modules("import ridgewalk as rw; rw.NeuralRegressor", tmp_path)
    assert done.stderr.endswith("pip install 'ridgewalk[neural]'\n")


@pytest.mark.parametrize("package", ["numpyro", "pymc"])
def test_models_without_their_package_name_the_extra(tmp_path, package):
    done = without_optional_modules(f"import ridgewalk as rw; rw.from_{package}(None)", tmp_path)
    assert done.stderr.endswith(f"pip install 'ridgewalk[{package}]'\n")


RUN = """
import jax, jax.numpy as jnp, numpy as np
import ridgewalk as rw

target = rw.Density(lambda x: -0.5 * jnp.sum(x**2))

def run(**options):
    return rw.sample(
        jax.random.key(0), rw.hasgld_sa(), target, jnp.zeros(3), step_size=0.1, chains=2, progress=False, **options
    )

whole = run(steps=400)
run(steps=200, checkpoint="run")
resumed = run(steps=400, checkpoint="run", resume=True)
np.testing.assert_array_equal(whole.positions, resumed.positions)
print(whole.summary())
"""


NEEDS = {"store": "run(steps=200, store='draws.zarr')", "arviz": "whole.to_arviz()", "plots": "whole.plot_trace()"}
"""Extra → a call of the run above that needs it."""
TRIED = """
try:
    {call}
except ImportError as error:
    print("{extra}:", error)
"""


def test_the_core_samples_resumes_and_summarises_without_optional_modules(tmp_path):
    """And what needs an extra names it, all in one process."""
    tried = "".join(TRIED.format(call=call, extra=extra) for extra, call in NEEDS.items())
    done = without_optional_modules(RUN + tried, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "ess" in done.stdout
    for extra in NEEDS:
        (said,) = (line for line in done.stdout.splitlines() if line.startswith(f"{extra}: "))
        assert said.endswith(f"pip install 'ridgewalk[{extra}]'"), said
