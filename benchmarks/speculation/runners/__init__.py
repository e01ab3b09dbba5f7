"""Programs that run under the peers' interpreters."""
