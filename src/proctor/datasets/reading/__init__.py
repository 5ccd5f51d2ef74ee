"""Reading an open dataset: metadata, frames, the frame cache and streaming order."""
