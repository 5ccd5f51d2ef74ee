"""Policy servers: clients of several protocols share the policy's batches."""
