"""The broker: request handlers over a store, and the services that live in time."""
