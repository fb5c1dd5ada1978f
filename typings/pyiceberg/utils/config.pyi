from typing import Any

class Config:
    def get_catalog_config(self, catalog_name: str) -> dict[str, Any] | None: ...
