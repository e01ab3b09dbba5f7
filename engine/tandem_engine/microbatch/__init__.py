"""Which steps are cut into two halves, and where: decisions about micro-batches; pure."""
