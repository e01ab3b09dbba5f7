"""The controller's machinery: watches and resyncs fill a work queue, and workers empty it."""
