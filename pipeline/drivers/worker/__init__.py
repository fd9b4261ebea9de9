"""The owners of one worker, whatever assigns partitions to it."""
