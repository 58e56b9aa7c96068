"""Optional dependencies: the error names the extra, and the core works without them."""

import pytest

from ridgewalk._optional import requires_extra


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
