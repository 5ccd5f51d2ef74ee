"""Running a policy network: batches, devices, CUDA graphs, compilation."""
