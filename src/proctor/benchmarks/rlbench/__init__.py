"""RLBench: ten tasks with planned motions."""
