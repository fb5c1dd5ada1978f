"""How the pages of the API are made: `make api-pages`."""

from importlib.metadata import version as _version

project = "CometMQ"
release = version = _version("cometmq")
extensions = ["sphinx.ext.autodoc"]
default_role = "code"
html_theme = "alabaster"
html_theme_options = {"description": "A message broker in Python", "fixed_sidebar": True}
html_show_copyright = False
html_show_sphinx = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True}
