"""Runs of one sampler share one compiled loop, whatever their number of steps.

The loop is compiled for the length of a block of random numbers and for the draws that fit on the device, and both are
at most what a run needs: 44 steps and 60, or every step and every second, would be two programs, for 1.5 s each. What
is drawn depends on neither (`test_chunks_and_blocks_do_not_change_the_draws`). `make test-slow` runs as users do.
"""

from importlib import import_module

SHORT = 1_000
"""Steps of the longest run that is cut into blocks and device calls of a few steps."""
BLOCK = DRAWS = 16
MOST_DRAWS = 400
"""Of longer runs, on the device."""


def share_programs():
    sample = import_module("ridgewalk.sampling.sample")
    block_length, numbers = sample.block_length, sample.BUFFER_NUMBERS

    def in_tests(dimension, batch_size, chains, steps):
        """`sample` calls this before it counts the draws that fit on the device."""
        short = steps <= SHORT
        sample.BUFFER_NUMBERS = min(numbers, (DRAWS if short else MOST_DRAWS) * dimension * chains)
        return block_length(dimension, batch_size, chains, min(steps, BLOCK) if short else steps)

    sample.block_length = in_tests
