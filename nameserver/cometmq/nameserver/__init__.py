"""The name server: who serves which topic."""
