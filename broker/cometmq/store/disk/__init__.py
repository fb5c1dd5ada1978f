"""The disk below the store: the seam to it, names of files, locks, and the threads that sync."""
