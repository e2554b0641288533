"""Penstock: a durable streaming log that speaks the Kafka wire protocol."""

__version__ = "0.1.0"
