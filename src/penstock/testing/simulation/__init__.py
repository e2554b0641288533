"""A deterministic simulation of whole clusters in virtual time.

    python -m penstock.testing.simulation --seeds 2000

Brokers run exactly the state machines of `penstock.cluster`; clocks, disks, the network and the
metadata store are twins with faults. One seed is one run, the same every time.
"""
