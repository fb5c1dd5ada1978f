from typing import Any

class SparkSession:
    builder: Any
