"""The broker: request handlers over a store, and the services that run on a clock."""
