"""Positions as flat vectors, and the names of their leaves."""

import itertools

from ridgewalk.ravel import leaf_names


def test_names_of_leaves():
    assert leaf_names(0) == ["position"]
    assert leaf_names({"layer": [0, 1], "bias": 2}) == ["bias", "layer.0", "layer.1"]
    assert leaf_names({"a/b": 0, "a_b": 1}) == ["a_b_0", "a_b_1"]


def test_names_of_leaves_are_unique():
    keys = ["a/b", "a_b", "a_b_0", "a_b_1", "a_b_0_", "a/b_0", "", "position"]
    for count in range(2, len(keys) + 1):
        for chosen in itertools.combinations(keys, count):
            names = leaf_names(dict.fromkeys(chosen, 0))
            assert len(set(names)) == len(chosen), (chosen, names)
            assert all(names)
