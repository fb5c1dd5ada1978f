"""Fuzzing of every decoder that reads bytes of a peer or a disk.

A target is a module of `targets` with a function `check(data)`, which must accept the data or
refuse it with RemoteProtocolError. Any other exception is a finding, and so is a hang.
`seeds/<target>/` has a few small inputs to start from, and `corpus/<target>/` (not in git) those
that runs found worth keeping. `python -m tests.fuzz` runs all targets.
"""
