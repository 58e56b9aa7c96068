"""Neural networks as pure functions of a pytree of weights."""
