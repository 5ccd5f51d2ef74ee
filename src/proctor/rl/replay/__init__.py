"""Replay buffers: storage of transitions, sampling, journals on disk, datasets in and out."""
