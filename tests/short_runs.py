"""Runs of one sampler share one compiled loop, whatever their number of steps.

The loop is compiled for the length of a block of random numbers and for the draws that fit on the device, and both are
at most what a run needs: 44 steps and 60, or every step and every second, would be two programs, for 1.5 s each. What
is drawn depends on neither (`test_chunks_and_blocks_do_not_change_the_draws`). `make test-slow` runs as users do.
"""

from importlib import import_module

BLOCK = 8
"""Steps in a block of a short run."""
MOST_DRAWS = ((250, 4), (1_000, 50), (2**62, 400))
"""Draws on the device, by the largest number of steps of a run: more of them for longer ones, of which every device
call takes a millisecond."""


def share_programs():
    sample = import_module("ridgewalk.sampling.sample")
    block_length, numbers = sample.block_length, sample.BUFFER_NUMBERS

    def in_tests(dimension, batch_size, chains, steps):
        """`sample` calls this before it counts the draws that fit on the device."""
        draws = next(draws for most, draws in MOST_DRAWS if steps <= most)
        sample.BUFFER_NUMBERS = min(numbers, draws * dimension * chains)
        return block_length(dimension, batch_size, chains, min(steps, BLOCK) if steps <= MOST_DRAWS[0][0] else steps)

    sample.block_length = in_tests
