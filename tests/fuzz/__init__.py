"""Fuzzing of every decoder that meets bytes of a peer or a disk.

A target is a module of `targets` with `check(data)`, whose one property is: the data is accepted
or refused with RemoteProtocolError. Anything else that escapes is a finding, and so is a hang.
`seeds/<target>/` holds a few small inputs to start from, `corpus/<target>/` (not in git) what a
run found worth keeping. `python -m tests.fuzz` runs them all.
"""
