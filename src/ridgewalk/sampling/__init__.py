"""The run loop: the only place with side effects."""
