"""Reading a store that is not open here: the base of all tools."""
