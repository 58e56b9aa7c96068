"""Ridgewalk beside other libraries: `python benchmarks/peers/study.py` measures, and writes docs/benchmarks.md."""
