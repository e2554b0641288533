"""The cluster's decisions: who leads, who is in sync, what may be read and what may be answered.

Everything here is synchronous and knows no network, disk or clock: a state machine takes an event with
its moment and returns effects. `docs/REPLICATION.md` has the rules and why they are safe.

    state.py        what the metadata store keeps of brokers, topics and partitions
    replica.py      one partition on one broker: its role comes from the store
      leadership.py   the leader of one epoch: high watermark, ISR, waits for acks=all
      following.py    a follower in one epoch: fetch, truncate, append
    controller.py   who leads and who holds which partition, as compare-and-swap transactions
      view.py, elections.py, placement.py, reassignment.py, batching.py
"""
