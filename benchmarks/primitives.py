"""Hand-written primitives against the library calls that they replace, in microseconds.

    python benchmarks/primitives.py

Random numbers (`ridgewalk._random`) and Gram matrices of long rows (`ridgewalk.precondition.long_rows`). Times depend
on the machine; the ratios are the result.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ridgewalk._random import draw_noise, random_bits, uniform_integers
from ridgewalk.preconditioners.base import blocked_gram
from timing import seconds

REPEATS = 30
FLOAT32 = jnp.dtype("float32")


def microseconds(function: Callable[..., Any], *arguments: Any, loop: int = 1) -> float:
    """The least time of one call under `jit`; `loop` calls run inside one compiled loop, each on its own key."""
    compiled = jax.jit(function)
    jax.block_until_ready(compiled(*arguments))
    return 1e6 / loop * min(seconds(lambda: compiled(*arguments)) for _ in range(REPEATS))


def looped(draw: Callable[[Any], Any], loop: int) -> Callable[[Any], Any]:
    """`draw` on `loop` keys in a scan, as in a sampler's loop; sums keep every number in use."""

    def run(key: Any) -> Any:
        return jax.lax.scan(
            lambda total, one: (total + jnp.sum(draw(one)), None), jnp.zeros(()), jax.random.split(key, loop)
        )[0]

    return run


def main() -> None:
    """Print a table."""
    key, loop, many = jax.random.key(0), 200, 5_000_000
    wide = jnp.ones((24, 1_000_000))
    small: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
        "100 random words": (lambda k: random_bits(k, 100, 32), lambda k: jax.random.bits(k, (100,), "uint32")),
        "100 integers below 1,500": (
            lambda k: uniform_integers(k, 100, 1500),
            lambda k: jax.random.randint(k, (100,), 0, 1500),
        ),
        "1,000 normals": (
            lambda k: draw_noise(k, "gaussian", 1000, FLOAT32),
            lambda k: jax.random.normal(k, (1000,), FLOAT32),
        ),
    }
    large: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], Any]] = {
        "5,000,000 normals": (
            lambda k: draw_noise(k, "gaussian", many, FLOAT32),
            lambda k: jax.random.normal(k, (many,), FLOAT32),
            key,
        ),
        "Gram matrix of 24 rows of 1,000,000": (lambda r: blocked_gram(r, r), lambda r: r @ r.T, wide),
    }
    print(f"{'':<38}{'ours':>12}{'library':>12}{'ratio':>8}")
    for name, (ours, theirs) in small.items():
        report(name, *(microseconds(looped(one, loop), key, loop=loop) for one in (ours, theirs)))
    for name, (ours, theirs, argument) in large.items():
        report(name, *(microseconds(one, argument) for one in (ours, theirs)))


def report(name: str, ours: float, theirs: float) -> None:
    """One row of the table."""
    print(f"{name:<38}{ours:>10.1f}µs{theirs:>10.1f}µs{ours / theirs:>8.2f}")


if __name__ == "__main__":
    main()
