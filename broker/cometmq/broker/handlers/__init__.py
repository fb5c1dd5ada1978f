"""What each request does: plain functions of a request and who asks."""
