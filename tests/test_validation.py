"""Argument checks: what they accept, and that an error names the argument, the value and the fix."""

import numpy as np
import pytest

from ridgewalk._validation import check_between, check_choice, check_positive, check_whole


@pytest.mark.parametrize("value", [2, np.int64(2), np.uint8(2)])
def test_whole_numbers_are_accepted(value):
    assert check_whole("steps", value, 2) == 2


@pytest.mark.parametrize("value", [1, 2.0, True, "2", None, np.float32(2), float("nan")])
def test_anything_else_is_not_a_whole_number(value):
    with pytest.raises(ValueError, match=r"^steps: .* is not an integer of at least 2; use 3$"):
        check_whole("steps", value, 2, "use 3")


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan"), True, "1", None])
def test_positive_numbers(value):
    assert check_positive("scale", np.float32(0.5)) == 0.5
    with pytest.raises(ValueError, match=r"^scale: .* is not a positive finite number; try 1\.0$"):
        check_positive("scale", value, "try 1.0")


@pytest.mark.parametrize(("bounds", "low", "high"), [("()", 0, 0), ("[)", 1, 0), ("(]", 0, 1), ("[]", 1, 1)])
def test_an_interval_includes_the_ends_it_says(bounds, low, high):
    for value, accepted in ((0.0, low), (1.0, high), (0.5, True), (float("nan"), False), (True, False)):
        if accepted:
            assert check_between("share", value, 0, 1, bounds) == value
        else:
            with pytest.raises(ValueError, match=r"^share: .* is not in [\[(]0, 1[\])]; use 0\.5$"):
                check_between("share", value, 0, 1, bounds, "use 0.5")


def test_choices_are_listed():
    check_choice("form", "dense", ("dense", "auto"))
    with pytest.raises(ValueError, match=r"^form: 'sparse' is unknown; use one of 'dense', 'auto', or a Network$"):
        check_choice("form", "sparse", ("dense", "auto"), "a Network")
