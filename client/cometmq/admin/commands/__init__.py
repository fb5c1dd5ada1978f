"""The subcommands, a module or more for each noun."""
