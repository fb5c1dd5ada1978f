"""The ConsumeQueues: for each message of a queue, where its record is in the log."""
