"""Reading a store that is not open here: what all tools stand on."""
