"""Opening a store: what its folder holds, where its log ends, what queues and index lack."""
