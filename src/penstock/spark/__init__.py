"""The PySpark data source: topics as DataFrames, batch and streaming, without jars."""
