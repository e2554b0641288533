"""Spark over Penstock and over Kafka: our data source against Spark's own connector."""
