"""Three brokers on one machine: Penstock with etcd, and Apache Kafka with three combined nodes.

`python -m bench.cluster` from the repository root; `bench/README.md` says what is measured and how.
"""
