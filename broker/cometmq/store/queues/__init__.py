"""The ConsumeQueues: for each message of a queue, where in the log its record lies."""
