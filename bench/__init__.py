"""Benchmarks: `python -m bench.run`, figures in `build/bench/figures.json` (docs/performance.md)."""
