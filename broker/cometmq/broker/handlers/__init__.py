"""The request handlers: plain functions of a request and the session that it came from."""
