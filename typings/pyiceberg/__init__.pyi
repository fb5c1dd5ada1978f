"""The parts of pyiceberg that the pipeline uses."""
