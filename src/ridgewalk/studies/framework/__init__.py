"""What all studies share: tasks and their cache, the runner, the report schema and the page."""
