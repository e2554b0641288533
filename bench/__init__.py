"""The benchmark: the same load on Penstock and on Apache Kafka, in one run.

`python -m bench` from the repository root; `bench/README.md` says what is measured and how.
"""


class BenchError(Exception):
    """Why a run stopped: something is missing, a broker failed, or counts do not agree."""
