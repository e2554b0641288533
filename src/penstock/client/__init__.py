"""A synchronous Kafka client for bulk work: whole ranges in, whole batches out, nothing per record."""
