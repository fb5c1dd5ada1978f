from logging import Logger

class PySparkLogger(Logger):
    @staticmethod
    def getLogger(name: str | None = None) -> PySparkLogger: ...
