"""What this project uses of Py4J: see pyspark's stubs."""
