"""One reconcile: parse the spec, observe, decide, report, apply."""
