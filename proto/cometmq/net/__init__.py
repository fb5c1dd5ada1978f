"""The two drivers of a connection: loop protocols (uvloop, asyncio) and trio streams."""
