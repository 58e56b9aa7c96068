"""Counts what JAX compiles."""

from contextlib import contextmanager

import jax


@contextmanager
def compilations():
    """A list to which the name of every function compiled within the block is added."""
    found, open_ = [], True

    def listen(event, duration, **about):
        if open_ and "backend_compile" in event:
            found.append(about.get("fun_name", event))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield found
    finally:
        open_ = False
        if hasattr(jax.monitoring, "unregister_event_duration_listener"):  # not in JAX 0.7
            jax.monitoring.unregister_event_duration_listener(listen)
