"""Spark reads and writes topics and store directories, through PySpark alone."""
