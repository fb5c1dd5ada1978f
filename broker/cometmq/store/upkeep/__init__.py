"""What an open store does beside puts and reads: checkpoints, checksums, expiry."""
