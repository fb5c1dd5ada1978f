"""What an open store does besides puts and reads: checkpoints, checksums, expiry."""
