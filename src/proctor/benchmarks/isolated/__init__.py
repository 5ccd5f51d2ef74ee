"""Benchmarks whose simulators run in another interpreter, behind ``proctor_worker``."""
