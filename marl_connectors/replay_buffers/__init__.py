"""Replay buffers: the newest episodes of a run, from which off-policy algorithms draw their train batches."""
