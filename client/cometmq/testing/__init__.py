"""A real broker as a pytest fixture."""
