"""A run and its record: what counts as noise."""

from dataclasses import replace

import pytest

from ridgewalk.studies.framework.claims import (
    compare_with_record,
    numbers_by_place,
    spreads,
    within_noise,
    write_repeats,
)
from ridgewalk.studies.framework.study import Number, Record, Report, Section, Table


def record(folder, *cells, column="error"):
    rows = tuple((f"row {i}", cell) for i, cell in enumerate(cells))
    report = Report("t", (), (Section("s", (), (Table("caption", ("", column), rows),)),))
    return Record("toy", folder, report, "quick", "c", "", 1.0, {}, {}, {})


@pytest.mark.parametrize(
    ("difference", "expected"), [(0.0, True), (2.9 * 0.5, True), (3.1 * 0.5, False), (-2.9 * 0.5, True), (-1.6, False)]
)
def test_three_standard_errors_of_the_difference_are_noise(difference, expected):
    assert within_noise(Number(10.0 + difference, 0.3), Number(10.0, 0.4), 0.0) is expected


@pytest.mark.parametrize(("value", "expected"), [(11.0, True), (11.2, False), (9.0, True), (8.8, False), (14.1, False)])
def test_without_repeats_a_tenth_is_noise_but_a_lost_root_of_two_is_not(value, expected):
    assert within_noise(Number(value), Number(10.0), 0.0) is expected


def test_a_number_without_standard_error_has_the_noise_of_its_column(tmp_path):
    known = record(tmp_path, Number(1.0), Number(10.0))
    repeats = [record(tmp_path, Number(1.1), Number(10.0)).report, record(tmp_path, Number(0.9), Number(10.0)).report]
    write_repeats(tmp_path, repeats)
    (spread,) = spreads(known).values()
    assert spread == pytest.approx((0.5 * 0.1**2) ** 0.5)  # relative variances 0.01 and 0, pooled over two rows
    limit = 4 * spread * 2**0.5
    assert compare_with_record(record(tmp_path, Number(1 + 0.9 * limit), Number(10.0)), known).different == ()
    (found,) = compare_with_record(record(tmp_path, Number(1 + 1.1 * limit), Number(10.0)), known).different
    assert found.place == ("s", "caption", "row 0", "error")


def test_equal_as_printed_and_rounding_are_counted(tmp_path):
    known = record(tmp_path, Number(1.2341), Number(100.04, style=".2f"), Number(5.0))
    found = compare_with_record(record(tmp_path, Number(1.2342), Number(100.06, style=".2f"), Number(6.0)), known)
    assert (found.compared, found.as_printed, len(found.different)) == (3, 1, 1)
    assert found.agrees  # one in three numbers may be chance
    worse = compare_with_record(record(tmp_path, Number(2.0), Number(100.04, style=".2f"), Number(6.0)), known)
    assert not worse.agrees


@pytest.mark.parametrize(
    "column", ["seconds of the chain", "compute time (s)", "draws per second", "CPU s", "µs a step", "sample, ms"]
)
def test_durations_are_not_compared(tmp_path, column):
    assert numbers_by_place(record(tmp_path, Number(1.0), column=column).report) == {}


@pytest.mark.parametrize("column", ["autocorrelation time", "error over the second half", "steps"])
def test_other_numbers_are_compared(tmp_path, column):
    assert len(numbers_by_place(record(tmp_path, Number(1.0), column=column).report)) == 1


def test_numbers_of_two_equal_rows_are_told_apart(tmp_path):
    table = record(tmp_path, Number(1.0)).report.sections[0].tables[0]
    twice = replace(table, rows=(*table.rows, *table.rows))
    report = Report("t", (), (Section("s", (), (twice,)),))
    assert len(numbers_by_place(report)) == 2
