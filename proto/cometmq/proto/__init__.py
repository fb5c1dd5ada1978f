"""The RocketMQ remoting protocol, sans-I/O: bytes in, commands out, and back.

No socket, no clock, no event loop, no logger: what this package needs of them comes in as
arguments.
"""
